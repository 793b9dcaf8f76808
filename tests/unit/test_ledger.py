"""Keys, and what a second request under one gets."""

import hashlib
import re

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from counterseal import Proposal
from counterseal.canonical import canonical
from counterseal.ledger.entry import (
    Answer,
    Entry,
    EntryStatus,
    Phase,
    derive_key,
    destination_key,
    duplicate,
    request_hash,
)
from counterseal.testing import fake_tool, someone

KEYED = {
    "type": "object",
    "properties": {
        "case_id": {"type": "string", "maxLength": 9, "description": "The case."},
        "note": {"type": "string", "maxLength": 9, "description": "A note."},
    },
    "additionalProperties": False,
}


def contract(name="save_draft", **more):
    return fake_tool(name, effect="draft", input_schema=KEYED, **more).contract


PLAIN, BUSINESS = contract(), contract(business_key=["case_id"])
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**53) + 1, 2**53 - 1), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
objects = st.dictionaries(st.text(max_size=5), values, max_size=5)


def key(
    declared=PLAIN,
    arguments=None,
    *,
    run_id="run_1",
    began=1_700_000_000.0,
    user="u_1",
    tenant="acme",
    **proposed,
):
    given_arguments = {"case_id": "c1"} if arguments is None else arguments
    proposal = Proposal(tool=declared.name, arguments={}, **proposed)
    return derive_key(
        declared, proposal, someone(tenant=tenant, user=user), run_id, began, given_arguments
    )


# --- the derived key ------------------------------------------------------------------------------

PARTS = {
    "time": {"began": 1_700_000_001.0},
    "workflow": {"workflow_id": "wf_2"},
    "run": {"run_id": "run_2"},
    "tenant": {"tenant": "other"},
    "user": {"user": "u_2"},
    "no user": {"user": None},
    "tool": {"declared": contract("save_other")},
    "version": {"declared": contract(version="1.0.1")},
    "operation": {"operation_id": "op_2"},
    "arguments": {"arguments": {"case_id": "c2"}},
}


def test_a_destination_knows_a_call_whenever_its_run_began():
    keys = [key(began=time) for time in (1_700_000_000.0, 1_800_000_000.0)]
    assert len({destination_key("acme", one) for one in keys}) == 1
    other = key(arguments={"case_id": "c2"})
    assert destination_key("acme", other) != destination_key("acme", keys[0])


def test_derived_keys_lie_in_the_order_in_which_their_runs_began():
    times = [1.0, 999_999_999.5, 1_700_000_000.0, 1_700_000_000.001, 4_000_000_000.0]
    keys = [key(run_id=f"run_{n}", began=time) for n, time in enumerate(times)]
    assert keys == sorted(keys)
    assert len({len(one) for one in keys}) == 1


@pytest.mark.parametrize("part", PARTS)
def test_a_derived_key_changes_with_every_part_of_the_call(part):
    assert key(**PARTS[part]) != key()


def test_no_two_changes_of_a_call_give_the_same_key():
    keys = {key(**change) for change in PARTS.values()}
    assert len(keys) == len(PARTS)


def test_call_id_trace_and_approval_are_no_part_of_the_key():
    first = key(call_id="call_1", trace="00-" + "a" * 32 + "-" + "b" * 16 + "-01")
    assert first == key(call_id="call_2", expected_version=3, approval="token")


words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=4)


@given(texts=st.lists(words, min_size=4, max_size=4), other=st.data())
def test_parts_can_not_be_shifted_into_one_another(texts, other):
    def of(workflow, run, user, operation):
        return key(workflow_id=workflow, run_id=run, user=f"u{user}", operation_id=operation)

    moved = other.draw(st.permutations(texts))
    assume(moved != texts)
    assert of(*moved) != of(*texts)


@given(arguments=objects, data=st.data())
def test_the_order_of_arguments_does_not_matter(arguments, data):
    shuffled = dict(data.draw(st.permutations(list(arguments.items()))))
    assert request_hash(shuffled) == request_hash(arguments)
    assert key(arguments=shuffled) == key(arguments=arguments)


@given(
    arguments=st.dictionaries(
        st.text(max_size=5),
        st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(max_size=20),
        max_size=4,
    )
)
@example({"b": '\x00\x1f\x7f\\"/\b\t\n\f\r', "a": None, "B": -(2**53) + 1, "é": "é"})
def test_the_hash_is_that_of_the_canonical_form_however_plain_the_arguments_are(arguments):
    assert request_hash(arguments) == hashlib.sha256(canonical(arguments)).digest()


@given(tenant=words, name=words)
@example("é", '\x00\x1f\x7f\\"/\b\t\n\f\r\u2028')
def test_a_key_is_that_of_the_canonical_form_whatever_is_written_in_it(tenant, name):
    hashed = hashlib.sha256(canonical([tenant, name])).hexdigest()
    assert destination_key(tenant, name) == f"cs_{hashed[:40]}"


@pytest.mark.parametrize("arguments", [{1: "a"}, {"a": 2**53 + 1}, {"a": {None: 1}}])
def test_what_is_no_json_has_no_hash(arguments):
    with pytest.raises(ValueError, match=r"."):
        request_hash(arguments)


@given(first=objects, second=objects)
def test_other_arguments_are_another_request(first, second):
    # JSON has one kind of number, and Python's `True == 1` is not JSON's.
    assume(repr(sorted(first.items(), key=repr)) != repr(sorted(second.items(), key=repr)))
    assume(first != second)
    assert request_hash(first) != request_hash(second)


def test_a_yes_is_not_a_one():
    assert request_hash({"n": True}) != request_hash({"n": 1})


# --- the caller's key and the business key --------------------------------------------------------


@pytest.mark.parametrize("part", [part for part in PARTS if part not in ("tool", "arguments")])
@pytest.mark.parametrize("business", [False, True], ids=["callers", "business"])
def test_a_named_operation_is_the_same_in_every_run_and_version(part, business):
    change = dict(PARTS[part])
    version = change.pop("declared", PLAIN).version
    if business:
        declared = contract(business_key=["case_id"], version=version)
        assert key(declared, **change) == key(BUSINESS)
    else:
        assert key(contract(version=version), key="k", **change) == key(key="k")


@given(arguments=objects)
def test_a_callers_key_does_not_depend_on_the_payload(arguments):
    assert key(arguments=arguments, key="k") == key(key="k")


@given(note=values)
def test_a_business_key_depends_on_its_own_arguments_only(note):
    assert key(BUSINESS, {"case_id": "c1", "note": note}) == key(BUSINESS, {"case_id": "c1"})


@given(first=values, second=values)
def test_a_business_key_tells_its_arguments_apart(first, second):
    assume(repr(first) != repr(second) and first != second)
    assert key(BUSINESS, {"case_id": first}) != key(BUSINESS, {"case_id": second})


def test_an_argument_that_is_left_out_is_the_same_operation_as_its_default():
    first = {"type": "integer", "default": 1, "description": "Which revision."}
    schema = {**KEYED, "properties": {**KEYED["properties"], "revision": first}}
    made = fake_tool("save", effect="draft", input_schema=schema, business_key=["revision"])
    keys = [key(made.contract, given) for given in ({}, {"revision": 1}, {"revision": 2})]
    assert keys[0] == keys[1] != keys[2]


def test_a_callers_key_goes_before_the_business_key():
    assert key(BUSINESS, key="k") == key(contract(), key="k") != key(BUSINESS)


def test_named_keys_of_two_tools_do_not_meet():
    other = contract("save_other")
    assert key(other, key="k") != key(key="k")
    assert key(contract("save_other", business_key=["case_id"])) != key(BUSINESS)


@given(chosen=st.text(max_size=80))
def test_a_caller_can_not_choose_a_key_of_another_kind(chosen):
    derived, business = key(), key(BUSINESS)
    for wanted in (chosen, derived, business, f"save_other:{chosen}"):
        assert key(key=wanted) not in (derived, business, key(contract("save_other"), key=chosen))


# --- duplicates -----------------------------------------------------------------------------------

ENTRY = Entry(
    tenant="acme",
    key="k",
    request_hash=b"r",
    status=EntryStatus.PENDING,
    phase=Phase.RESERVED,
    call_id="call_1",
    run_id="run_1",
    tool="save_draft",
    version="1.0.0",
)
ANSWERS = {
    EntryStatus.PENDING: Answer.IN_PROGRESS,
    EntryStatus.COMPLETED: Answer.REPEAT,
    EntryStatus.FAILED_RETRYABLE: Answer.EXECUTE,
    EntryStatus.FAILED_FINAL: Answer.REPEAT,
    EntryStatus.COMPENSATED: Answer.REPEAT,
    EntryStatus.EXPIRED: Answer.EXPIRED,
}


def test_the_first_request_is_executed():
    assert duplicate(None, b"r") is Answer.EXECUTE


@pytest.mark.parametrize("status", EntryStatus)
def test_every_status_has_its_answer(status):
    assert duplicate(ENTRY._replace(status=status), b"r") is ANSWERS[status]


@pytest.mark.parametrize(
    "status", [one for one in EntryStatus if one is not EntryStatus.FAILED_RETRYABLE]
)
def test_another_payload_is_a_mismatch_as_long_as_something_may_be_bound_to_it(status):
    assert duplicate(ENTRY._replace(status=status), b"other") is Answer.MISMATCH


def test_a_key_of_which_nothing_came_is_free_for_a_mended_payload():
    free = ENTRY._replace(status=EntryStatus.FAILED_RETRYABLE)
    assert duplicate(free, b"r") is duplicate(free, b"other") is Answer.EXECUTE


def test_what_the_destination_refused_is_not_tried_again_unchanged():
    refused = ENTRY._replace(status=EntryStatus.FAILED_RETRYABLE, observation={"code": "no"})
    assert duplicate(refused, b"r") is Answer.REPEAT
    assert duplicate(refused, b"other") is Answer.EXECUTE


@pytest.mark.parametrize("phase", Phase)
def test_a_pending_entry_is_never_run_again_in_any_phase(phase):
    assert duplicate(ENTRY._replace(phase=phase), b"r") is Answer.IN_PROGRESS


def test_tenants_that_share_a_destination_share_no_key_there():
    ours, theirs = (destination_key(tenant, "call:charge:order-17") for tenant in ("acme", "other"))
    assert ours != theirs
    assert ours == destination_key("acme", "call:charge:order-17")
    assert re.fullmatch(r"cs_[0-9a-f]{40}", ours)


@pytest.mark.parametrize("key", ["ключ", "a\nb", "x" * 10_000])
def test_a_destination_gets_a_key_that_fits_any_header(key):
    assert re.fullmatch(r"[\x21-\x7e]{1,64}", destination_key("acme", key))
