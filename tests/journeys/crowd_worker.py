"""A process of a crowd: makes one call sixteen times at once, and says what each came to.

python -m tests.journeys.crowd_worker URL FILE WAIT
"""

import asyncio
import json
import sys
from pathlib import Path

from counterseal import Context, Grant, Principal, Proposal, Runtime, tool
from tests.waiting import turns

EACH = 16


async def main(url, file, wait):
    @tool(effect="draft", version="1.0.0", owner="tests")
    async def charge(ctx: Context) -> dict[str, str]:
        """Charge, which shows in a file."""
        with Path(file).open("a") as books:  # noqa: ASYNC230 - one line, at once
            books.write(f"{ctx.key}\n")
        await turns(1000)  # so that the others come while this one is under way
        return {"charge": "ch_1"}

    async with Runtime.open(url) as runtime:
        runtime.register(charge, grants=[Grant(agent="agent", tool="charge")])
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.readline)
        proposal = Proposal(tool="charge", arguments={}, run_id="run_1", key="k")
        who = Principal(tenant="acme", agent="agent")
        calls = (runtime.submit(proposal, who, wait=wait) for _ in range(EACH))
        seen = await asyncio.gather(*calls)
    told = [[one.code.value, one.idempotency_hit, one.data] for one in seen]
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
