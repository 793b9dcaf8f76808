"""Incidents as tests: a recorded call, with everything that its decision depended on, as a file.

The file says what should have been decided. `check_incident` decides the call again under the
contracts and the policy of today. Values that were redacted stay redacted.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from io import StringIO
from pathlib import Path
from typing import Any, Final, NoReturn

from pydantic_core import to_jsonable_python
from ruamel.yaml import YAML

from counterseal.audit import CallFields, Event, EventType
from counterseal.call.capture import PRINCIPAL, RUN, Capture
from counterseal.documents import Document, read_document
from counterseal.errors import ContractError, CountersealError, Problem
from counterseal.evaluation.recording import CallVerdict, RecordedCall
from counterseal.evaluation.replay import Judged, Rules, judge
from counterseal.ledger.records import Held, HeldStatus

KIND: Final = "recorded call"
_VERDICTS: Final = ("allow", "deny", "ask", "repeat")
_SECRETS: Final = ("sealed", "token")
_HEAD: Final = """\
# A recorded call as a test: `counterseal replay --case FILE` decides it again.
# `expect` is the decision on record. Write the one that is right if that was the incident.
"""


def incident_text(call: RecordedCall) -> str:
    """Return a recorded call as the text of a test file. CountersealError if a part is missing."""
    if call.capture is None or call.lacks:
        raise CountersealError(f"{call.call_id} can't be made a test: {call.lacks}")
    kept = call.capture._asdict()
    names = {"principal": PRINCIPAL, "run": RUN}
    for name, parts in names.items():
        kept[name] = dict(zip(parts, kept[name], strict=True))
    data: dict[str, Any] = {
        "kind": KIND,
        "call_id": call.call_id,
        "expect": {name: value for name, value in call.outcome._asdict().items() if value},
        "capture": {name: value for name, value in kept.items() if value not in (None, (), [], {})},
    }
    if call.held is not None:
        held = asdict(call.held)
        data["approval"] = {name: held[name] for name in held if name not in _SECRETS}
    yaml, stream = YAML(), StringIO()
    yaml.width = 100
    yaml.representer.ignore_aliases = lambda *_: True
    yaml.dump(to_jsonable_python(data), stream)
    return _HEAD + stream.getvalue()


def read_incident(path: Path) -> RecordedCall:
    """Return the recorded call of a test file. ContractError says what is wrong with the file."""
    document = read_document(path)
    data = document.data
    if not isinstance(data, dict) or data.get("kind") != KIND:
        _refuse(document, "/kind", f"must be {KIND!r}, as `counterseal replay --as-case` writes it")
    expect = data.get("expect")
    if not isinstance(expect, dict) or expect.get("verdict") not in _VERDICTS:
        _refuse(document, "/expect/verdict", f"must be one of {', '.join(_VERDICTS)}")
    try:
        kept = dict(data["capture"])
        kept["principal"] = [kept["principal"].get(name) for name in PRINCIPAL]
        kept["run"] = [kept["run"].get(name) for name in RUN]
        defaults: dict[str, Any] = {"contract_hash": None, "policy_version": None}
        capture, held = Capture(**{**defaults, **kept}), data.get("approval")
        caller = CallFields(
            *(capture.principal[0], capture.run[0], str(data["call_id"])),
            *(str(capture.proposal["tool"]), "", *capture.principal[1:3], ""),
        )
        return RecordedCall(
            event_id="",
            event=Event(EventType.REQUESTED, caller, capture.now, ""),
            outcome=CallVerdict(**expect),
            capture=capture,
            held=None if held is None else _held(held),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        _refuse(document, "/capture", f"is not as it was written: {type(error).__name__} {error}")


def check_incident(path: Path, rules: Rules) -> Judged:
    """Decide the recorded call of a test file again. It passes if `now` is `call.outcome`."""
    return judge(read_incident(path), rules)


def _held(record: dict[str, Any]) -> Held:
    known = {one.name for one in fields(Held)}
    values = {name: value for name, value in record.items() if name in known}
    votes, status = tuple(values.get("votes", ())), HeldStatus(values["status"])
    return Held(**{**values, "votes": votes, "status": status, "sealed": b""})


def _refuse(document: Document, place: str, message: str) -> NoReturn:
    source = document.source(place)
    raise ContractError(
        [Problem(rule="recorded-call", message=f"{place[1:]} {message}", source=source)]
    )
