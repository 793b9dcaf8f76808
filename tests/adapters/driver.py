"""Runs the cases of one framework in its own environment, and prints what came of them as JSON.

python driver.py NAME [CASE …]
python driver.py NAME --part PART FOLDER COUNTER      a part of a case, in a process to kill
"""

from __future__ import annotations

import asyncio
import faulthandler
import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import traceback
import urllib.request
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import TextIO

PATIENCE = 60.0
"""Seconds after which a case that hangs ends the whole run, with the place where it hangs."""
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import cases  # noqa: E402 - the folder was put on the path above
import faults  # noqa: E402
import world  # noqa: E402

from counterseal.adapters.host import Host  # noqa: E402


def main() -> None:
    name, *words = sys.argv[1:]
    warnings.simplefilter("ignore")
    Host.busy = 1.0  # for those that wait in vain: a killed worker holds its call for longer
    framework = importlib.import_module(f"frameworks.{name.replace('-', '_')}")
    for one in getattr(framework, "CASES", ()):
        cases.case(one)
    world.CHILDREN = nursery(framework)
    command = [sys.executable, HERE / "counter.py"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as counter:
        world.URL = f"http://127.0.0.1:{counter.stdout.readline().strip()}"
        lacks = getattr(framework, "LACKS", {})
        if words == ["--matrix"]:
            results = {
                name: [lacks[name], faults.NONE] if name in lacks else compare(framework, name)
                for name in faults.FAULTS
            }
        else:
            chosen = words or [name for name in cases.CASES if name not in lacks]
            results = {name: run(framework, name) for name in chosen}
        counter.stdin.close()
    versions = {package: version(package) for package in framework.PACKAGES}
    print(json.dumps({"versions": versions, "cases": results}))


def nursery(framework) -> TextIO:
    """Fork a process that runs parts of cases, each in a child of its own, which may be killed.

    It is made before anything else: importing a framework once more would take seconds.
    """
    ours, theirs = socket.socketpair()
    if os.fork():
        theirs.close()
        return ours.makefile("rw")
    ours.close()
    with theirs.makefile("rw") as orders:
        for line in orders:
            part, folder, world.URL = json.loads(line)
            child = os.fork()
            if child == 0:
                asyncio.run(cases.PARTS[part](world.World(framework, Path(folder))))
                os._exit(0)
            status = os.waitpid(child, 0)[1]
            orders.write(f"{os.waitstatus_to_exitcode(status)}\n")
            orders.flush()
    os._exit(0)


def run(framework, name: str) -> str | None:
    """Run one case. Returns what went wrong."""
    try:
        in_folder(framework, cases.CASES[name])
    except BaseException:  # noqa: BLE001 - reported to pytest
        return traceback.format_exc()
    return None


def compare(framework, name: str) -> list[str]:
    """Run one fault with the adapter, and with the framework alone, which may have several ends."""
    _, fault = faults.FAULTS[name]
    governed, alone = (in_folder(framework, fault, one) for one in (True, False))
    said, ends = getattr(framework, "VARIES", {}).get(name, (alone, ()))
    return [governed, said if alone in ends else alone]


def in_folder(framework, function, *more):
    """Run an async function of a world in a folder of its own, with nothing done outside yet."""
    urllib.request.urlopen(urllib.request.Request(world.URL, method="DELETE")).read()
    world.FAULTS.clear()
    world.ACTED = asyncio.Event()
    with tempfile.TemporaryDirectory(prefix="counterseal-") as folder:
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        try:
            return asyncio.run(function(world.World(framework, Path(folder)), *more))
        finally:
            faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
