"""The architecture page is true: every folder is on it, and every path on it exists."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "counterseal"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
TREE = re.search(r"```text\n(.*?)```", PAGE, re.DOTALL)[1]
LISTED = [line.split()[0] for line in TREE.splitlines() if line]
NAMED = sorted(
    {
        name
        for name in re.findall(r"`([^`\s]+)`", PAGE.replace(TREE, ""))
        if re.fullmatch(r"[\w./-]+", name) and ("/" in name[1:] or name.endswith((".py", ".toml")))
        if not name.startswith("/")
    }
)


def folders():
    """Every folder of the package that holds something."""
    for folder in PACKAGE.rglob("*"):
        files = folder.iterdir() if folder.is_dir() and folder.name != "__pycache__" else ()
        if any(file.is_file() for file in files):
            yield folder.relative_to(PACKAGE).as_posix()


def is_covered(folder):
    """Whether a folder is listed, or one that it is a detail of: it holds no Python itself."""
    if f"{folder}/" in LISTED or folder.startswith("cli/templates/"):  # projects, not our code
        return True
    return (
        not any((PACKAGE / folder).glob("*.py")) and f"{Path(folder).parent.as_posix()}/" in LISTED
    )


def test_every_folder_and_every_module_beside_them_is_on_the_page():
    missing = [folder for folder in folders() if not is_covered(folder)]
    missing += [file.name for file in PACKAGE.glob("*.py") if file.name not in LISTED]
    assert missing == []


@pytest.mark.parametrize("path", LISTED)
def test_what_the_tree_lists_is_there(path):
    there = PACKAGE / path
    assert there.is_dir() if path.endswith("/") else there.is_file()


@pytest.mark.parametrize("path", NAMED)
def test_what_the_text_names_is_there(path):
    assert (PACKAGE / path).exists() or (ROOT / path).exists()


def test_the_tree_and_the_import_rules_speak_of_the_same_folders():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (layers,) = (one for one in settings["tool"]["importlinter"]["contracts"] if "layers" in one)
    built = {
        name.strip()
        for row in layers["layers"]
        for name in re.split(r"[|:]", row)
        if not name.strip().startswith("(")
    }
    listed = {path.split("/")[0].removesuffix(".py") for path in LISTED}
    assert listed - built == {"__init__", *layers["exhaustive_ignores"]}
    assert built - listed == set()


def test_the_picture_shows_folders_that_are_there(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import diagram

    names = [name for row in diagram.rows(diagram.SOURCE.read_text()) for name, _ in row.boxes]
    shown = [name for name in names if name.endswith("/")]
    assert shown
    assert [name for name in shown if not (PACKAGE / name).is_dir()] == []
    assert diagram.svg() == (ROOT / "docs" / "images" / "architecture.svg").read_text()
    with pytest.raises(ValueError, match="line 1: "):
        diagram.svg("box")
    sys.modules.pop("diagram")
