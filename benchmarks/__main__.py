"""All benchmarks in one house: `python3 dev.py bench`, or `python -m benchmarks`."""

from __future__ import annotations

import sys

from benchmarks import (
    adapters,
    call,
    gateway,
    growth,
    http_api,
    isolation,
    ledger,
    mcp_server,
    registry,
    replay,
    slowness,
    soak,
    startup,
    workers,
)
from benchmarks._house.command import main

BENCHES = {
    "call": call.bench,
    "adapters": adapters.bench,
    "ledger": ledger.bench,
    "mcp_server": mcp_server.bench,
    "gateway": gateway.bench,
    "http_api": http_api.bench,
    "growth": growth.bench,
    "workers": workers.bench,
    "registry": registry.bench,
    "replay": replay.bench,
    "isolation": isolation.bench,
    "slowness": slowness.bench,
    "startup": startup.bench,
    "soak": soak.bench,  # only when it is asked for
}

if __name__ == "__main__":
    sys.exit(main(BENCHES))
