"""What is kept of a read: what the model saw of it, as much of it as there is room for."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_core import from_json, to_json

from counterseal.codes import RESPONSES, Code
from counterseal.observation import FieldError, Observation, Redaction
from counterseal.observation.observation import open_read, pack_read

MOST = 16_384


def seen(data, code=Code.SUCCESS, **more):
    response = RESPONSES[code]
    return Observation(
        "look_up", "1.0.0", "call_1", code, response, response.next_action, 7.0, data, **more
    )


def test_a_short_one_is_kept_as_it_was_seen():
    shown = seen({"token": "[redacted:token]"}, redactions=(Redaction("token", "/token"),))
    kept = open_read(pack_read(shown, MOST))
    assert (kept.text, kept.cut) == (shown.for_model(), "")
    assert kept.record["result_payload"]["data"] == {"token": "[redacted:token]"}
    assert kept.record["redactions"] == [{"rule": "token", "pointer": "/token", "count": 1}]


def test_a_failure_is_kept_too():
    wrong = FieldError("", "The service does not answer.", "TIMEOUT")
    shown = seen(None, Code.TIMEOUT, errors=(wrong,), retry_after=3.0)
    assert open_read(pack_read(shown, MOST)).text == shown.for_model()


def test_neither_gates_nor_the_way_to_the_raw_output_are_kept():
    class Decided:
        def record(self):
            return {"gate": "policy", "rule": "for people only"}

    packed = pack_read(seen({"n": 1}, raw="vault:call_1/0", decisions=(Decided(),)), MOST)
    assert b"vault:" not in packed
    assert b"for people only" not in packed


def test_a_long_one_is_cut_and_says_how_much_is_missing():
    shown = seen({"rows": ["a row of many"] * 5000, "n": 1})
    whole = shown.for_model()
    packed = pack_read(shown, 1024)
    kept = open_read(packed)
    assert whole.startswith(kept.text)
    assert kept.cut == f"Only the first 1,024 of its {len(whole):,} bytes are kept."
    data = kept.record["result_payload"]["data"]
    assert (data["truncated"], data["fields"]) == (True, 2)
    assert len(packed) < 4096


@given(
    st.dictionaries(st.text(max_size=5), st.text(max_size=300), max_size=6),
    st.integers(1024, 2048),
)
@settings(max_examples=60, deadline=None)
def test_whatever_is_kept_is_a_beginning_of_what_was_read(data, most):
    shown = seen(data)
    kept = open_read(pack_read(shown, most))
    assert shown.for_model().startswith(kept.text)
    assert len(kept.text.encode()) <= most
    assert bool(kept.cut) is (kept.text != shown.for_model())


WHOLE = from_json(pack_read(seen({"n": 1}), MOST))


@pytest.mark.parametrize(
    "kept",
    [
        b"",
        b"\xff",
        b"[]",
        b"null",
        b'{"n": 1}',
        to_json({"record": []}),
        to_json({"record": {**WHOLE["record"], "status": {"taxonomy_class": "NO_SUCH"}}}),
        to_json({"record": {**WHOLE["record"], "redactions": [{"what": 1}]}}),
        to_json({**WHOLE, "text": "a"}),
        to_json({**WHOLE, "text": "a", "bytes": "many"}),
    ],
)
def test_what_is_no_kept_read_is_refused_and_breaks_nothing(kept):
    with pytest.raises(ValueError, match="not a kept observation"):
        open_read(kept)
