"""`counterseal.toml` as a checked model; its tables are in `tables`.

An error names the file and the key. Nothing that the file names is read here.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel, Field, PrivateAttr, ValidationError, field_validator

from counterseal.config.tables import (
    AgentTable,
    ApproverTable,
    EvaluationTable,
    FilesTable,
    GatewayTable,
    GrantTable,
    KeysTable,
    Name,
    NotificationsTable,
    ObservationsTable,
    PlanningTable,
    PolicyTable,
    RetentionTable,
    SecretsTable,
    ServerName,
    StoreTable,
    Table,
    TenantName,
    TenantTable,
    ToolsTable,
    UpstreamTable,
)
from counterseal.errors import CountersealError
from counterseal.proposal import Principal, folded

FILE_NAME = "counterseal.toml"
_SQLITE = "sqlite:///"

_PLACE = re.compile(r"^(.*) \(at (?:line (\d+), column (\d+)|end of document)\)$", re.DOTALL)


class SettingError(NamedTuple):
    """One invalid setting. The key is dotted: `upstreams.files.url`."""

    key: str
    message: str


class ConfigError(CountersealError):
    """The configuration is invalid, or names something that does not exist."""

    def __init__(self, message: str, errors: Sequence[SettingError] = ()) -> None:
        super().__init__(message)
        self.errors = tuple(errors)
        """The invalid settings; empty for an error of another kind."""


class Settings(Table):
    """The whole file. Relative paths in it start at its folder."""

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
    evaluation: dict[str, EvaluationTable] = Field(default_factory=dict)
    tenants: dict[TenantName, TenantTable] = Field(default_factory=dict)
    upstreams: dict[ServerName, UpstreamTable] = Field(default_factory=dict)
    gateway: GatewayTable = GatewayTable()

    @field_validator("approvers")
    @classmethod
    def _check_names(cls, approvers: dict[str, ApproverTable]) -> dict[str, ApproverTable]:
        first: dict[str, str] = {}
        for name in approvers:
            other = first.setdefault(folded(name), name)
            if other != name:
                raise ValueError(
                    f"{other!r} and {name!r} differ only in case, width or invisible characters, "
                    "so they name one person; keep one"
                )
        return approvers

    _file: Path = PrivateAttr(default=Path(FILE_NAME))

    @property
    def file(self) -> Path:
        """The file that the settings were read from."""
        return self._file

    def principal(self, agent: str, **instead: Any) -> Principal:
        """Return the principal of `[agents.NAME]`, with the given fields instead of its own.

        Raises ConfigError if the file has no tenant for the agent, or a field is invalid.
        """
        declared = self.agents.get(agent)
        fields = {**(dict(declared) if declared else {}), **instead}
        if fields.get("tenant") is None:
            raise ConfigError(self._without_tenant(agent))
        try:
            return Principal(agent=agent, **fields)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{self._file}: agents.{agent}: {error}") from None

    def _without_tenant(self, agent: str) -> str:
        """Return why an agent has no tenant. A name that is nowhere is most likely misspelt."""
        file, fix = self._file.name, f'write [agents.{agent}] tenant = "T" into it'
        known = {*self.agents, *(grant.agent for grant in self.grants)}
        where = f"{self._file}: agents.{agent}.tenant"
        if agent in known:
            what = "has no tenant" if agent in self.agents else "has grants, but no [agents] table"
            return f"{where}: The agent {agent!r} {what} in {file}.\nTo give it one, {fix}."
        near = get_close_matches(agent, known, n=1)
        hint = f"Did you mean {near[0]}? " if near else ""
        listed = f"Agents in it: {', '.join(sorted(known))}. " if known and not near else ""
        text = f"There is no agent {agent!r} in {file}.\n{hint}{listed}To declare it, {fix}."
        return f"{where}: {text}"

    def store_url(self) -> str | None:
        """Return the URL of the store with an absolute path; None if none is configured."""
        url = self.store.url
        if url is None or not url.startswith(_SQLITE):
            return url
        name = url.removeprefix(_SQLITE)
        return f"{_SQLITE}{self._file.parent.absolute() / name}" if name else url

    def keys_path(self) -> Path | None:
        """Return the folder of keys, existing or not; None if none is configured."""
        return None if self.keys.path is None else self._file.parent / self.keys.path

    def secrets_path(self) -> Path | None:
        """Return the folder of secrets. Raises ConfigError if it does not exist."""
        path = self.secrets.path
        return None if path is None else _existing(self._file, "secrets.path", [path])[0]

    def files_path(self) -> Path | None:
        """Return the folder for files of tools, which is created on first use."""
        return None if self.files.path is None else self._file.parent / self.files.path

    def tool_paths(self) -> tuple[Path, ...]:
        """Return files and folders of contracts. Raises ConfigError if one does not exist."""
        return _existing(self._file, "tools.paths", self.tools.paths)

    def policy_paths(self) -> tuple[Path, ...]:
        """Return the policy files. Raises ConfigError if one does not exist."""
        return _existing(self._file, "policy.paths", self.policy.paths)

    def planning_paths(self) -> tuple[Path, ...]:
        """Return the files of plan rules. Raises ConfigError if one does not exist."""
        return _existing(self._file, "planning.paths", self.planning.paths)

    def evaluation_path(self) -> Path:
        """Return the file of the last recorded evaluation, existing or not."""
        return self._file.parent / self.gateway.evaluation

    def lock_path(self) -> Path:
        """Return the file of accepted definitions, existing or not."""
        return self._file.parent / self.gateway.lock

    def tls_paths(self) -> tuple[Path, Path] | None:
        """Return the files of certificate and key. Raises ConfigError if one does not exist."""
        gateway = self.gateway
        if gateway.tls_cert is None or gateway.tls_key is None:
            return None
        (cert,) = _existing(self._file, "gateway.tls_cert", [gateway.tls_cert])
        (key,) = _existing(self._file, "gateway.tls_key", [gateway.tls_key])
        return cert, key

    def overlay_path(self, server: str) -> Path | None:
        """Return the configured overlay of an upstream, else the usual file if it exists."""
        path = self.upstreams[server].overlay
        if path is not None:
            return _existing(self._file, f"upstreams.{server}.overlay", [path])[0]
        usual = self._file.parent / usual_overlay(server)
        return usual if usual.is_file() else None

    def overlay_paths(self) -> dict[str, Path]:
        """Return the existing overlays by upstream."""
        paths = {server: self.overlay_path(server) for server in self.upstreams}
        return {server: path for server, path in paths.items() if path is not None}

    def cwd_path(self, server: str) -> Path:
        """Return the working folder of an upstream's command. Raises ConfigError if missing."""
        path = self.upstreams[server].cwd or "."
        return _existing(self._file, f"upstreams.{server}.cwd", [path])[0]


def usual_overlay(server: str) -> str:
    """Return the default path of an upstream's overlay, relative to the configuration file."""
    return f"overlays/{server}.yaml"


def without_notifications(settings: Settings) -> Settings:
    """Return the settings without a webhook, for a process that must not need its secret."""
    return settings.model_copy(update={"notifications": NotificationsTable()})


def _existing(file: Path, key: str, names: Sequence[str]) -> tuple[Path, ...]:
    for name in names:
        if not (file.parent / name).exists():
            raise ConfigError(f"{file}: {key}: {name!r} does not exist (relative to this file)")
    return tuple(file.parent / name for name in names)


def find_config(start: Path) -> Path | None:
    """Return the nearest `counterseal.toml`, in this folder or a parent folder."""
    here = start.absolute()
    candidates = (folder / FILE_NAME for folder in (here, *here.parents))
    return next((file for file in candidates if file.is_file()), None)


def load_settings(file: Path) -> Settings:
    """Read and check the file. Raises ConfigError with every error in it."""
    try:
        text = file.read_bytes().decode()
    except OSError as error:
        raise ConfigError(f"{file}: can't be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: byte {error.start + 1} is not UTF-8") from None
    try:
        return settings_from(tomllib.loads(text), file)
    except tomllib.TOMLDecodeError as error:
        match = _PLACE.match(str(error))
        what, line, column = match.groups() if match else (str(error), None, None)
        if line is None:
            lines = text.splitlines() or [""]
            line, column = len(lines), len(lines[-1]) + 1
        what = f"{what[:1].lower()}{what[1:]}"
        raise ConfigError(f"{file}:{line}:{column}: invalid TOML: {what}") from None
    except RecursionError:
        raise ConfigError(f"{file}: nested too deeply") from None


def settings_from(data: Mapping[str, Any], file: Path) -> Settings:
    """Check the content of a file. Raises ConfigError with every error in it."""
    try:
        settings = Settings.model_validate(data)
    except ValidationError as error:
        errors = _setting_errors(error)
        text = "\n".join(f"{file}: {one.key}: {one.message}" for one in errors)
        raise ConfigError(text, errors) from None
    # Not a field, because the file does not contain its own path.
    settings._file = file  # noqa: SLF001 - set once, where the settings are made
    return settings


def _setting_errors(error: ValidationError) -> list[SettingError]:
    errors = []
    for detail in error.errors(include_url=False, include_input=False):
        key = ".".join(str(part) for part in detail["loc"])
        message = detail["msg"]
        message = f"{message[:1].lower()}{message[1:]}"
        if detail["type"] == "extra_forbidden":
            *parents, _ = detail["loc"]
            names = ", ".join(_table_at(parents).model_fields)
            shown = ".".join(part for part in parents if isinstance(part, str))
            is_list = any(isinstance(part, int) for part in parents)
            place = f"[[{shown}]]" if is_list else f"[{shown}]"
            allowed = f"allowed in {place}" if parents else "allowed tables"
            message = f"unknown setting; {allowed}: {names}"
        elif detail["type"] == "value_error":
            # The message of a table begins with the field; that of a name does not.
            message = str(detail["ctx"]["error"])
            field, separator, rest = message.partition(": ")
            if key.endswith(".[key]"):
                key = key.removesuffix(".[key]")
            elif separator:
                key, message = f"{key}.{field}", rest
        errors.append(SettingError(key, message))
    return errors


def _table_at(location: Iterable[int | str]) -> type[BaseModel]:
    table: type[BaseModel] = Settings
    is_member = False
    for part in location:
        if is_member:  # the name of an agent or tenant, or the number of a grant
            is_member = False
            continue
        annotation = table.model_fields[str(part)].annotation
        inner = (annotation, *get_args(annotation))
        kinds = (kind for kind in inner if isinstance(kind, type))
        table = next(kind for kind in kinds if issubclass(kind, BaseModel))
        is_member = get_origin(annotation) in (dict, tuple)
    return table
