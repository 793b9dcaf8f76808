"""The reference of the command line, from the commands themselves."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any

import typer
from _tables import table

from counterseal.cli.app import EPILOG, app


def page() -> str:
    top = typer.main.get_command(app)
    # What holds for every command stands in the epilog: a sentence or two, and exit codes.
    about, _, codes = EPILOG.partition("\b\nExit codes:\n")
    rows = [line.split(None, 1) for line in codes.strip().splitlines()]
    sections = "\n".join(_sections(top, ["counterseal"]))
    return f"""# The command line

{about.strip()} `counterseal COMMAND --help` says what stands here.

{table(["exit code", "means"], map(_exit, rows))}
{sections}"""


def _sections(command: Any, path: list[str]) -> Iterator[str]:
    inside = getattr(command, "commands", {})
    if len(path) > 1:
        yield _section(command, path, inside)
    for name, one in inside.items():
        yield from _sections(one, [*path, name])


def _section(command: Any, path: list[str], inside: dict[str, Any]) -> str:
    name = " ".join(path)
    shown = [one for one in command.params if not one.hidden]
    arguments = [one for one in shown if one.param_type_name == "argument"]
    options = [one for one in shown if one.param_type_name == "option"]
    words = [*(_place(one) for one in arguments), *(["[COMMAND …]"] if inside else [])]
    parts = [f"{'#' * min(len(path), 3)} `{name}`\n", f"{_text(command.help)}\n"]
    if not inside or command.invoke_without_command:
        usage = " ".join([name, *(["[OPTIONS]"] if options else []), *words])
        parts.append(f"`{usage}`\n")
    hints = typing.get_type_hints(command.callback) if command.callback else {}
    rows = [(f"`{_place(one).strip('[]')}`", _help(one, hints)) for one in arguments]
    rows += [(_option(one), _help(one, hints)) for one in options]
    if rows:
        parts.append(table(["argument, option", ""], rows))
    if command.epilog:
        parts.append(_exits(command.epilog))
    return "\n".join(parts)


def _exits(epilog: str) -> str:
    found = re.findall(r"^ +(\d)  (.+)$", epilog, re.MULTILINE)
    return table(
        ["exit code", "means"],
        map(_exit, found),
    )


def _exit(row: Sequence[str]) -> tuple[str, str]:
    code, said = row
    return f"`{code}`", f"{said[:1].upper()}{said[1:]}."


def _text(help_text: str | None) -> str:
    paragraphs = re.split(r"\n\s*\n", (help_text or "").replace("\b", "").strip())
    return "\n\n".join(" ".join(one.split()) for one in paragraphs).replace("<", "&lt;")


def _place(argument: Any) -> str:
    name = (argument.metavar or argument.name.upper()).strip("[]")
    named = f"{name}…" if argument.nargs == -1 and not name.endswith((".", "…")) else name
    return named if argument.required else f"[{named}]"


def _option(option: Any) -> str:
    names = ", ".join(option.opts) + "".join(f" / {one}" for one in option.secondary_opts)
    takes = f" {option.metavar}" if option.metavar and not option.is_flag else ""
    return f"`{names}{takes}`"


def _help(parameter: Any, hints: dict[str, Any]) -> str:
    said = " ".join((getattr(parameter, "help", None) or "").split()).replace("<", "&lt;")
    more = list(_choices(hints.get(parameter.name)))
    if parameter.required:
        more.append("required")
    default = parameter.default
    plain = isinstance(default, str | int | float) and not isinstance(default, bool)
    if plain and default not in ("", "{}") and "[default" not in said:
        more.append(f"default: {default}")
    if parameter.envvar:
        more.append(f"or `{parameter.envvar}`")
    said = re.sub(r"\s*\[(default: [^\]]+)\]", lambda at: f" ({at[1]})", said)
    return f"{said} ({', '.join(more)})" if more else said


def _choices(hint: Any) -> Iterator[str]:
    """What can be chosen from, where it is a list that is known beforehand."""
    for one in (hint, *typing.get_args(hint)):
        if typing.get_origin(one) is typing.Literal:
            yield ", ".join(f"`{word}`" for word in typing.get_args(one))
        elif isinstance(one, type) and issubclass(one, Enum):
            yield ", ".join(f"`{word.value}`" for word in one)
