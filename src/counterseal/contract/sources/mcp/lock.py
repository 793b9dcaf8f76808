"""What people have accepted, kept in `counterseal.lock`: definitions, and exceptions to findings.

The file has the full definitions, so that later changes can be shown. It is JSON with sorted keys.
Invisible characters are written as escapes. A `Lock` is immutable: `accept` and `forget` return a
new one. `Lock.update` applies a change under a file lock, so that concurrent changes are kept.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

import jiter

from counterseal.contract.sources.foreign_text import is_hidden
from counterseal.contract.sources.mcp.definition import Definition
from counterseal.errors import CountersealError

if os.name == "posix":
    import fcntl

FORMAT: Final = 1
_POSIX: Final = os.name == "posix"
MAX_BYTES: Final = 64 * 1024 * 1024
_PIN_FIELDS: Final = ("accepted_at", "accepted_by", "definition", "hash", "revision")


class LockError(CountersealError):
    """The lock can't be read or written; the message has the file, the place in it and the fix."""


class Pin(NamedTuple):
    """An accepted definition."""

    definition: Definition
    revision: int
    """The number of definitions of this tool that were accepted, including this one."""
    accepted_at: str
    accepted_by: str


class ExceptionRecord(NamedTuple):
    """A change of a contract that a person allowed, for one version and until a day."""

    change: str
    """The id of the change, such as `scope-dropped`."""
    tool: str
    version: str
    """The version that the change leads to; a later version needs a record of its own."""
    owner: str
    reason: str
    made_on: str
    ends_on: str
    """The last day on which it holds, in UTC: `2027-01-31`."""

    def holds(self, today: date) -> bool:
        return today <= date.fromisoformat(self.ends_on)


class PinState(StrEnum):
    ACCEPTED = "accepted"
    CHANGED = "changed"
    NEW = "new"
    GONE = "gone"


class LockFinding(NamedTuple):
    """The state of a listed or pinned tool, compared with its pin."""

    server: str
    tool: str
    state: PinState
    pin: Pin | None
    definition: Definition | None


@dataclass(frozen=True, slots=True)
class Lock:
    """The pins of every upstream, by the upstream's and the tool's name; and all exceptions."""

    servers: Mapping[str, Mapping[str, Pin]] = field(default_factory=dict)
    exceptions: tuple[ExceptionRecord, ...] = ()

    @classmethod
    def load(cls, path: str | Path) -> Lock:
        """Return the file's lock; an empty one if there is no file. LockError names the place."""
        try:
            raw = Path(path).read_bytes()
        except FileNotFoundError:
            return cls()
        except OSError as error:
            raise LockError(f"{path}: can't be read: {error.strerror}") from None
        if len(raw) > MAX_BYTES:
            raise LockError(f"{path}: {len(raw):,} bytes long; at most {MAX_BYTES:,} are read")
        return _read(str(path), raw)

    @classmethod
    def update(cls, path: str | Path, change: Callable[[Lock], Lock]) -> Lock:
        """Change the file under an exclusive lock. Return the changed lock."""
        file = Path(path).resolve()
        with _exclusive(file):
            before = cls.load(file)
            after = change(before)
            if after != before or not file.exists():
                _write(file, after.record())
        return after

    def pin(self, server: str, tool: str) -> Pin | None:
        return self.servers.get(server, {}).get(tool)

    def compare(self, server: str, definitions: Iterable[Definition]) -> list[LockFinding]:
        """Return a finding for each listed or pinned tool, sorted by name."""
        by_name = {definition.name: definition for definition in definitions}
        pins = self.servers.get(server, {})
        findings = []
        for name in sorted({*by_name, *pins}):
            pin, definition = pins.get(name), by_name.get(name)
            if definition is None:
                state = PinState.GONE
            elif pin is None:
                state = PinState.NEW
            else:
                same = pin.definition == definition
                state = PinState.ACCEPTED if same else PinState.CHANGED
            findings.append(LockFinding(server, name, state, pin, definition))
        return findings

    def accept(self, server: str, definition: Definition, *, by: str, at: str) -> Lock:
        """Return a lock with this definition pinned, or this lock if it is pinned already."""
        pin = self.pin(server, definition.name)
        if pin is not None and pin.definition == definition:
            return self
        revision = 1 if pin is None else pin.revision + 1
        accepted = Pin(definition, revision, accepted_at=at, accepted_by=by)
        pins = {**self.servers.get(server, {}), definition.name: accepted}
        return replace(self, servers={**self.servers, server: pins})

    def forget(self, server: str, tool: str) -> Lock:
        """Return a lock without this tool."""
        pins = {name: pin for name, pin in self.servers.get(server, {}).items() if name != tool}
        others = {name: kept for name, kept in self.servers.items() if name != server}
        return replace(self, servers={**others, server: pins} if pins else others)

    def allowed(self, tool: str, version: str, today: date) -> dict[str, ExceptionRecord]:
        """Return the exceptions that hold for a version, by the id of the change."""
        return {
            one.change: one
            for one in self.exceptions
            if (one.tool, one.version) == (tool, version) and one.holds(today)
        }

    def allow(self, *records: ExceptionRecord) -> Lock:
        """Return a lock with these exceptions; each replaces the one for the same change."""
        kept = {one[:3]: one for one in (*self.exceptions, *records)}
        return replace(self, exceptions=tuple(kept[key] for key in sorted(kept)))

    def record(self) -> dict[str, Any]:
        """Return the lock as it is written to the file."""
        exceptions = [one._asdict() for one in self.exceptions]
        return {
            "version": FORMAT,
            **({"exceptions": exceptions} if exceptions else {}),
            "servers": {
                server: {
                    name: {
                        "hash": pin.definition.hash,
                        "revision": pin.revision,
                        "accepted_at": pin.accepted_at,
                        "accepted_by": pin.accepted_by,
                        "definition": pin.definition.record(),
                    }
                    for name, pin in pins.items()
                }
                for server, pins in self.servers.items()
            },
        }


def _read(name: str, raw: bytes) -> Lock:
    try:
        data = jiter.from_json(raw, catch_duplicate_keys=True)  # a merge can leave duplicates
    except ValueError as error:
        fix = "restore it from version control, or repair it (check for merge conflict markers)"
        raise LockError(f"{name}: not valid JSON: {str(error)[:200]}; {fix}") from None
    if not isinstance(data, dict) or not isinstance(data.get("servers"), dict):
        raise LockError(f"{name}: not a lock file: `servers` is missing")
    if data.get("version") != FORMAT:
        shown = str(data.get("version"))[:20]
        raise LockError(f"{name}: format version {shown}; this counterseal reads {FORMAT}")
    servers: dict[str, dict[str, Pin]] = {}
    for server, pins in data["servers"].items():
        if not isinstance(pins, dict):
            raise LockError(f"{name}: {server}: must be an object with a pin for each tool")
        for tool, pin in pins.items():
            place = f"{name}: {server} {tool}"
            servers.setdefault(server, {})[tool] = _read_pin(place, tool, pin)
    exceptions = data.get("exceptions", [])
    if not isinstance(exceptions, list):
        raise LockError(f"{name}: exceptions: must be a list")
    return Lock(servers, tuple(_read_exception(name, item) for item in exceptions))


def _read_exception(name: str, data: Any) -> ExceptionRecord:
    needed = ", ".join(ExceptionRecord._fields)
    again = "correct it, or record it again: `counterseal diff OLD NEW --allow ID --because TEXT`"
    if not isinstance(data, dict) or set(data) != set(ExceptionRecord._fields):
        raise LockError(f"{name}: an exception needs exactly {needed}; {again}")
    texts = all(isinstance(value, str) and value.strip() for value in data.values())
    if not texts or not _is_day(data["ends_on"]):
        fault = "every field must be a text, and ends_on a day such as 2027-01-31"
        raise LockError(f"{name}: exception of {str(data['tool'])[:80]}: {fault}; {again}")
    return ExceptionRecord(**data)


def _is_day(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _read_pin(place: str, tool: str, data: Any) -> Pin:
    again = (
        "restore the file from version control, or remove this pin from it and accept the tool "
        "again: `counterseal diff --accept`"
    )
    if not isinstance(data, dict) or sorted(data) != list(_PIN_FIELDS):
        raise LockError(f"{place}: a pin needs exactly {', '.join(_PIN_FIELDS)}; {again}")
    try:
        definition = Definition.of(data["definition"])
    except ValueError as error:
        raise LockError(f"{place}: invalid definition: {error}; {again}") from None
    if definition.name != tool or definition.record() != data["definition"]:
        raise LockError(f"{place}: the definition is not in its canonical form; {again}")
    if definition.hash != data["hash"]:
        raise LockError(f"{place}: the hash does not match the edited definition; {again}")
    revision, at, by = data["revision"], data["accepted_at"], data["accepted_by"]
    if type(revision) is not int or revision < 1 or not all(isinstance(v, str) for v in (at, by)):
        expected = "revision must be 1 or more, accepted_at and accepted_by must be strings"
        raise LockError(f"{place}: {expected}; {again}")
    return Pin(definition, revision, accepted_at=at, accepted_by=by)


def _write(file: Path, record: Mapping[str, Any]) -> None:
    text = json.dumps(record, indent=2, sort_keys=True, ensure_ascii=False)
    visible = re.sub(  # invisible characters are written as escapes, so that a reviewer sees them
        r"[^\x20-\x7e\n]",
        lambda match: json.dumps(match[0])[1:-1] if is_hidden(match[0]) else match[0],
        text,
    )
    try:
        _replace(file, visible.encode() + b"\n")
    except OSError as error:
        raise LockError(f"{file}: can't be written: {error.strerror}") from None


@contextmanager
def _exclusive(file: Path) -> Iterator[None]:
    """Hold an exclusive lock on the file's folder.

    The folder is locked and not the file, because a write replaces the file.
    """
    if not _POSIX:
        yield  # no file locks here: one of two concurrent changes may be lost
        return
    try:
        folder = os.open(file.parent, os.O_RDONLY)
    except OSError as error:
        raise LockError(f"{file}: can't be written: {error.strerror}") from None
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
        except OSError as error:
            raise LockError(f"{file.parent}: can't be locked: {error.strerror}") from None
        yield
    finally:
        os.close(folder)


def _replace(file: Path, data: bytes) -> None:
    part = file.with_name(f".{file.name}.{secrets.token_hex(8)}.part")
    out = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(out, "wb") as stream:
            stream.write(data)
            stream.flush()
            if file.exists():
                part.chmod(file.stat().st_mode & 0o7777)
            os.fsync(stream.fileno())
        part.replace(file)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    if _POSIX:
        folder = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
