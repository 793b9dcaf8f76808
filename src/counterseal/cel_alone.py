"""The CEL library without its command line.

The library loads that with itself, and with it a terminal, highlighters and tables: a quarter of
the time that a program takes until its first call. Whoever wants it imports `cel.cli` afterwards.
"""

from __future__ import annotations

import sys
from types import ModuleType

__all__ = ["cel"]

_CLI = "cel.cli"

if "cel" in sys.modules:
    import cel
else:
    sys.modules[_CLI] = _stand_in = ModuleType(_CLI)
    try:
        import cel
    finally:
        if sys.modules.get(_CLI) is _stand_in:
            del sys.modules[_CLI]
    if getattr(cel, "cli", None) is _stand_in:
        del cel.cli
