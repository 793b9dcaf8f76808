"""Read contracts from YAML or JSON files, with file, line and column in every error.

A file holds one contract or a list of them, in the form of `Contract.record()`: sections by name,
without what is derived. Files are data: they can state checks as CEL, and never name code to run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterseal.contract.lint import examine
from counterseal.contract.model import Contract
from counterseal.documents import Document, kind_of, read_document
from counterseal.errors import ContractError, Problem, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedContract:
    """One contract of a file with its problems; `contract` is None when the data is not valid."""

    contract: Contract | None
    problems: tuple[Problem, ...]


def read_contracts(path: str | Path) -> tuple[LoadedContract, ...]:
    """Return a file's contracts with their problems. Raises ContractError if it is unreadable."""
    file = read_document(path)
    if isinstance(file.data, list):
        items = [(f"/{i}", item) for i, item in enumerate(file.data)]
    else:
        items = [("", file.data)]
    return tuple(_examine(file, prefix, item) for prefix, item in items)


def load_contracts(*paths: str | Path) -> tuple[Contract, ...]:
    """Return the contracts of these files. ContractError holds the problems of all of them."""
    loaded: list[LoadedContract] = []
    problems: list[Problem] = []
    for path in paths:
        try:
            loaded.extend(read_contracts(path))
        except ContractError as error:
            problems.extend(error.problems)
    problems += [p for item in loaded for p in item.problems if p.severity is Severity.ERROR]
    if problems:
        raise ContractError(problems)
    return tuple(item.contract for item in loaded if item.contract is not None)


def _examine(file: Document, prefix: str, data: Any) -> LoadedContract:
    if not isinstance(data, Mapping):
        problem = Problem(
            rule="file-unreadable",
            message=f"a contract is a mapping, not {kind_of(data)}",
            fix="Begin with `identity:`, `effect:` and `affordance:`.",
            source=file.source(prefix),
        )
        return LoadedContract(contract=None, problems=(problem,))
    contract, problems = examine(data)
    placed = tuple(problem.at(file.source(prefix + problem.pointer)) for problem in problems)
    return LoadedContract(contract=contract, problems=placed)
