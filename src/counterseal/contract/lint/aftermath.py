"""Rules on what comes after a call: the look at the world, the way back, what is kept.

Whether a compensation tool can be called with what there is needs its contract too, and is found
out at registration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from counterseal.contract.bindings import texts
from counterseal.contract.fill import FillingError, Reference, references
from counterseal.contract.lint.base import Breach, breach, rule
from counterseal.contract.model import Contract
from counterseal.contract.schemas import Presence, presence, properties_of

_LOST = {"expected": "nothing is compared", "compensation": "the call can't be reversed"}
"""The fields that hold templates, and what happens when one can't be filled."""

Place = tuple[str | int, ...]


def _references(contract: Contract) -> Iterator[tuple[Place, Reference | FillingError]]:
    for field in _LOST:
        for place, text in texts(getattr(contract, field), (field,)):
            try:
                for reference in references(text):
                    yield place, reference
            except FillingError as error:
                yield place, error


def _schema(contract: Contract, reference: Reference) -> Mapping[str, Any]:
    affordance = contract.affordance
    return affordance.input_schema if reference.source == "argument" else affordance.output_schema


@rule("reference-unknown", "expected and compensation name arguments and output fields that exist")
def reference_unknown(contract: Contract) -> Iterator[Breach]:
    for place, found in _references(contract):
        if isinstance(found, FillingError):
            yield breach(place, str(found), "Write {argument} or {output.field}.")
        elif presence(_schema(contract, found), found.path) in (
            Presence.NEVER,
            Presence.UNDECLARED,
        ):
            yield _unknown(contract, place, found)


def _unknown(contract: Contract, place: Place, reference: Reference) -> Breach:
    kind, prefix = ("an argument", "") if reference.source == "argument" else ("output", "output.")
    known = [f"{{{prefix}{name}}}" for name in sorted(properties_of(_schema(contract, reference)))]
    return breach(
        place,
        f"{reference} is not declared as {kind} of {contract.name}",
        f"Use one of: {', '.join(known) or 'none are declared'}.",
    )


@rule("reference-optional", "expected and compensation name what is always there", warning=True)
def reference_optional(contract: Contract) -> Iterator[Breach]:
    for place, found in _references(contract):
        if isinstance(found, FillingError):
            continue  # reported by reference-unknown
        if presence(_schema(contract, found), found.path) is Presence.SOMETIMES:
            yield breach(
                place,
                f"{found} may be left out, and then {_LOST[str(place[0])]}",
                "Make it required, or do without it here.",
            )


@rule("expected-unprobed", "expected state is read by a probe")
def expected_unprobed(contract: Contract) -> Iterator[Breach]:
    if contract.expected is not None and contract.probe is None:
        yield breach(
            "/expected",
            "says what the world is like afterwards, but there is no probe to look at it",
            "Declare a probe: a read-only tool or function that reads the resource.",
        )


@rule("verification-blind", "verification has something to look with", warning=True)
def verification_blind(contract: Contract) -> Iterator[Breach]:
    if contract.effect is None:
        return  # whether it must be verified is not known yet
    required = contract.transactional.post_action_verification_required
    if required and contract.probe is None and contract.read_back is None:
        yield breach(
            "/probe",
            "nobody will look: neither probe nor read_back",
            "Its calls must be verified: declare a probe and what is `expected`, or a read_back.",
        )


@rule("compensation-unused", "compensation arguments have a tool to go to")
def compensation_unused(contract: Contract) -> Iterator[Breach]:
    if contract.compensation is not None and not contract.transactional.compensation_tool:
        yield breach(
            "/compensation",
            "says with what a call is reversed, but not by which tool",
            "Name it in transactional.compensation_tool.",
        )


@rule("keep-reads-unused", "keep_reads is about calls that go into no ledger", warning=True)
def keep_reads_unused(contract: Contract) -> Iterator[Breach]:
    if contract.keep_reads is not None and contract.idempotency.required:
        yield breach(
            "/keep_reads",
            f"is {contract.keep_reads}, but its calls have keys: the ledger has what they returned",
            "Take it out.",
        )
