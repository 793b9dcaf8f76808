"""`counterseal.toml` as a checked record.

Says which file, key and place is wrong. Reads nothing that the file names.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from counterseal.errors import CountersealError

__all__ = ["FILE_NAME", "ConfigError", "Settings", "find_config", "load_settings"]

FILE_NAME = "counterseal.toml"

_PLACE = re.compile(r"^(.*) \(at (?:line (\d+), column (\d+)|end of document)\)$", re.DOTALL)


class ConfigError(CountersealError):
    """The configuration can't be used, or names something that is not there."""


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ToolsTable(_Table):
    paths: tuple[str, ...] = Field(default=(".",), min_length=1)
    """Contract files, Python files and folders of them, as seen from the configuration file."""


class Settings(_Table):
    tools: ToolsTable = ToolsTable()

    def tool_paths(self, file: Path) -> tuple[Path, ...]:
        """Where the contracts are, seen from `file`. ConfigError when one is not there."""
        found = tuple(file.parent / path for path in self.tools.paths)
        missing = [
            name for name, path in zip(self.tools.paths, found, strict=True) if not path.exists()
        ]
        if missing:
            raise ConfigError(f"{file}: tools.paths: there is no {missing[0]!r} beside this file")
        return found


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
        return Settings.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_broken(file, text, str(error))) from None
    except RecursionError:
        raise ConfigError(f"{file}: nested too deeply to be read") from None
    except ValidationError as error:
        raise ConfigError("\n".join(f"{file}: {line}" for line in _wrong_keys(error))) from None


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
        else:
            message = detail["msg"]
            lines.append(f"{key}: {message[:1].lower()}{message[1:]}")
    return lines


def _siblings(location: tuple[int | str, ...]) -> str:
    """What could have been written instead of an unknown key."""
    table: type[BaseModel] = Settings
    for part in location[:-1]:
        inner = table.model_fields[str(part)].annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            table = inner
    names = ", ".join(table.model_fields)
    return f"[{location[0]}] takes {names}" if len(location) > 1 else f"the tables are {names}"
