"""Pins: the definitions that a person accepted, kept in `counterseal.lock`.

The file holds them in full, so that what changed since can be shown. It is JSON, in one order,
with what nobody could see in a review written as escapes. A lock in memory never changes: `accept`
and `forget` make another one, and `Lock.update` brings a change to the file without losing
somebody else's.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from counterseal.contract.sources.foreign_text import is_hidden
from counterseal.contract.sources.mcp.definition import Definition
from counterseal.errors import CountersealError

__all__ = ["Lock", "LockError", "LockFinding", "Pin", "PinState"]


if os.name == "posix":
    import fcntl

FORMAT: Final = 1
_POSIX: Final = os.name == "posix"
MAX_BYTES: Final = 64 * 1024 * 1024
_PIN_FIELDS: Final = ("accepted_at", "accepted_by", "definition", "hash", "revision")


class LockError(CountersealError):
    """The lock can't be read or written. Says which file, where in it, and what to do."""


class Pin(NamedTuple):
    """An accepted definition."""

    definition: Definition
    revision: int
    """How many definitions of this tool were accepted, this one included."""
    accepted_at: str
    accepted_by: str


class PinState(StrEnum):
    ACCEPTED = "accepted"
    CHANGED = "changed"
    NEW = "new"
    GONE = "gone"


class LockFinding(NamedTuple):
    """How what an upstream lists stands to what was accepted."""

    server: str
    tool: str
    state: PinState
    pin: Pin | None
    seen: Definition | None


class Lock:
    """The pins of every upstream."""

    __slots__ = ("_servers",)

    def __init__(self, servers: Mapping[str, Mapping[str, Pin]] | None = None) -> None:
        kept = {name: MappingProxyType(dict(pins)) for name, pins in (servers or {}).items()}
        self._servers = MappingProxyType({name: pins for name, pins in kept.items() if pins})

    @classmethod
    def load(cls, path: str | Path) -> Lock:
        """A file's pins; none where there is no file. LockError names the place of a fault."""
        try:
            raw = Path(path).read_bytes()
        except FileNotFoundError:
            return cls()
        except OSError as error:
            raise LockError(f"{path}: can't be read: {error.strerror}") from None
        if len(raw) > MAX_BYTES:
            raise LockError(f"{path}: {len(raw):,} bytes long; at most {MAX_BYTES:,} are read")
        return cls(_read(str(path), raw))

    @classmethod
    def update(cls, path: str | Path, change: Callable[[Lock], Lock]) -> Lock:
        """Change the file: nobody else does in between. Returns the lock as it is now."""
        file = Path(path).resolve()
        with _alone(file):
            before = cls.load(file)
            after = change(before)
            if after != before or not file.exists():
                _write(file, after.record())
        return after

    @property
    def servers(self) -> Mapping[str, Mapping[str, Pin]]:
        """Pins by the upstream's name, then by the tool's."""
        return self._servers

    def pin(self, server: str, tool: str) -> Pin | None:
        return self._of(server).get(tool)

    def _of(self, server: str) -> Mapping[str, Pin]:
        return self._servers.get(server) or {}

    def compare(self, server: str, seen: Iterable[Definition]) -> list[LockFinding]:
        """Each tool that is listed or pinned, by name. ValueError when one is listed twice."""
        listed = list(seen)
        for name, count in Counter(definition.name for definition in listed).items():
            if count > 1:
                raise ValueError(f"{server} lists the tool {name} {count} times")
        by_name = {definition.name: definition for definition in listed}
        pins = self._of(server)
        findings = []
        for name in sorted({*by_name, *pins}):
            pin, definition = pins.get(name), by_name.get(name)
            findings.append(LockFinding(server, name, _state(pin, definition), pin, definition))
        return findings

    def accept(self, server: str, definition: Definition, *, by: str, at: str) -> Lock:
        """A lock with this definition as the tool's; the same lock where it is already."""
        pin = self.pin(server, definition.name)
        if pin is not None and pin.definition == definition:
            return self
        revision = 1 if pin is None else pin.revision + 1
        made = Pin(definition, revision, accepted_at=at, accepted_by=by)
        return self._with(server, {**self._of(server), definition.name: made})

    def forget(self, server: str, tool: str) -> Lock:
        """A lock without this tool."""
        pins = self._of(server)
        return self._with(server, {name: pin for name, pin in pins.items() if name != tool})

    def save(self, path: str | Path) -> None:
        """Write the file: all of it, or nothing. What others wrote meanwhile is lost: `update`."""
        file = Path(path).resolve()
        with _alone(file):
            _write(file, self.record())

    def record(self) -> dict[str, Any]:
        """As it is written."""
        return {
            "version": FORMAT,
            "servers": {
                server: {name: _pin_record(pin) for name, pin in pins.items()}
                for server, pins in self._servers.items()
            },
        }

    def _with(self, server: str, pins: Mapping[str, Pin]) -> Lock:
        return Lock({**self._servers, server: pins})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lock) and self._servers == other._servers

    def __hash__(self) -> int:
        return hash(frozenset(self._servers))

    def __repr__(self) -> str:
        return f"<Lock of {sum(map(len, self._servers.values()))} tools>"


def _state(pin: Pin | None, seen: Definition | None) -> PinState:
    if seen is None:
        return PinState.GONE
    if pin is None:
        return PinState.NEW
    return PinState.ACCEPTED if pin.definition == seen else PinState.CHANGED


def _pin_record(pin: Pin) -> dict[str, Any]:
    return {
        "hash": pin.definition.hash,
        "revision": pin.revision,
        "accepted_at": pin.accepted_at,
        "accepted_by": pin.accepted_by,
        "definition": pin.definition.record(),
    }


# --- the file: reading ----------------------------------------------------------------------------


def _read(name: str, raw: bytes) -> dict[str, dict[str, Pin]]:
    try:
        data = json.loads(raw, object_pairs_hook=_pairs)
    except (ValueError, RecursionError) as error:
        mend = "take it from version control again, or mend it (a merge may have left marks in it)"
        raise LockError(f"{name}: is not JSON: {str(error)[:200]}; {mend}") from None
    if not isinstance(data, dict) or not isinstance(data.get("servers"), dict):
        raise LockError(f"{name}: is no lock: it has no `servers`")
    if data.get("version") != FORMAT:
        shown = str(data.get("version"))[:20]
        raise LockError(f"{name}: has the format {shown}; this counterseal reads {FORMAT}")
    return {
        server: {tool: _read_pin(f"{name}: {server} {tool}", tool, pins[tool]) for tool in pins}
        for server, pins in _objects(name, data["servers"])
    }


def _objects(name: str, servers: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for server, pins in servers.items():
        if not isinstance(pins, dict):
            raise LockError(f"{name}: {server}: is not an object of tools")
        yield server, pins


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A merge can leave two pins of one tool; which of them counts must not be left to chance."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {twice[:80]!r} stands twice in one object")
    return found


def _read_pin(place: str, tool: str, data: Any) -> Pin:
    again = "take the file from version control again, or accept the tool anew: `counterseal diff`"
    if not isinstance(data, dict) or sorted(data) != list(_PIN_FIELDS):
        raise LockError(f"{place}: a pin has {', '.join(_PIN_FIELDS)}; {again}")
    try:
        definition = Definition.of(data["definition"])
    except ValueError as error:
        raise LockError(f"{place}: is no definition: {error}; {again}") from None
    if definition.name != tool or definition.record() != data["definition"]:
        raise LockError(f"{place}: the definition is not written as it is pinned; {again}")
    if definition.hash != data["hash"]:
        raise LockError(f"{place}: the hash is not the definition's, it was edited; {again}")
    revision, at, by = data["revision"], data["accepted_at"], data["accepted_by"]
    if type(revision) is not int or revision < 1 or not all(isinstance(v, str) for v in (at, by)):
        raise LockError(f"{place}: revision is a number from 1, accepted_at and accepted_by texts")
    return Pin(definition, revision, accepted_at=at, accepted_by=by)


# --- the file: writing ----------------------------------------------------------------------------


def _write(file: Path, record: Mapping[str, Any]) -> None:
    text = json.dumps(record, indent=2, sort_keys=True, ensure_ascii=False)
    try:
        _replace(file, _escaped(text).encode() + b"\n")
    except OSError as error:
        raise LockError(f"{file}: can't be written: {error.strerror}") from None


def _escaped(text: str) -> str:
    """JSON in which a reviewer sees every character: what shows nothing stands as an escape."""
    return re.sub(
        r"[^\x20-\x7e\n]",
        lambda found: json.dumps(found[0])[1:-1] if is_hidden(found[0]) else found[0],
        text,
    )


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Only one process at a time is in here, for the files of one folder.

    The folder is what is locked: the file itself is replaced, and a lock on it would go with it.
    """
    if not _POSIX:
        yield  # of two who write at once, one's change may be lost
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
