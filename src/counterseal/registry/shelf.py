"""Records by name and version. Versions of one tool stand side by side, newest first."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator

from counterseal.errors import RegistryError
from counterseal.registry.records import RegistryRecord, parse_version, shown

__all__ = ["Shelf"]


class Shelf:
    """Finding one record costs the same however many tools there are."""

    def __init__(self) -> None:
        self._lines: dict[str, tuple[RegistryRecord, ...]] = {}
        self._by_version: dict[tuple[str, str], RegistryRecord] = {}

    def __iter__(self) -> Iterator[RegistryRecord]:
        for _, line in sorted(self._lines.items()):
            yield from line

    def versions(self, name: str) -> tuple[RegistryRecord, ...]:
        return self._lines.get(name, ())

    def find(self, name: str, version: str) -> RegistryRecord | None:
        found = self._by_version.get((name, version))
        if found is not None or len(version) > 64:  # a caller's text; no version needs more
            return found
        parsed = parse_version(version)
        return next((one for one in self.versions(name) if one.parsed == parsed), None)

    def get(self, name: str, version: str | None = None) -> tuple[RegistryRecord, ...]:
        """One version, or all of them. RegistryError says what there is instead."""
        if version is None:
            found = self.versions(name)
        else:
            record = self.find(name, version)
            found = () if record is None else (record,)
        if not found:
            raise RegistryError(self._nothing(name, version))
        return found

    def put(self, records: Iterable[RegistryRecord]) -> None:
        """Add records, each in place of the one with its name and version if there is one."""
        for record in records:
            others = (one for one in self.versions(record.name) if one.parsed != record.parsed)
            line = sorted((*others, record), key=lambda one: one.parsed, reverse=True)
            self._lines[record.name] = tuple(line)
            self._by_version[record.name, record.version] = record

    def _nothing(self, name: str, version: str | None) -> str:
        line = self.versions(name)
        if line:
            known = ", ".join(record.version for record in line)
            return f"there is no version {shown(version)} of {name}; there is {known}"
        close = difflib.get_close_matches(name, self._lines, n=1)
        return f"there is no tool {shown(name)}" + (f"; is {close[0]} meant?" if close else "")
