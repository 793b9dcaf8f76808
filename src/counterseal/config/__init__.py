"""From `counterseal.toml` to what it speaks of: the settings, the contracts, a runtime with them.

`settings` reads the file and `tables` says what may stand in it, `modules` imports Python files,
`discovery` puts contracts from both kinds of file together, `opening` makes a runtime of it all.
Nothing here runs a tool.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from counterseal.config.discovery import Discovered, discover
from counterseal.config.settings import (
    FILE_NAME,
    ConfigError,
    Settings,
    find_config,
    load_settings,
)

if TYPE_CHECKING:
    from counterseal.config.opening import open_runtime

__all__ = [
    "FILE_NAME",
    "ConfigError",
    "Discovered",
    "Settings",
    "discover",
    "find_config",
    "load_settings",
    "open_runtime",
]


def __getattr__(name: str) -> Any:
    # Loaded when first used: it brings the whole runtime, which lint and show never need.
    if name != "open_runtime":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("counterseal.config.opening").open_runtime
