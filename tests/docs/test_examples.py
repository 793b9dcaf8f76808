"""Every example in the README and the docs does what its page says."""

from pathlib import Path

import pytest

from .runner import read_blocks, run_page

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("README.md"), *sorted(ROOT.glob("docs/**/*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_examples_on_page_work(page, tmp_path):
    run_page(page, tmp_path)


def test_every_example_that_is_not_run_says_why():
    not_run = [block for page in PAGES for block in read_blocks(page) if block.no_run]
    places = [f"{block.page.relative_to(ROOT)}:{block.line}" for block in not_run]
    print(f"{len(not_run)} examples are not run", *places, sep="\n")  # noqa: T201 - pytest -rP shows it
    silent = [place for place, block in zip(places, not_run, strict=True) if not block.has_reason]
    assert not silent, "put `<!-- no-run: the reason -->` right above these blocks"
