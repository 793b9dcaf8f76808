"""Templates. What is not the template's own is text, always, with what nobody sees spelt out.

Two things are so by construction: Jinja escapes every value, and every text that a template puts
out goes through `visible` first. A text of several lines goes through the filter `lines`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from counterseal.approvals.display import Part, clock, span, stamp, visible
from counterseal.canonical import thaw

__all__ = ["address", "environment", "json_lines", "lines"]

_MOST: Final = 200_000
"""Characters of one text that a page shows."""
_TOKEN: Final = re.compile(
    r'(?P<key>"(?:[^"\\]|\\.)*")(?=: )|(?P<string>"(?:[^"\\]|\\.)*")'
    r"|(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(?P<word>true|false|null)"
)


def environment(asset: Callable[[str], str]) -> Environment:
    """Where templates come from, and what they can use."""
    made = Environment(
        loader=PackageLoader("counterseal.web.console"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(asset=asset, address=address)
    made.filters.update(
        clock=clock, span=span, stamp=stamp, lines=lines, json_lines=json_lines, said=_said
    )
    made.filters["seconds"] = _seconds
    return made


def _shown(value: Any) -> Any:
    """Every single value that a template puts out goes through here."""
    if value is None:
        return "—"
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return visible(value)
    return value


def _seconds(moment: float | datetime) -> float:
    """Return a row's time in seconds since the epoch."""
    return moment.timestamp() if isinstance(moment, datetime) else moment


def address(*segments: str, **query: str | None) -> str:
    """A path of ours, each segment quoted, and those of the parameters that say something."""
    path = "/" + "/".join(quote(one.encode(errors="replace"), safe="") for one in segments)
    told = {name: value for name, value in query.items() if value}
    return f"{path}?{urlencode(told, errors='replace')}" if told else path


def lines(text: str) -> Markup:
    """A text of several lines, for an element that keeps them."""
    kept = text[:_MOST]
    shown = "\n".join(visible(line.replace("\t", "    ")) for line in kept.split("\n"))
    return Markup(escape(shown + _rest(text)))  # noqa: S704 - escaped right here


def json_lines(value: Any) -> Markup:
    """A JSON value, indented, with classes for its colours."""
    text = json.dumps(thaw(value), ensure_ascii=False, indent=2, default=repr)
    return Markup("\n").join(_coloured(visible(one)) for one in text[:_MOST].split("\n")) + _rest(
        text
    )


def _coloured(line: str) -> Markup:
    done, at = Markup(), 0
    for found in _TOKEN.finditer(line):
        done += escape(line[at : found.start()])
        done += Markup('<span class="json-{}">{}</span>').format(found.lastgroup, found.group())
        at = found.end()
    return done + escape(line[at:])


def _rest(text: str) -> str:
    more = len(text) - _MOST
    return "" if more <= 0 else f"\n… and {more:,} more characters, not shown"


def _said(parts: Iterable[Part]) -> Markup:
    """Pieces of an outline: values are marked, and no direction of text leaks out of them."""
    value = Markup('<bdi class="value">{}</bdi>')
    return Markup().join(
        value.format(visible(part.text)) if part.value else escape(visible(part.text))
        for part in parts
    )
