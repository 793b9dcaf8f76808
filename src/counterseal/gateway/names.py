"""Which tool has which name here. Two never have the same one: agents could not tell them apart.

A tool that somebody accepted has its name for good. One that nobody has accepted yet can't keep
another from it: else a stranger's server could take names away by listing them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

__all__ = ["Names"]


class _Owner(NamedTuple):
    server: str
    """Empty for a tool of this project."""
    tool: str
    """As the server calls it."""
    accepted: bool


class Names:
    """The names under which tools are known."""

    def __init__(self, project: Iterable[str]) -> None:
        self._owners = {name: _Owner("", name, accepted=True) for name in project}

    def claim(self, name: str, server: str, tool: str, *, accepted: bool) -> str:
        """Have a name for a tool of a server. Why it can't be had, with the fix; else nothing."""
        held, wanted = self._owners.get(name), _Owner(server, tool, accepted)
        if held is None or held[:2] == wanted[:2] or (accepted and not held.accepted):
            keeps = held is not None and held[:2] == wanted[:2] and held.accepted
            self._owners[name] = wanted._replace(accepted=accepted or keeps)
            return ""
        if held.server == server:
            both = f"{held.tool} and {tool} of {server} would both be called {name}"
            return f"{both}. Give one of them another name: `rename` in the overlay"
        theirs = held.server or "this project"
        return (
            f"{name} is a tool of {theirs} and of {server}. Give one of them another name: "
            f'`rename` in its overlay, or `prefix = "{server}_"` in [upstreams.{server}]'
        )

    def of(self, server: str) -> list[str]:
        """Those that a server's tools have."""
        return sorted(name for name, held in self._owners.items() if held.server == server)

    def __iter__(self) -> Iterator[str]:
        return iter(self._owners)
