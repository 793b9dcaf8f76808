"""A policy: rules from one or more documents, layered, with one version.

Layers only add rules, and the strictest verdict wins, so that no file can loosen what another one
demands. The default policy is such a document too, and lies beside this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final

from counterseal.canonical import digest
from counterseal.documents import Document, read_document
from counterseal.errors import ContractError, Problem
from counterseal.policy.evaluate import CompiledPolicy
from counterseal.policy.model import PolicyError, Rule
from counterseal.policy.reading import Reader, duplicates, read_overlay_rules, read_rules

__all__ = ["DEFAULT", "Policy"]

DEFAULT: Final = Path(__file__).with_name("default.yaml")
"""The effect table, as policy."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Rules, in the order in which they were written."""

    rules: tuple[Rule, ...]

    @classmethod
    def load(
        cls,
        *paths: str | Path,
        default: bool = True,
        overlays: Mapping[str, str | Path] | None = None,
    ) -> Policy:
        """The rules of these files, upon the default ones. PolicyError lists what is wrong.

        `overlays` are those of upstreams, by the upstream's name: their rules are about nothing but
        that upstream's tools.
        """
        files: list[tuple[str, Document]] = []
        problems: list[Problem] = []
        for server, path in (*(("", path) for path in paths), *(overlays or {}).items()):
            try:
                files.append((server, read_document(path)))
            except ContractError as error:
                problems.extend(error.problems)
        return _layer(files, problems, default=default)

    @classmethod
    def from_data(
        cls, data: Mapping[str, Any], *, name: str = "policy", default: bool = True
    ) -> Policy:
        """The rules of a document that is not a file; `name` stands in errors."""
        return _layer([("", Document(name=name, data=data, places={}))], [], default=default)

    @staticmethod
    def default() -> Policy:
        """What holds when nobody wrote a policy."""
        return _default()

    @cached_property
    def version(self) -> str:
        """The hash of the rules: the same rules have the same version, wherever they lie."""
        return digest([rule.record() for rule in self.rules])

    def compile_for(self, contract: Mapping[str, Any]) -> CompiledPolicy:
        """Ready for calls of one contract, given as its facts. Meant for registration."""
        return CompiledPolicy(self.rules, contract, version=self.version)


@cache
def _default() -> Policy:
    return _layer([("", read_document(DEFAULT))], [], default=False)


def _layer(
    files: Iterable[tuple[str, Document]], problems: list[Problem], *, default: bool
) -> Policy:
    rules = list(_default().rules) if default else []
    for server, file in files:
        reader = Reader(file)
        rules += read_overlay_rules(reader, server) if server else read_rules(reader)
        problems += reader.problems
    problems += duplicates(rules)
    if problems:
        raise PolicyError(problems)
    return Policy(rules=tuple(rules))
