"""Draws the pictures in `images/` that are made from text: rows of boxes, and one chain.

`docs/generate.py` writes the pictures and checks that they are current. The format is explained in
`images/architecture.txt`. Nothing is measured or loaded: text is placed by counting characters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree as ET

SOURCE = Path(__file__).resolve().parent / "images" / "architecture.txt"
OVERVIEW = SOURCE.with_name("overview.txt")
WIDTH = 980
MARGIN = 20
LABEL_HEIGHT = 26
BOX_HEIGHT = 54
GAP = 12
ROW_GAP = 24
ROW_HEIGHT = LABEL_HEIGHT + BOX_HEIGHT + GAP
TONES = {
    "front": ("#e8f0fb", "#2f5d9b"),
    "middle": ("#eef1f4", "#55606e"),
    "call": ("#fdf1df", "#a86a12"),
    "store": ("#e7f4ea", "#2e7042"),
    "base": ("#f3ecf8", "#6d4590"),
}
"""Fill and line of each tone."""
GREY = "#55606e"
FONT = "system-ui, -apple-system, Segoe UI, Roboto, sans-serif"


@dataclass
class Row:
    """A labelled row of boxes."""

    label: str
    tone: str
    chain: bool
    boxes: list[tuple[str, str]] = field(default_factory=list)


def rows(text: str) -> list[Row]:
    """Read the text. ValueError names a line that cannot be read."""
    found: list[Row] = []
    tone = "middle"
    for number, line in enumerate(text.splitlines(), 1):
        words = line.strip()
        if not words or words.startswith("#"):
            continue
        verb, _, rest = words.partition(" ")
        if line.startswith(" ") and found:
            name, _, about = words.partition("|")
            found[-1].boxes.append((name.strip(), about.strip()))
        elif verb == "tone" and rest in TONES:
            tone = rest
        elif verb == "title":
            continue
        elif verb in ("band", "steps"):
            found.append(Row(rest, tone, chain=verb == "steps"))
        else:
            raise ValueError(f"line {number}: neither a title, a band, steps, a tone nor a box")
    return found


def overview() -> str:
    """Return the picture of the README."""
    return svg(OVERVIEW.read_text(encoding="utf-8"))


def svg(text: str | None = None) -> str:
    """Return the picture of a text; of the architecture if none is given."""
    text = SOURCE.read_text(encoding="utf-8") if text is None else text
    drawn = rows(text)
    title = next((line[6:] for line in text.splitlines() if line.startswith("title ")), "")
    height = 2 * MARGIN + ROW_HEIGHT * len(drawn) + ROW_GAP * (len(drawn) - 1)
    size = {"width": WIDTH, "height": height}
    namespace = {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {WIDTH} {height}"}
    root = ET.Element("svg", _texts({**namespace, **size, "font-family": FONT}))
    _add(root, "title", title)
    tip = {"viewBox": "0 0 8 8", "refX": 7, "refY": 4, "markerWidth": 7, "markerHeight": 7}
    marker = _add(_add(root, "defs"), "marker", id="tip", orient="auto", **tip)
    _add(marker, "path", d="M0,0 L8,4 L0,8 z", fill=GREY)
    _add(root, "rect", **size, rx=10, fill="#ffffff")
    top = MARGIN
    for index, row in enumerate(drawn):
        if index:
            _arrow(root, WIDTH / 2, top - ROW_GAP + 3, WIDTH / 2, top - 3)
        _draw(root, row, top)
        top += ROW_HEIGHT + ROW_GAP
    ET.indent(root)
    return ET.tostring(root, encoding="unicode") + "\n"


def _draw(root: ET.Element, row: Row, top: int) -> None:
    fill, line = TONES[row.tone]
    inner = WIDTH - 2 * MARGIN
    _add(root, "rect", x=MARGIN, y=top, width=inner, height=ROW_HEIGHT, rx=8, fill=fill)
    label = {"font-size": 13, "font-weight": 600, "fill": line}
    _add(root, "text", row.label, x=MARGIN + GAP, y=top + 18, **label)
    gap = 2 * GAP - 4 if row.chain else GAP
    width = (inner - 2 * GAP - gap * (len(row.boxes) - 1)) / len(row.boxes)
    left, box_top = float(MARGIN + GAP), top + LABEL_HEIGHT
    for index, (name, about) in enumerate(row.boxes):
        place = {"x": left, "y": box_top, "width": width, "height": BOX_HEIGHT}
        _add(root, "rect", **place, rx=6, fill="#ffffff", stroke=line)
        for text, y, size, weight, colour in (
            (name, 23, 14, 600, "#1d2733"),
            (about, 41, 12, 400, GREY),
        ):
            # Smaller where the box is too narrow: a character is about half as wide as high.
            size = min(size, int((width - 6) / (0.53 * max(len(text), 1))))  # noqa: PLW2901
            look = {"font-size": size, "font-weight": weight, "fill": colour}
            middle = {"x": left + width / 2, "text-anchor": "middle"}
            _add(root, "text", text, y=box_top + y, **middle, **look)
        if row.chain and index:
            middle_line = box_top + BOX_HEIGHT / 2
            _arrow(root, left - gap + 2, middle_line, left - 2, middle_line)
        left += width + gap


def _arrow(root: ET.Element, x1: float, y1: float, x2: float, y2: float) -> None:
    look = {"stroke": GREY, "stroke-width": 1.5, "marker-end": "url(#tip)"}
    _add(root, "line", x1=x1, y1=y1, x2=x2, y2=y2, **look)


def _add(parent: ET.Element, tag: str, text: str = "", **attributes: float | str) -> ET.Element:
    element = ET.SubElement(parent, tag, _texts(attributes))
    element.text = text or None
    return element


def _texts(attributes: Mapping[str, float | str]) -> dict[str, str]:
    return {
        name: value if isinstance(value, str) else f"{value:g}"
        for name, value in attributes.items()
    }
