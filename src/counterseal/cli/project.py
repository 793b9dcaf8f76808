"""The contracts that a command works on: the paths it was given, else the project's, else here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from counterseal.cli.output import Progress, fail

if TYPE_CHECKING:
    from counterseal.config import Discovered

__all__ = ["contracts_at"]


def contracts_at(paths: list[Path]) -> tuple[Discovered, ...]:
    """Never empty: finding nothing is the user's mistake, and ends the command."""
    from counterseal.config import ConfigError, discover, find_config, load_settings

    progress = Progress()
    try:
        config = find_config(Path.cwd())
        declared = load_settings(config).tool_paths(config) if config else ()
        wanted = paths or declared or (Path(),)
        found = discover(wanted, beside=declared if paths else (), progress=progress)
    except ConfigError as error:
        progress.done()
        fail(str(error))
    progress.done()
    if not found:
        where = ", ".join(str(path) for path in wanted)
        fail(
            f"No contracts found in {where}.",
            "Name a contract file or a Python file with tools, or start with `counterseal init`.",
        )
    return found
