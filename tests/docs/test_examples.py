"""Every example in the README and the docs does what its page says."""

from pathlib import Path

import pytest

from tests.adapter_tools import FRAMEWORKS
from tests.warm import programs

from .runner import read_blocks, run_page
from .standing_in import stand_ins

ROOT = Path(__file__).parents[2]
ELSEWHERE = {ROOT / "docs" / "frameworks" / f"{name}.md" for name in FRAMEWORKS}
"""Guides that run in their framework's environment: `tests/adapters/test_guides.py`."""
EVERY = [*ROOT.glob("README.md"), *sorted(ROOT.glob("docs/**/*.md"))]
PAGES = [page for page in EVERY if page not in ELSEWHERE]
SLOW = (
    *("approvals.md", "audit.md", "gateway.md", "gateway-auth.md"),
    *("http-tools.md", "metrics.md", "people.md", "policy.md", "README.md"),
    *("tutorial.md", "unknown-outcomes.md", "postgres.md", "rotate-keys.md"),
    *("incident.md", "plans.md", "runtime.md", "scaling.md", "http-api.md", "console.md"),
    *("code.md", "third-party-mcp.md", "troubleshooting.md", "scenarios.md", "replay.md"),
)
"""Pages whose examples are commands, each a program that has to start."""


def marked(page):
    name = page.relative_to(ROOT).as_posix()
    return pytest.param(page, id=name, marks=[pytest.mark.slow] if page.name in SLOW else [])


@pytest.mark.parametrize("page", [marked(page) for page in PAGES])
def test_examples_on_page_work(page, tmp_path):
    run_page(page, tmp_path, stand_ins, programs())


def test_every_example_that_is_not_run_says_why():
    not_run = [block for page in EVERY for block in read_blocks(page) if block.no_run]
    places = [f"{block.page.relative_to(ROOT)}:{block.line}" for block in not_run]
    print(f"{len(not_run)} examples are not run", *places, sep="\n")  # noqa: T201 - pytest -rP shows it
    silent = [place for place, block in zip(places, not_run, strict=True) if not block.has_reason]
    assert not silent, "put `<!-- no-run: the reason -->` right above these blocks"
