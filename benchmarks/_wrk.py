"""Saturation by wrk, from Debian's packages: a client that leaves the processors to the server.

Every request has another text, and every answer is looked at: refusals are fast, too.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks._house.environments import Unavailable
from benchmarks._house.rows import Turn

SCRIPT = """\
before, after, number, refused, answer = {before}, {after}, 0, 0, ""
wrk.method = "POST"
wrk.path = {path}
{headers}
local threads = {{}}
setup = function(thread) table.insert(threads, thread) end
request = function()
  number = number + 1
  return wrk.format(nil, nil, nil, before .. number .. after)
end
response = function(status, headers, body)
  if status ~= 200 or not string.find(body, {text}, 1, true) then
    refused = refused + 1
    answer = status .. " " .. string.sub(body, 1, 300)
  end
end
done = function(summary, latency, requests)
  io.write(string.format("\\n@%d %d %d %f", summary.requests, summary.duration,
    threads[1]:get("refused") or 0, latency:percentile(99)))
  io.write("@" .. (threads[1]:get("answer") or ""))
end
"""
TEXT = "TEXT"
"""Stands in a body where each request has a text of its own."""


async def saturate(
    url: str, headers: Mapping[str, str], body: object, *, in_flight: int, folder: Path
) -> Turn:
    """Send the body for about a second over so many connections. Returns the time of a call."""
    wrk = shutil.which("wrk")
    if wrk is None:
        raise Unavailable("wrk is not installed: apt-get install wrk")
    text = f"line {time.time_ns()}-"
    before, after = json.dumps(body).replace(TEXT, text + TEXT).split(TEXT)
    base, _, path = url.removeprefix("http://").partition("/")
    script = folder / "wrk.lua"
    script.write_text(
        SCRIPT.format(
            before=json.dumps(before),
            after=json.dumps(after),
            path=json.dumps(f"/{path}"),
            text=json.dumps(text),
            headers="\n".join(
                f"wrk.headers[{json.dumps(name)}] = {json.dumps(value)}"
                for name, value in {**headers, "Content-Type": "application/json"}.items()
            ),
        ),
        encoding="utf-8",
    )
    process = await asyncio.create_subprocess_exec(
        *(wrk, "-t1", f"-c{in_flight}", "-d1s", "-s", str(script), f"http://{base}"),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    _, _, report = output.decode(errors="replace").partition("\n@")
    figures, _, answer = report.partition("@")
    if not figures:
        raise Unavailable(f"wrk failed: {output.decode(errors='replace')[-300:]}")
    requests, micros, refused, p99 = (float(word) for word in figures.split())
    if refused or not requests:
        raise Unavailable(f"{refused:.0f} of {requests:.0f} calls were refused: {answer}")
    return Turn(micros / 1e6 / requests, [p99 / 1e6] * 100, int(requests))
