"""An observation as the result of `tools/call`: content, text for the model, facts for programs.

A refusal is an error of the tool and never of the protocol: the model reads what is wrong and what
to do next, and a program finds the same under `_meta`. Redaction has happened before.
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

FACTS: Final = "counterseal/observation"
"""The key in a result's `_meta` under which a program finds the facts of its call."""
COMPLETE: Final = {"resultType": "complete"}
"""Part of every result of 2026-07-28; the SDK removes it for older clients."""


def tool_result(
    observation: Observation,
    contract: Contract | None,
    output: Validator | None,
    approval: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the result of `tools/call` as JSON. `approval` says where a person can decide."""
    if _has_blocks(observation, contract):
        content = _blocks(observation)
    else:
        content = [{"type": "text", "text": _text(observation, approval)}]
    facts = _facts(observation, approval)
    result: dict[str, Any] = {
        **COMPLETE,
        "content": content,
        "isError": not observation.ok,
        "_meta": {FACTS: facts},
    }
    structured = _structured(observation, facts, contract, output)
    if structured is not None:
        result["structuredContent"] = structured
    elif observation.ok and publishes_output(contract):
        # The output was shortened or redacted, and does not fit its published schema any more. A
        # client would refuse such a result; as an error, the model still reads what there is.
        result["isError"] = True
    return result


def publishes_output(contract: Contract | None) -> bool:
    """Return True if clients know the output schema, and check results against it."""
    if contract is None:
        return False
    schema = contract.affordance.output_schema
    return schema.get("type") == "object" and len(schema) > 1 and not is_blocks(schema)


def _has_blocks(observation: Observation, contract: Contract | None) -> bool:
    return contract is not None and observation.ok and is_blocks(contract.affordance.output_schema)


def _structured(
    observation: Observation,
    facts: Mapping[str, Any],
    contract: Contract | None,
    output: Validator | None,
) -> Any:
    """Return the structured content, or None if the published schema does not allow it.

    Clients check errors against the schema, too.
    """
    if _has_blocks(observation, contract):
        return None
    data = thaw(observation.data) if observation.ok else facts
    if data is None or not publishes_output(contract):
        return data
    return data if output is not None and output.is_valid(data) else None


def _text(observation: Observation, approval: Mapping[str, Any] | None) -> str:
    text = observation.for_model()
    if approval is None:
        return text
    return f"{text}\nA person decides at {approval['url']}; make the same call again after that."


def _facts(observation: Observation, approval: Mapping[str, Any] | None) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "call_id": observation.call_id,
        "trace_id": observation.trace_id,
        "code": observation.code.value,
        "replayed": observation.idempotency_hit,
    }
    if observation.ok:
        return facts
    facts |= {
        "response": {**observation.response.vector(), "next_action": observation.next_action},
        "path": observation.path.value if observation.path else None,
        "errors": [error.record() for error in observation.errors],
    }
    if observation.retry_after is not None:
        facts["retry_after"] = observation.retry_after
    if observation.approval_id is not None:
        facts["approval"] = dict(approval) if approval else {"id": observation.approval_id}
    return facts


def _blocks(observation: Observation) -> list[dict[str, Any]]:
    """Return content blocks: all texts in one, marked as data, and then the other blocks."""
    content = (observation.data or {}).get("content", ())
    blocks = [block for block in content if isinstance(block, Mapping)]
    lines = [observation._replace(data=None).for_model()]
    others = []
    for block in blocks:
        text = block.get("text")
        if block.get("type") == "text" and isinstance(text, str):
            lines.extend(fence(text, observation.call_id, observation.trust))
        elif block.get("type") == "resource":
            others.append(_resource(thaw(block), observation))
        elif block.get("type") in ("image", "audio", "resource_link"):
            others.append(thaw(block))
    if not blocks and observation.data:  # too large to be shown: a summary stands for it
        lines = [observation.for_model()]
    return [{"type": "text", "text": "\n".join(lines)}, *others]


def _resource(block: dict[str, Any], observation: Observation) -> dict[str, Any]:
    """Mark the text of an embedded resource as data, because the model reads it, too."""
    resource = block.get("resource")
    if isinstance(resource, dict) and isinstance(resource.get("text"), str):
        lines = fence(resource["text"], observation.call_id, observation.trust)
        resource["text"] = "\n".join(lines)
    return block
