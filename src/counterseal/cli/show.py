"""`counterseal show` and `counterseal schema`: contracts as cards, lists, and provider formats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from typer import Argument, Option

from counterseal.cli.project import contracts_at
from counterseal.cli.render import counted, fail, note, one_line, print_json, render, table

if TYPE_CHECKING:
    from packaging.version import Version
    from rich.console import RenderableType

    from counterseal.config import Discovered
    from counterseal.contract.model import Contract


class ContractForm(StrEnum):
    CARD = "card"
    MCP = "mcp"
    OPENAI = "openai"
    OPENAI_RESPONSES = "openai-responses"
    ANTHROPIC = "anthropic"
    ENVELOPE = "envelope"
    RECORD = "record"


class SchemaSubject(StrEnum):
    CONTRACT = "contract"
    ENVELOPE = "envelope"
    OBSERVATION = "observation"


def show(
    tool: Annotated[
        str | None, Argument(metavar="TOOL", help="A tool's name; without one, lists all.")
    ] = None,
    paths: Annotated[
        list[Path] | None,
        Option(
            "--from",
            metavar="PATH",
            help="Where to look; can be repeated.  [default: as in counterseal.toml]",
        ),
    ] = None,
    form: Annotated[ContractForm, Option("--as", help="What to print.")] = ContractForm.CARD,
    version: Annotated[
        str | None, Option(metavar="V", help="Which version.  [default: newest]")
    ] = None,
    as_json: Annotated[
        bool, Option("--json", help="Print JSON; forms other than card always are.")
    ] = False,
) -> None:
    """Show a tool's contract, or list all tools.

    As a card to read, or in the format of a model provider. Python files that PATH or
    counterseal.toml names are imported, that is executed.
    """
    contracts = contracts_at(paths or [])
    if tool is None:
        _list(contracts, as_json=as_json)
        return
    versions = _versions(contracts, tool)
    chosen = _choose(versions, tool, version)
    contract = chosen.contract
    if contract is None:
        for problem in chosen.problems:
            note(str(problem))
        fail(f"The contract of {tool} can't be read.", code=1)
    if form is not ContractForm.CARD:
        _print_form(contract, form)
        return
    render(
        _record(chosen, contract, versions),
        lambda: _card(chosen, contract, versions),
        as_json=as_json,
    )
    if chosen.problems and not as_json:
        count = counted(len(chosen.problems), "problem")
        note(f"{count}: `counterseal lint {chosen.path}`")


def schema(
    subject: Annotated[SchemaSubject, Argument(help="What to describe.")],
    as_json: Annotated[bool, Option("--json", help="No effect: a schema is JSON already.")] = False,
) -> None:
    """Print the JSON Schema of contract files, envelopes or observations.

    A contract file may leave out what follows from the effect. An envelope is the part of a
    contract that travels between systems, with every field.
    """
    del as_json
    from counterseal.contract.model import Contract, Envelope
    from counterseal.contract.schemas import model_schema
    from counterseal.observation.envelope import ObservationEnvelope

    if subject is SchemaSubject.CONTRACT:
        print_json(model_schema(Contract, title="ContractFile", mode="validation"))
    elif subject is SchemaSubject.ENVELOPE:
        print_json(model_schema(Envelope, title="ToolContract"))
    else:
        print_json(model_schema(ObservationEnvelope, title="ObservationObject"))


# Choosing a contract -----------------------------------------------------------------------------


def _versions(contracts: Sequence[Discovered], tool: str) -> list[Discovered]:
    """Return every version of a tool, newest first."""
    versions = [item for item in contracts if item.name == tool]
    if not versions:
        _fail_unknown(contracts, tool)
    return sorted(versions, key=_version_order, reverse=True)


def _fail_unknown(contracts: Sequence[Discovered], tool: str) -> NoReturn:
    unread = [str(item.path) for item in contracts if not item.name]
    if unread:
        note(f"Can't read {', '.join(unread)}. Run `counterseal lint` for the reasons.")
    names = sorted({item.name for item in contracts if item.name})
    near = get_close_matches(tool, names)
    known = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
    hint = f"Did you mean {', '.join(near)}?" if near else f"Known tools: {known}."
    fail(f"There is no tool {tool!r}.", hint if names else "")


def _version_order(item: Discovered) -> tuple[bool, Version]:
    from packaging.version import InvalidVersion, Version

    try:
        return (True, Version(item.contract.version if item.contract else ""))
    except InvalidVersion:
        return (False, Version("0"))


def _choose(versions: list[Discovered], tool: str, version: str | None) -> Discovered:
    if version is None:
        return versions[0]
    known = _version_numbers(versions)
    if version not in known:
        fail(f"{tool} has no version {version}.", f"Known versions: {', '.join(known)}.")
    return next(item for item in versions if item.contract and item.contract.version == version)


def _version_numbers(versions: Sequence[Discovered]) -> list[str]:
    return [item.contract.version for item in versions if item.contract is not None]


# Rows and pages ----------------------------------------------------------------------------------


def _list(contracts: Sequence[Discovered], *, as_json: bool) -> None:
    rows = [_row(item, item.contract) for item in contracts if item.contract is not None]
    if len(rows) < len(contracts):
        unread = counted(len(contracts) - len(rows), "contract")
        note(f"Can't read {unread}. Run `counterseal lint` for the reasons.")

    def page() -> Iterator[RenderableType]:
        cells = []
        for row in rows:
            sentence, stop, _ = one_line(row["description"]).partition(". ")
            about = f"{sentence}{stop.strip()}"
            cells.append((row["name"], row["version"], str(row["effect"]), about))
        yield table(cells, titles=("Tool", "Version", "Effect", "Description"))

    render({"tools": rows}, page, as_json=as_json)


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


def _print_form(contract: Contract, form: ContractForm) -> None:
    if form is ContractForm.ENVELOPE:
        print_json(contract.envelope())
        return
    if form is ContractForm.RECORD:
        print_json(contract.record())
        return
    from counterseal.contract.formats import FORMATS

    view = FORMATS[form.value](contract)
    for warning in view.warnings:
        note(f"Warning: {warning}")
    print_json(view.tool)


def _record(
    chosen: Discovered, contract: Contract, versions: Sequence[Discovered]
) -> dict[str, Any]:
    return {
        "record": contract.record(),
        "hash": contract.hash,
        "versions": _version_numbers(versions),
        "file": chosen.source.file,
        "line": chosen.source.line,
        "problems": [problem.record() for problem in chosen.problems],
    }


def _card(
    chosen: Discovered, contract: Contract, versions: Sequence[Discovered]
) -> Iterator[RenderableType]:
    from counterseal.cli.contract_card import card

    others = _version_numbers([item for item in versions if item is not chosen])
    return card(contract, place=f"{chosen.source.file}:{chosen.source.line}", others=others)
