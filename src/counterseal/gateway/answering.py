"""An observation on the wire: structured content, text for the model, and facts for programs.

A refusal is the tool's error and never the protocol's: the model reads what is wrong and what to do
next, a program finds the same under `_meta`. What is shown of an output is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from counterseal.canonical import thaw
from counterseal.contract.model import Contract
from counterseal.contract.outputs import is_blocks
from counterseal.contract.schemas import Validator
from counterseal.observation import Observation
from counterseal.observation.render import fence

__all__ = ["COMPLETE", "FACTS", "publishes", "result_of"]

FACTS: Final = "counterseal/observation"
"""Where a program finds what became of its call, in a result's `_meta`."""
COMPLETE: Final = {"resultType": "complete"}
"""What 2026-07-28 wants in every result; for older clients it is taken out again."""


def result_of(
    seen: Observation,
    contract: Contract | None,
    output: Validator | None,
    approval: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The result of `tools/call`, as JSON. `approval` says where a person can decide."""
    if contract is not None and seen.ok and is_blocks(contract.affordance.output_schema):
        content = _blocks(seen)
    else:
        content = [{"type": "text", "text": _text(seen, approval)}]
    facts = _facts(seen, approval)
    result: dict[str, Any] = {
        **COMPLETE,
        "content": content,
        "isError": not seen.ok,
        "_meta": {FACTS: facts},
    }
    structured = _structured(seen, facts, contract, output)
    if structured is not None:
        result["structuredContent"] = structured
    elif seen.ok and publishes(contract):
        # The promised form can't be kept: it was shortened, or something was taken out of it. A
        # client would refuse the result; as an error, the model still reads what there is.
        result["isError"] = True
    return result


def publishes(contract: Contract | None) -> bool:
    """Whether clients are told what an output looks like, and hold us to it."""
    if contract is None:
        return False
    schema = contract.affordance.output_schema
    return schema.get("type") == "object" and len(schema) > 1 and not is_blocks(schema)


def _structured(
    seen: Observation,
    facts: Mapping[str, Any],
    contract: Contract | None,
    output: Validator | None,
) -> Any:
    """Only what the published schema allows: clients check errors against it, too."""
    if contract is not None and seen.ok and is_blocks(contract.affordance.output_schema):
        return None
    told = thaw(seen.data) if seen.ok else facts
    if told is None or not publishes(contract):
        return told
    return told if output is not None and output.is_valid(told) else None


def _text(seen: Observation, approval: Mapping[str, Any] | None) -> str:
    text = seen.for_model()
    if approval is None:
        return text
    return f"{text}\nA person decides at {approval['url']}; make the same call again after that."


def _facts(seen: Observation, approval: Mapping[str, Any] | None) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "call_id": seen.call_id,
        "trace_id": seen.trace_id,
        "code": seen.code.value,
        "replayed": seen.idempotency_hit,
    }
    if seen.ok:
        return facts
    facts |= {
        "response": {**seen.response.vector(), "next_action": seen.next_action},
        "path": seen.path.value if seen.path else None,
        "errors": [error.record() for error in seen.errors],
    }
    if seen.retry_after is not None:
        facts["retry_after"] = seen.retry_after
    if seen.approval_id is not None:
        facts["approval"] = dict(approval) if approval else {"id": seen.approval_id}
    return facts


def _blocks(seen: Observation) -> list[dict[str, Any]]:
    """Texts are shown to the model as data; what is no text follows as it is."""
    blocks = [block for block in (seen.data or {}).get("content", ()) if isinstance(block, Mapping)]
    lines = [seen._replace(data=None).for_model()]
    others = []
    for block in blocks:
        words = block.get("text")
        if block.get("type") == "text" and isinstance(words, str):
            lines.extend(fence(words, seen.call_id, seen.trust))
        elif block.get("type") == "resource":
            others.append(_document(thaw(block), seen))
        elif block.get("type") in ("image", "audio", "resource_link"):
            others.append(thaw(block))
    if not blocks and seen.data:  # too large to be shown: a summary stands for it
        lines = [seen.for_model()]
    return [{"type": "text", "text": "\n".join(lines)}, *others]


def _document(block: dict[str, Any], seen: Observation) -> dict[str, Any]:
    """A document's text is for the model, too, and is data as any other."""
    held = block.get("resource")
    if isinstance(held, dict) and isinstance(held.get("text"), str):
        held["text"] = "\n".join(fence(held["text"], seen.call_id, seen.trust))
    return block
