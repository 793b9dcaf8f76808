"""From `counterseal.toml` to what it names: the settings, the contracts, a runtime.

`tables` declares what may be in the file, `settings` reads it, `discovery` finds contracts in files
and folders, `build` makes a runtime and its parts. Nothing here runs a tool.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from counterseal.config.discovery import Discovered, discover, pinned_contracts
from counterseal.config.settings import (
    FILE_NAME,
    ConfigError,
    Settings,
    find_config,
    load_settings,
    settings_from,
    usual_overlay,
    without_notifications,
)
from counterseal.config.tables import is_loopback

if TYPE_CHECKING:
    from counterseal.config.build import open_runtime

__all__ = [
    "FILE_NAME",
    "ConfigError",
    "Discovered",
    "Settings",
    "discover",
    "find_config",
    "is_loopback",
    "load_settings",
    "open_runtime",
    "pinned_contracts",
    "settings_from",
    "usual_overlay",
    "without_notifications",
]


def __getattr__(name: str) -> Any:
    # Loaded on first use: it imports the whole runtime, which lint and show don't need.
    if name != "open_runtime":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("counterseal.config.build"), name)
