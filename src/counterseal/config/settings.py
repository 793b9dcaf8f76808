"""`counterseal.toml` as a checked record; its tables are in `tables`.

Says which file, key and place is wrong. Reads nothing that the file names.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, Field, PrivateAttr, ValidationError

from counterseal.config.gateway import GatewayTable
from counterseal.config.tables import (
    AgentTable,
    ApproverTable,
    FilesTable,
    GrantTable,
    KeysTable,
    Name,
    NotificationsTable,
    ObservationsTable,
    PlanningTable,
    PolicyTable,
    RetentionTable,
    SecretsTable,
    StoreTable,
    Table,
    TenantTable,
    ToolsTable,
)
from counterseal.config.upstreams import ServerName, UpstreamTable
from counterseal.errors import CountersealError

__all__ = [
    "FILE_NAME",
    "ConfigError",
    "Settings",
    "find_config",
    "load_settings",
    "settings_from",
    "usual_overlay",
]

FILE_NAME = "counterseal.toml"
_SQLITE = "sqlite:///"

_PLACE = re.compile(r"^(.*) \(at (?:line (\d+), column (\d+)|end of document)\)$", re.DOTALL)


class ConfigError(CountersealError):
    """The configuration can't be used, or names something that is not there."""


class Settings(Table):
    tools: ToolsTable = ToolsTable()
    policy: PolicyTable = PolicyTable()
    planning: PlanningTable = PlanningTable()
    secrets: SecretsTable = SecretsTable()
    files: FilesTable = FilesTable()
    store: StoreTable = StoreTable()
    keys: KeysTable = KeysTable()
    observations: ObservationsTable = ObservationsTable()
    retention: RetentionTable = RetentionTable()
    grants: tuple[GrantTable, ...] = ()
    agents: dict[str, AgentTable] = Field(default_factory=dict)
    approvers: dict[Name, ApproverTable] = Field(default_factory=dict)
    notifications: NotificationsTable = NotificationsTable()
    tenants: dict[str, TenantTable] = Field(default_factory=dict)
    upstreams: dict[ServerName, UpstreamTable] = Field(default_factory=dict)
    gateway: GatewayTable = GatewayTable()

    _file: Path = PrivateAttr(default=Path(FILE_NAME))

    @property
    def file(self) -> Path:
        """Where it was read from: paths are seen from there."""
        return self._file

    def store_url(self) -> str | None:
        """The URL of the store, with a relative path made absolute; None when none is named."""
        url = self.store.url
        if url is None or not url.startswith(_SQLITE):
            return url
        name = url.removeprefix(_SQLITE)
        return f"{_SQLITE}{self._file.parent.absolute() / name}" if name else url

    def keys_path(self) -> Path | None:
        """The folder of keys; whether it is there is not looked at."""
        return None if self.keys.path is None else self._file.parent / self.keys.path

    def secrets_path(self) -> Path | None:
        """The folder of secrets. ConfigError when it is not there."""
        named = self.secrets.path
        return None if named is None else _beside(self._file, "secrets.path", [named])[0]

    def files_path(self) -> Path | None:
        """The folder of tools' files; it is made when it is needed."""
        return None if self.files.path is None else self._file.parent / self.files.path

    def tool_paths(self, file: Path) -> tuple[Path, ...]:
        """Where the contracts are, seen from `file`. ConfigError when one is not there."""
        return _beside(file, "tools.paths", self.tools.paths)

    def policy_paths(self, file: Path) -> tuple[Path, ...]:
        """The same for policy files."""
        return _beside(file, "policy.paths", self.policy.paths)

    def planning_paths(self, file: Path) -> tuple[Path, ...]:
        """The same for files of plan rules."""
        return _beside(file, "planning.paths", self.planning.paths)

    def lock_path(self) -> Path:
        """The file of accepted definitions, whether it is there or not."""
        return self._file.parent / self.gateway.lock

    def overlay_path(self, server: str) -> Path | None:
        """An upstream's overlay: the file that is named, else the usual one if it is there."""
        named = self.upstreams[server].overlay
        if named is not None:
            return _beside(self._file, f"upstreams.{server}.overlay", [named])[0]
        usual = self._file.parent / usual_overlay(server)
        return usual if usual.is_file() else None

    def overlay_paths(self) -> dict[str, Path]:
        """Those that there are, by the name of their upstream."""
        found = {server: self.overlay_path(server) for server in self.upstreams}
        return {server: path for server, path in found.items() if path is not None}

    def cwd_path(self, server: str) -> Path:
        """Where an upstream's command runs. ConfigError when there is no such folder."""
        named = self.upstreams[server].cwd or "."
        return _beside(self._file, f"upstreams.{server}.cwd", [named])[0]


def usual_overlay(server: str) -> str:
    """Where an upstream's overlay is looked for, seen from the configuration file."""
    return f"overlays/{server}.yaml"


def _beside(file: Path, key: str, names: Sequence[str]) -> tuple[Path, ...]:
    for name in names:
        if not (file.parent / name).exists():
            raise ConfigError(f"{file}: {key}: there is no {name!r} beside this file")
    return tuple(file.parent / name for name in names)


def find_config(start: Path) -> Path | None:
    """The nearest `counterseal.toml`, in this folder or one above it."""
    here = start.absolute()
    found = (folder / FILE_NAME for folder in (here, *here.parents))
    return next((file for file in found if file.is_file()), None)


def load_settings(file: Path) -> Settings:
    """ConfigError lists everything that is wrong with the file."""
    try:
        text = file.read_bytes().decode()
    except OSError as error:
        raise ConfigError(f"{file}: can't be opened: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: byte {error.start + 1} is not UTF-8") from None
    try:
        return settings_from(tomllib.loads(text), file)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_broken(file, text, str(error))) from None
    except RecursionError:
        raise ConfigError(f"{file}: nested too deeply to be read") from None


def settings_from(data: Mapping[str, Any], file: Path) -> Settings:
    """What stands in a file, or is to stand in it. ConfigError lists everything that is wrong."""
    try:
        settings = Settings.model_validate(data)
    except ValidationError as error:
        raise ConfigError("\n".join(f"{file}: {line}" for line in _wrong_keys(error))) from None
    # Not a field: a file does not say where it lies.
    settings._file = file  # noqa: SLF001 - its own maker
    return settings


def _broken(file: Path, text: str, message: str) -> str:
    found = _PLACE.match(message)
    what = found[1] if found else message
    lines = text.splitlines() or [""]
    line, column = (found[2], found[3]) if found and found[2] else (len(lines), len(lines[-1]) + 1)
    return f"{file}:{line}:{column}: not TOML: {what[:1].lower()}{what[1:]}"


def _wrong_keys(error: ValidationError) -> list[str]:
    lines = []
    for detail in error.errors(include_url=False, include_input=False):
        key = ".".join(str(part) for part in detail["loc"])
        if detail["type"] == "extra_forbidden":
            lines.append(f"{key} is not a setting; {_siblings(detail['loc'])}")
        elif detail["type"] == "value_error":
            # Our own words, which begin with the field that they are about, if it is not a name.
            named = key.removesuffix(".[key]")
            lines.append(f"{named}{'.' if named == key else ': '}{detail['ctx']['error']}")
        else:
            message = detail["msg"]
            lines.append(f"{key}: {message[:1].lower()}{message[1:]}")
    return lines


def _siblings(location: tuple[int | str, ...]) -> str:
    """What could have been written instead of an unknown key."""
    table = _table_at(location[:-1])
    names = ", ".join(table.model_fields)
    if len(location) == 1:
        return f"the tables are {names}"
    shown = ".".join(part for part in location[:-1] if isinstance(part, str))
    listed = any(isinstance(part, int) for part in location)
    return f"{'[[' if listed else '['}{shown}{']]' if listed else ']'} takes {names}"


def _table_at(location: tuple[int | str, ...]) -> type[BaseModel]:
    table: type[BaseModel] = Settings
    names = False
    for part in location:
        if names:  # of agents and tenants, and numbers of grants, lead into no other kind of table
            names = False
            continue
        annotation = table.model_fields[str(part)].annotation
        inner = (annotation, *get_args(annotation))
        table = next(one for one in inner if _is_table(one))
        names = get_origin(annotation) in (dict, tuple)
    return table


def _is_table(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
