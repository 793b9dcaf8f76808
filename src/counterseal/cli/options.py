"""Options that several commands share, and how times on the command line are read."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

import typer
from typer import Option

from counterseal.cli.render import fail

STORE_VARIABLE: Final = "COUNTERSEAL_STORE"

AsJson = Annotated[bool, Option("--json", help="Print JSON.")]
AsJsonLines = Annotated[bool, Option("--json", help="Print JSON Lines.")]
Yes = Annotated[bool, Option("--yes", help="Skip the question.")]

StoreUrl = Annotated[
    str | None,
    Option(
        "--store",
        metavar="URL",
        envvar=STORE_VARIABLE,
        help="The store.  [default: as in counterseal.toml]",
    ),
]
KeysFolder = Annotated[
    Path | None,
    Option(
        "--keys", metavar="FOLDER", help="Folder of the keys.  [default: as in counterseal.toml]"
    ),
]
AllTenants = Annotated[
    str | None, Option("--tenant", metavar="T", help="One tenant.  [default: all]")
]

AsTenant = Annotated[
    str | None,
    Option("--tenant", metavar="T", help="Tenant to act as, instead of the agent's own."),
]

Reason = Annotated[
    str | None,
    Option("--reason", metavar="TEXT", help="Reason for the record; prompted for if left out."),
]
By = Annotated[
    str | None,
    Option("--by", metavar="NAME", help="Name for the record.  [default: your user name]"),
]
Expires = Annotated[
    str | None,
    Option(
        "--expires",
        metavar="WHEN",
        help="A number of days, or a date such as 2027-01-31 (UTC).  [default: never]",
    ),
]

_MAX_DAYS: Final = 3650
_AGO: Final = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def command_group(text: str) -> typer.Typer:
    """Return an app for a group of commands. Plain help starts faster than Rich's."""
    return typer.Typer(help=text, no_args_is_help=True, rich_markup_mode=None)


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that the types of its parameters declare.

    Typer has no groups of options. Here a dataclass names those that several commands share, and
    a command takes them as one value.
    """
    groups: dict[str, Any] = {}
    options: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if not is_dataclass(parameter.annotation):
            options.append(parameter.replace(kind=parameter.KEYWORD_ONLY))
            continue
        groups[parameter.name] = parameter.annotation
        hints = get_type_hints(parameter.annotation, include_extras=True)
        for field in fields(parameter.annotation):
            default = parameter.empty if field.default is MISSING else field.default
            shape = {"default": default, "annotation": hints[field.name]}
            options.append(inspect.Parameter(field.name, parameter.KEYWORD_ONLY, **shape))

    @wraps(command)
    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in options}
    return run


def expiry(text: str | None, option: str = "--expires") -> datetime | None:
    """Return when something expires: a number of days from now, or the start of a date."""
    if text is None:
        return None
    if re.fullmatch("[0-9]{1,4}", text) and 1 <= int(text) <= _MAX_DAYS:
        return datetime.now(UTC).replace(microsecond=0) + timedelta(days=int(text))
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        fail(
            f"{option} must be a number of days from 1 to {_MAX_DAYS:,} or a date, got {text!r}.",
            "Write 90, 2027-01-31, or 2027-01-31T18:00:00+01:00.",
        )
    return date if date.tzinfo is not None else date.replace(tzinfo=UTC)


def moment(option: str, text: str, now: float) -> float:
    """Return a time as seconds since 1970: an ISO time (UTC by default), or an age such as 2h."""
    age = _AGO.fullmatch(text.strip())
    if age:
        return max(0.0, now - float(age[1]) * _SECONDS[age[2]])
    try:
        given = datetime.fromisoformat(text.strip())
    except ValueError:
        fail(
            f"{option} must be a time, got {text!r}.",
            "Write 2026-07-31, 2026-07-31T12:00 (UTC) or 2026-07-31T12:00+02:00; or an age such as"
            " 30m, 2h, 7d.",
        )
    return (given if given.tzinfo else given.replace(tzinfo=UTC)).timestamp()
