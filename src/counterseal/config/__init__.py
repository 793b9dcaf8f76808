"""From `counterseal.toml` to what it speaks of: the settings, and the contracts they lead to.

`settings` reads the file, `modules` imports Python files, `discovery` puts contracts from both
kinds of file together. Nothing here runs a tool.
"""

from counterseal.config.discovery import Discovered, discover
from counterseal.config.settings import (
    FILE_NAME,
    ConfigError,
    Settings,
    find_config,
    load_settings,
)

__all__ = [
    "FILE_NAME",
    "ConfigError",
    "Discovered",
    "Settings",
    "discover",
    "find_config",
    "load_settings",
]
