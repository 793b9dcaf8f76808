"""The docs can be built as a site, and what would lead nowhere keeps it from being built."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tree(tmp_path):
    """The docs, and what stands beside them, to be spoilt."""
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    seal = "src/counterseal/web/console/static/seal.svg"
    for name in ("examples/case_assistant/README.md", seal):
        (tmp_path / name).parent.mkdir(parents=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    return tmp_path


def builder(root):
    spec = importlib.util.spec_from_file_location("docs_build", root / "docs" / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_on_the_map_once_and_every_entry_of_the_map_is_there():
    assert builder(ROOT).off_the_map() == []


def test_page_that_is_not_on_the_map_is_named(tree):
    (tree / "docs" / "lost.md").write_text("# Lost\n")
    (tree / "docs" / "tutorial.md").unlink()
    assert builder(tree).off_the_map() == [
        "docs/README.md: there is no docs/tutorial.md",
        "docs/README.md: docs/lost.md is not on the map",
    ]


def test_picture_that_is_not_there_is_named(tree):
    (tree / "docs" / "tutorial.md").write_text("# T\n\n![A seal](images/seal.png)\n")
    said = "docs/tutorial.md: there is no picture images/seal.png"
    assert said in builder(tree).missing_pictures()


def test_pages_are_laid_out_as_they_link_to_each_other_without_words_for_the_tests(tree, tmp_path):
    folder = tmp_path / "stage"
    folder.mkdir()
    page = "# Map\n\n## One\n\n[A](a.md)\n\n```console no-run\n$ true\n```\n"
    (tree / "docs" / "README.md").write_text(page)
    builder(tree).stage(folder)
    laid_out = (folder / "pages" / "docs" / "README.md").read_text()
    assert "```console\n$ true" in laid_out
    assert (folder / "pages" / "SECURITY.md").is_file()
    assert '{ "One" = [{ "A" = "docs/a.md" }] }' in (folder / "zensical.toml").read_text()


@pytest.mark.slow
def test_links_that_lead_nowhere_fail_the_build(tree):
    shutil.rmtree(tree / "docs" / "decisions")
    for page in (tree / "docs").rglob("*.md"):
        page.unlink()  # one page is built faster than all
    wrong = "[a](gone.md) [b](tutorial.md#no-such-heading) [c](../../elsewhere.md)"
    (tree / "README.md").write_text("# Front\n")
    (tree / "docs" / "README.md").write_text("# Map\n\n## One\n\n[Tutorial](tutorial.md)\n")
    (tree / "docs" / "tutorial.md").write_text(f"# Tutorial\n\n{wrong}\n")
    command = [sys.executable, tree / "docs" / "build.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert said.count("docs/tutorial.md:3:") == 3, said
