"""The fail matrix: `python -m tests.adapters.matrix` runs every fault and writes the page.

With names, only the rows of these frameworks are measured anew. `--adapters` tests that the page
says what the faults do now.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.adapter_tools import FRAMEWORKS, ROOT, adapter_python

PAGE = ROOT / "docs" / "frameworks" / "fail-matrix.md"
HERE = Path(__file__).parent
_SENTENCE = re.compile(r'^@fault\("(.*)"\)\nasync def (\w+)', re.MULTILINE)
_HEAD = """# The fail matrix

What happens to the effects of an agent under faults: with an adapter, and with the framework alone.
The frameworks run with their own scripted models; the effects are counted in another process.
*Alone* means with the approval that the framework itself offers, answered with yes, and with its
retry switched on where it has one. Bold: alone, something happens that should not, or too often.

The tests write this page (`python -m tests.adapters.matrix`) and compare it with what happens.

"""


def measure(framework: str) -> dict[str, Any]:
    """Run all faults of a framework in its environment."""
    command = [adapter_python(framework), HERE / "driver.py", framework, "--matrix"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-4000:])
    return json.loads(done.stdout.splitlines()[-1])


def rows(measured: dict[str, Any]) -> list[str]:
    """The lines of a framework's table."""
    sentences = {name: text for text, name in _faults()}
    lines = []
    for name, (governed, alone) in measured["cases"].items():
        shown = alone if alone in (governed, "-") else f"**{alone}**"
        lines.append(f"| {sentences[name]} | {governed} | {shown} |")
    return lines


def _faults() -> list[tuple[str, str]]:
    return _SENTENCE.findall((HERE / "faults.py").read_text(encoding="utf-8"))


def section(framework: str, measured: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in measured["versions"].items())
    table = ["| fault | with the adapter | alone |", "|---|---|---|", *rows(measured)]
    return f"## {framework}\n\nMeasured with {versions}.\n\n" + "\n".join(table) + "\n"


def sections() -> dict[str, str]:
    """The parts of the page as it is, by framework."""
    if not PAGE.exists():
        return {}
    parts = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return {part.split("\n", 1)[0]: f"## {part.strip()}\n" for part in parts}


def main() -> None:
    known = sections()
    for framework in sys.argv[1:] or FRAMEWORKS:
        known[framework] = section(framework, measure(framework))
    text = "\n".join(known[name] for name in FRAMEWORKS if name in known)
    PAGE.write_text(_HEAD + text, encoding="utf-8")


if __name__ == "__main__":
    main()
