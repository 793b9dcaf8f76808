"""The `counterseal` command on a disk whose commits take ten milliseconds longer."""

from __future__ import annotations

import sqlite3

from counterseal.cli import main
from tests.slow_disk import SlowDisk

if __name__ == "__main__":
    sqlite3.connect = SlowDisk(seconds=0.01).connect  # type: ignore[assignment]
    main()
