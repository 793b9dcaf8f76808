"""`counterseal show`: one contract, as a card for people or in the form that a system takes."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from counterseal.cli.output import fail, note, one_line, print_json, print_styled
from counterseal.cli.project import contracts_at

if TYPE_CHECKING:
    from packaging.version import Version

    from counterseal.config import Discovered
    from counterseal.contract.model import Contract

__all__ = ["show"]


class Form(StrEnum):
    CARD = "card"
    MCP = "mcp"
    OPENAI = "openai"
    OPENAI_RESPONSES = "openai-responses"
    ANTHROPIC = "anthropic"
    ENVELOPE = "envelope"
    RECORD = "record"


def show(
    tool: Annotated[
        str | None, typer.Argument(metavar="TOOL", help="A tool's name; without one, lists all.")
    ] = None,
    paths: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            metavar="PATH",
            help="Where to look; may be repeated.  [default: as in counterseal.toml, or .]",
        ),
    ] = None,
    form: Annotated[Form, typer.Option("--as", help="What to print.")] = Form.CARD,
    version: Annotated[
        str | None, typer.Option("--version", metavar="V", help="Which version.  [default: newest]")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON; the forms other than card always are.")
    ] = False,
) -> None:
    """Show a tool's contract, or list all tools.

    As a card to read, or in the form that a model provider takes.
    """
    found = contracts_at(paths or [])
    if tool is None:
        _list(found, as_json=as_json)
        return
    versions = _versions(found, tool)
    chosen = _choose(versions, tool, version)
    if chosen.contract is None:
        for problem in chosen.problems:
            note(str(problem))
        fail(f"{tool} has no contract that could be shown.", code=1)
    if form is not Form.CARD:
        _print_form(chosen.contract, form)
    elif as_json:
        print_json(_record(chosen, versions))
    else:
        _print_card(chosen, versions)


# Finding it --------------------------------------------------------------------------------------


def _versions(found: Sequence[Discovered], tool: str) -> list[Discovered]:
    """Every version of a tool, newest first."""
    versions = [item for item in found if item.name == tool]
    if not versions:
        _fail_unknown(found, tool)
    return sorted(versions, key=_age, reverse=True)


def _fail_unknown(found: Sequence[Discovered], tool: str) -> NoReturn:
    unread = [str(item.path) for item in found if not item.name]
    if unread:
        note(f"Could not be read: {', '.join(unread)} (`counterseal lint` says why).")
    names = sorted({item.name for item in found if item.name})
    near = get_close_matches(tool, names)
    known = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
    hint = f"Did you mean {', '.join(near)}?" if near else f"There are: {known}."
    fail(f"There is no tool {tool!r}.", hint if names else "")


def _age(item: Discovered) -> tuple[bool, Version]:
    from packaging.version import InvalidVersion, Version

    try:
        return (True, Version(item.contract.version if item.contract else ""))
    except InvalidVersion:
        return (False, Version("0"))


def _choose(versions: list[Discovered], tool: str, version: str | None) -> Discovered:
    if version is None:
        return versions[0]
    known = _numbers(versions)
    if version not in known:
        fail(f"There is no version {version} of {tool}.", f"There are: {', '.join(known)}.")
    return next(item for item in versions if item.contract and item.contract.version == version)


def _numbers(versions: Sequence[Discovered]) -> list[str]:
    return [item.contract.version for item in versions if item.contract is not None]


# Printing it -------------------------------------------------------------------------------------


def _list(found: Sequence[Discovered], *, as_json: bool) -> None:
    rows = [_row(item, item.contract) for item in found if item.contract is not None]
    if len(rows) < len(found):
        note(f"{len(found) - len(rows)} could not be read; `counterseal lint` says why.")
    if as_json:
        print_json({"tools": rows})
        return
    from counterseal.cli.layout import table

    titles = ("Tool", "Version", "Effect", "Description")
    listed = [
        (row["name"], row["version"], str(row["effect"]), _first_sentence(row["description"]))
        for row in rows
    ]
    print_styled(table(listed, titles=titles))


def _row(item: Discovered, contract: Contract) -> dict[str, Any]:
    return {
        "name": item.name,
        "version": contract.version,
        "effect": contract.effect.value if contract.effect else None,
        "risk_class": contract.risk.value,
        "description": contract.affordance.model_description,
        "file": item.source.file,
        "line": item.source.line,
    }


def _first_sentence(text: str) -> str:
    sentence, stop, _ = one_line(text).partition(". ")
    return f"{sentence}{stop.strip()}"


def _print_form(contract: Contract, form: Form) -> None:
    if form is Form.ENVELOPE:
        print_json(contract.envelope())
        return
    if form is Form.RECORD:
        print_json(contract.record())
        return
    from counterseal.contract.formats import FORMATS

    view = FORMATS[form.value](contract)
    for warning in view.warnings:
        note(f"Warning: {warning}")
    print_json(view.tool)


def _record(chosen: Discovered, versions: Sequence[Discovered]) -> dict[str, Any]:
    contract = chosen.contract
    return {
        "record": contract.record() if contract else None,
        "hash": contract.hash if contract else None,
        "versions": _numbers(versions),
        "file": chosen.source.file,
        "line": chosen.source.line,
        "problems": [problem.record() for problem in chosen.problems],
    }


def _print_card(chosen: Discovered, versions: Sequence[Discovered]) -> None:
    from counterseal.cli.card import card

    if chosen.contract is None:
        return
    others = _numbers([item for item in versions if item is not chosen])
    place = f"{chosen.source.file}:{chosen.source.line}"
    print_styled(*card(chosen.contract, place=place, others=others))
    if chosen.problems:
        count = len(chosen.problems)
        note(f"{count} problem{'' if count == 1 else 's'}: `counterseal lint {chosen.path}`")
