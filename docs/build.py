"""Builds the docs as a site that can be browsed, in `site/`: the pages as they link to each other.

`python docs/build.py` writes the generated pages and then the site; `--check` writes neither, and
fails like it: when a link leads nowhere, when a page is missing on the map (`docs/README.md`), or
when the map names what is not there. What makes pages of the Markdown is Zensical.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
FRONT = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE")
"""What stands beside `docs/` and is linked from there."""
MAP = HERE / "README.md"
SEAL = ROOT / "src" / "counterseal" / "web" / "console" / "static" / "seal.svg"
LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+\.md)\)")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
PICTURE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)\)")
NOT_RUN = re.compile(r"^( *(?:`{3,}|~{3,})\S+) no-run$", re.MULTILINE)
"""A word for the tests, which would not be understood as a block's here."""


def pages() -> list[Path]:
    return sorted(HERE.rglob("*.md"))


def sections() -> dict[str, list[tuple[str, Path]]]:
    """The map: each section with the pages that it lists, by name and seen from the root."""
    found = {}
    for section in re.split(r"^## ", MAP.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        title, _, text = section.partition("\n")
        links = LINK.findall(text)
        found[title.strip()] = [
            (name, (HERE / target).resolve().relative_to(ROOT)) for name, target in links
        ]
    return found


def navigation() -> dict[str, object]:
    listed = {
        title: [{name: path.as_posix()} for name, path in them]
        for title, them in sections().items()
    }
    return {"Counterseal": "README.md", "All pages": "docs/README.md", **listed}


def off_the_map() -> list[str]:
    """What the map names and is not there, and what is there and has no place on it."""
    named = [path for them in sections().values() for _, path in them]
    there = {page.relative_to(ROOT) for page in pages() if page != MAP}
    gone = [f"docs/README.md: there is no {one}" for one in named if not (ROOT / one).is_file()]
    twice = {one for one in named if named.count(one) > 1}
    lost = there - set(named) - _decisions()
    return [
        *gone,
        *(f"docs/README.md: {one} is on the map twice" for one in sorted(twice)),
        *(f"docs/README.md: {one} is not on the map" for one in sorted(lost)),
    ]


def _decisions() -> set[Path]:
    """Their own page lists them."""
    return {one.relative_to(ROOT) for one in HERE.glob("decisions/0*.md")}


def missing_pictures() -> list[str]:
    """What pages show and is not there; the builder looks at links only."""
    return [
        f"{page.relative_to(ROOT)}: there is no picture {target}"
        for page in [ROOT / "README.md", *pages()]
        for target in PICTURE.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / target).is_file()
    ]


def stage(folder: Path) -> None:
    """Lay out what the site is made of: the same tree as here, so that links lead where they do."""
    text = (HERE / "zensical.toml").read_text(encoding="utf-8")
    nav = ",\n".join(f"  {_toml({name: what})}" for name, what in navigation().items())
    placed = text.replace("[project.theme]", f"nav = [\n{nav}\n]\n\n[project.theme]", 1)
    (folder / "zensical.toml").write_text(placed, encoding="utf-8")
    pictures = [path for path in (HERE / "images").iterdir() if path.is_file()]
    beside = [*(ROOT / name for name in FRONT), *ROOT.glob("examples/*/*.md")]
    for path in [*beside, *pages(), *pictures, HERE / "site.css"]:
        to = folder / "pages" / path.relative_to(ROOT)
        to.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            to.write_text(NOT_RUN.sub(r"\1", path.read_text(encoding="utf-8")), encoding="utf-8")
        else:
            shutil.copyfile(path, to)
    shutil.copyfile(SEAL, folder / "pages" / "docs" / SEAL.name)


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{json.dumps(k)} = {_toml(v)}' for k, v in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value)


def build(folder: Path) -> bool:
    """Whether all went well; else what did not is printed."""
    stage(folder)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        told = COLOUR.sub("", done.stdout + done.stderr)
        print(told.partition("Traceback (most recent")[0], file=sys.stderr)
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="only see whether it can be built")
    checking = parser.parse_args().check
    if not checking:
        import generate  # noqa: PLC0415 - it loads the whole product, and a check needs none of it

        generate.write()
    problems = [*off_the_map(), *missing_pictures()]
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        return 1
    with tempfile.TemporaryDirectory(prefix="counterseal-docs-") as name:
        if not build(Path(name)):
            return 1
        if not checking:
            shutil.rmtree(ROOT / "site", ignore_errors=True)
            shutil.copytree(Path(name) / "site", ROOT / "site")
            print(f"The site is in site/: open {ROOT / 'site' / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
