"""`counterseal show` and `counterseal schema`: contracts as cards, lists, and provider formats."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

from counterseal.cli.project import contracts_at
from counterseal.cli.render import Parts, counted, fail, note, one_line, print_json, render, table

if TYPE_CHECKING:
    from packaging.version import Version

    from counterseal.config import Discovered
    from counterseal.contract.model import Contract


ContractForm = Literal[
    "card", "mcp", "openai", "openai-responses", "anthropic", "envelope", "record"
]
SchemaSubject = Literal["contract", "envelope", "observation", "settings"]


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
    form: Annotated[ContractForm, Option("--as", help="What to print.")] = "card",
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
        _list_tools(contracts, as_json=as_json)
        return
    chosen, versions = _choose(contracts, tool, version)
    contract = chosen.contract
    if contract is None:
        for problem in chosen.problems:
            note(str(problem))
        fail(f"The contract of {tool} can't be read.", code=1)
    if form != "card":
        _print_form(contract, form)
        return
    from counterseal.cli.contract_card import card

    place = chosen.source
    others = [one for one in versions if one != contract.version]
    record = {
        "record": contract.record(),
        "hash": contract.hash,
        "versions": versions,
        "file": place.file,
        "line": place.line,
        "problems": [problem.record() for problem in chosen.problems],
    }
    page = card(contract, place=f"{place.file}:{place.line}", others=others)
    render(record, lambda: page, as_json=as_json)
    if chosen.problems and not as_json:
        count = counted(len(chosen.problems), "problem")
        note(f"{count}: `counterseal lint {chosen.path}`")


def schema(
    subject: Annotated[SchemaSubject, Argument(help="What to describe.")],
    as_json: Annotated[bool, Option("--json", help="No effect: a schema is JSON already.")] = False,
) -> None:
    """Print the JSON Schema of contract files, envelopes, observations or counterseal.toml.

    A contract file may leave out what follows from the effect. An envelope is the part of a
    contract that travels between systems, with every field. Editors complete and check
    counterseal.toml with the schema of its settings.
    """
    del as_json
    from counterseal.contract.model import Contract, Envelope
    from counterseal.contract.schemas import model_schema
    from counterseal.observation.envelope import ObservationEnvelope

    if subject == "contract":
        print_json(model_schema(Contract, title="ContractFile", mode="validation"))
    elif subject == "settings":
        from counterseal.config import Settings

        print_json(model_schema(Settings, title="CountersealSettings", mode="validation"))
    elif subject == "envelope":
        print_json(model_schema(Envelope, title="ToolContract"))
    else:
        print_json(model_schema(ObservationEnvelope, title="ObservationObject"))


def _choose(
    contracts: Sequence[Discovered], tool: str, version: str | None
) -> tuple[Discovered, list[str]]:
    """Return one version of a tool, by default the newest, and all version numbers."""
    from packaging.version import InvalidVersion, Version

    def order(item: Discovered) -> tuple[bool, Version]:
        try:
            return (True, Version(item.contract.version if item.contract else ""))
        except InvalidVersion:
            return (False, Version("0"))

    items = sorted((one for one in contracts if one.name == tool), key=order, reverse=True)
    if not items:
        unread = [str(item.path) for item in contracts if not item.name]
        if unread:
            note(f"Can't read {', '.join(unread)}. Run `counterseal lint` for the reasons.")
        names = sorted({item.name for item in contracts if item.name})
        near = get_close_matches(tool, names)
        known = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
        hint = f"Did you mean {', '.join(near)}?" if near else f"Known tools: {known}."
        fail(f"There is no tool {tool!r}.", hint if names else "")
    versions = [item.contract.version for item in items if item.contract is not None]
    if version is None:
        return items[0], versions
    if version not in versions:
        fail(f"{tool} has no version {version}.", f"Known versions: {', '.join(versions)}.")
    matching = (item for item in items if item.contract and item.contract.version == version)
    return next(matching), versions


def _list_tools(contracts: Sequence[Discovered], *, as_json: bool) -> None:
    read = [(item, item.contract) for item in contracts if item.contract is not None]
    if len(read) < len(contracts):
        unread = counted(len(contracts) - len(read), "contract")
        note(f"Can't read {unread}. Run `counterseal lint` for the reasons.")
    rows: list[dict[str, Any]] = [
        {
            "name": item.name,
            "version": contract.version,
            "effect": contract.effect.value if contract.effect else None,
            "risk_class": contract.risk.value,
            "description": contract.affordance.model_description,
            "file": item.source.file,
            "line": item.source.line,
        }
        for item, contract in read
    ]

    def page() -> Parts:
        cells = []
        for row in rows:
            sentence, stop, _ = one_line(row["description"]).partition(". ")
            about = f"{sentence}{stop.strip()}"
            cells.append((row["name"], row["version"], str(row["effect"]), about))
        yield table(cells, titles=("Tool", "Version", "Effect", "Description"))

    render({"tools": rows}, page, as_json=as_json)


def _print_form(contract: Contract, form: ContractForm) -> None:
    if form in ("envelope", "record"):
        print_json(contract.envelope() if form == "envelope" else contract.record())
        return
    from counterseal.contract.formats import FORMATS

    view = FORMATS[form](contract)
    for warning in view.warnings:
        note(f"Warning: {warning}")
    print_json(view.tool)
