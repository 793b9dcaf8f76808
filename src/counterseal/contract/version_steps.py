"""The steps from one set of contracts to another, and what a person has to decide about them.

`diff` says what changed between two contracts. This module pairs the contracts by tool and version,
and finds versions that rose too little for their changes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from packaging.version import InvalidVersion, Version

from counterseal.contract.diff import BUMP_MISSING, Bump, Compatibility, ContractChange, diff
from counterseal.contract.model import Contract


class Versioned(Protocol):
    """A contract, or a record of one."""

    @property
    def version(self) -> str: ...


V = TypeVar("V", bound=Versioned)


def bump_made(old: str, new: str) -> Bump:
    """Return which part of a version rose; NONE if none did, or it is not a version like 1.4.0."""
    try:
        before, after = Version(old), Version(new)
    except InvalidVersion:
        return Bump.NONE
    if after <= before:
        return Bump.NONE
    if (after.epoch, after.major) > (before.epoch, before.major):
        return Bump.MAJOR
    return Bump.MINOR if after.minor > before.minor else Bump.PATCH


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionStep:
    """A tool's contract before and after. `old` is None for a new tool, `new` for a removed one."""

    old: Contract | None
    new: Contract | None
    changes: tuple[ContractChange, ...]

    @property
    def tool(self) -> str:
        return self._contract.name

    @property
    def version(self) -> str:
        """The version that the step leads to; of a removed tool, the version that it had."""
        return self._contract.version

    @property
    def _contract(self) -> Contract:
        contract = self.new or self.old
        if contract is None:
            raise ValueError("a step has an old or a new contract")
        return contract

    @property
    def made(self) -> Bump:
        """The part of the version that rose. MAJOR for a tool that came or went."""
        if self.old is None or self.new is None:
            return Bump.MAJOR
        return bump_made(self.old.version, self.new.version)


def needed_bump(changes: Iterable[ContractChange]) -> Bump:
    """Return the part of a version that has to rise because of these changes."""
    return max((change.meaning.bump for change in changes), default=Bump.NONE)


def undecided(step: VersionStep, allowed: Collection[str] = ()) -> tuple[ContractChange, ...]:
    """Return the changes that a person has to decide about, without the ids that are allowed.

    These are changes for guardians, a tool that is gone, and a version that rose too little. A
    break that its version announces needs no decision: that is what versions are for.
    """
    left = [change for change in step.changes if change.id not in allowed]
    found = [
        change
        for change in left
        if change.meaning.guardians is Compatibility.GOVERNANCE_REVIEW
        or change.id == "tool-removed"
    ]
    needed = needed_bump(left)
    if step.old and needed > step.made and BUMP_MISSING not in allowed:
        text = f"needs a new {needed.name.lower()} version, {next_version(step.old, needed)}"
        values = {"before": step.old.version, "after": step.version}
        place = "/identity/version"
        found.append(ContractChange(id=BUMP_MISSING, pointer=place, message=text, **values))
    return tuple(found)


def next_version(contract: Contract, bump: Bump) -> str:
    """Return the version after a contract's, with one part raised."""
    version = _order(contract.version)
    major, minor, patch = version.major, version.minor, version.micro
    if bump is Bump.MAJOR:
        return f"{major + 1}.0.0"
    return f"{major}.{minor + 1}.0" if bump is Bump.MINOR else f"{major}.{minor}.{patch + 1}"


def version_steps(old: Iterable[Contract], new: Iterable[Contract]) -> list[VersionStep]:
    """Pair two sets of contracts by name, and return the pairs that differ, by name.

    Each new version is compared with the old contract of that version, else with the version before
    it, else with the oldest one. Versions that are in both sets and equal give no step.
    """
    before, after = _by_name(old), _by_name(new)
    steps = []
    for name in sorted({**before, **after}):
        olds, news = before.get(name, []), after.get(name, [])
        for contract in news:
            base = baseline(contract.version, olds)
            changes = _added(contract) if base is None else diff(base, contract)
            if changes:
                steps.append(VersionStep(old=base, new=contract, changes=changes))
        if not news:
            gone = olds[-1]
            text = f"{name} {gone.version} is no longer declared"
            change = ContractChange(id="tool-removed", message=text, before=gone.version)
            steps.append(VersionStep(old=gone, new=None, changes=(change,)))
    return steps


def baseline(version: str, others: Iterable[V]) -> V | None:
    """Return the item that a version of a tool is compared with; None if there are no others.

    That is the last item of the same version, else of the version before, else of the oldest.
    """
    line = sorted(others, key=lambda one: _order(one.version))
    same_or_older = [one for one in line if _order(one.version) <= _order(version)]
    return same_or_older[-1] if same_or_older else next(iter(line), None)


def _added(contract: Contract) -> tuple[ContractChange, ...]:
    text = f"{contract.name} {contract.version} is new"
    return (ContractChange(id="tool-added", message=text, after=contract.version),)


def _by_name(contracts: Iterable[Contract]) -> dict[str, list[Contract]]:
    """Return the contracts of each tool, oldest version first."""
    lines: defaultdict[str, list[Contract]] = defaultdict(list)
    for contract in contracts:
        lines[contract.name].append(contract)
    return {name: sorted(line, key=lambda one: _order(one.version)) for name, line in lines.items()}


def _order(version: str) -> Version:
    """Return a version in its comparable form; one that is not like 1.4.0 comes first."""
    try:
        return Version(version)
    except InvalidVersion:
        return Version("0.dev0")
