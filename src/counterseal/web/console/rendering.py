"""Templates, static files, and the words for people (`words.yaml`).

Values in templates are always text: Jinja escapes each of them, and each goes through `visible`
first, which spells out invisible characters. Text of several lines goes through the filter `lines`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from importlib.resources import files
from pathlib import PurePath
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from ruamel.yaml import YAML
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from counterseal.approvals.display import Part, clock, span, stamp, visible
from counterseal.canonical import thaw

# --- words for people -----------------------------------------------------------------------------

WORDS: Final[Mapping[str, Any]] = YAML(typ="safe").load(
    (files("counterseal.web.console") / "words.yaml").read_text("utf-8")
)
"""Labels and sentences, by subject."""

# --- static files ---------------------------------------------------------------------------------

_MEDIA_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_FOREVER: Final = "public, max-age=31536000, immutable"


class Assets:
    """The folder `static`, read once.

    The address of a file contains a hash of all files, so that browsers can cache it forever, and
    scripts find each other in the same folder.
    """

    def __init__(self) -> None:
        folder = files("counterseal.web.console") / "static"
        self._files = {
            file.name: file.read_bytes()
            for file in sorted(folder.iterdir(), key=lambda file: file.name)
            if PurePath(file.name).suffix in _MEDIA_TYPES
        }
        digest = hashlib.sha256()
        for name, content in self._files.items():
            digest.update(b"%d %d %s%s" % (len(name), len(content), name.encode(), content))
        self._hash = digest.hexdigest()[:16]

    def url(self, name: str) -> str:
        """Return a file's address. Raises KeyError if there is no such file."""
        self._files[name]
        return f"/static/{self._hash}/{name}"

    def route(self) -> Route:
        return Route("/static/{hash}/{name}", endpoint=self._serve, methods=["GET"])

    async def _serve(self, request: Request) -> Response:
        name = request.path_params["name"]
        content = self._files.get(name)
        if content is None:
            return Response(status_code=404)
        # A page of another version gets today's file, which must not be cached as its own.
        same = request.path_params["hash"] == self._hash
        headers = {"Cache-Control": _FOREVER} if same else {}
        media_type = _MEDIA_TYPES[PurePath(name).suffix]
        return Response(content, media_type=media_type, headers=headers)


# --- templates ------------------------------------------------------------------------------------

_MAX_SHOWN: Final = 200_000
"""Characters of one text that a page shows."""
_GROUP: Final = 7
_ID: Final = re.compile(r"[\w:.-]{21,}", re.ASCII)
_LINE_BREAKS: Final = re.compile(r"(?<!\\)((?:\\\\)*)(?:\\n)+")
_TOKEN: Final = re.compile(
    r'(?P<key>"(?:[^"\\]|\\.)*")(?=: )|(?P<string>"(?:[^"\\]|\\.)*")'
    r"|(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(?P<word>true|false|null)"
)


def environment(asset: Callable[[str], str]) -> Environment:
    """Return the template environment. `asset` gives the address of a static file."""
    jinja = Environment(
        loader=PackageLoader("counterseal.web.console"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.globals.update(
        asset=asset, address=address, CODES=WORDS["codes"], STATUSES=WORDS["statuses"]
    )
    jinja.filters.update(
        clock=clock,
        span=span,
        stamp=stamp,
        lines=lines,
        json_lines=json_lines,
        parts=_parts,
        breakable=_breakable,
        # A consequence, with a sign for the line breaks in its quoted texts.
        one_line=lambda sentence: _LINE_BREAKS.sub(lambda match: f"{match[1]} ↵ ", sentence),
        # A row's time in seconds since the epoch.
        seconds=lambda moment: moment.timestamp() if isinstance(moment, datetime) else moment,
    )
    return jinja


def _finalize(value: Any) -> Any:
    """Return a value as a template writes it: no invisible characters, and a dash for None."""
    if value is None:
        return "—"
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return visible(value)
    return value


def address(*segments: str, **query: str | None) -> str:
    """Return a path of the console with quoted segments, and the parameters that have a value."""
    path = "/" + "/".join(quote(part.encode(errors="replace"), safe="") for part in segments)
    given = {name: value for name, value in query.items() if value}
    return f"{path}?{urlencode(given, errors='replace')}" if given else path


def lines(text: str) -> Markup:
    """Return text of several lines for an element that keeps line breaks."""
    kept = text[:_MAX_SHOWN]
    shown = "\n".join(visible(line.replace("\t", "    ")) for line in kept.split("\n"))
    return Markup(escape(shown + _omitted(text)))  # noqa: S704 - escaped right here


def json_lines(value: Any) -> Markup:
    """Return a JSON value, indented, with a class for each kind of token."""
    text = json.dumps(thaw(value), ensure_ascii=False, indent=2, default=repr)
    shown = Markup("\n").join(_coloured(visible(line)) for line in text[:_MAX_SHOWN].split("\n"))
    return shown + _omitted(text)


def _coloured(line: str) -> Markup:
    result, position = Markup(), 0
    for token in _TOKEN.finditer(line):
        result += escape(line[position : token.start()])
        result += Markup('<span class="json-{}">{}</span>').format(token.lastgroup, token.group())
        position = token.end()
    return result + escape(line[position:])


def _omitted(text: str) -> str:
    more = len(text) - _MAX_SHOWN
    return "" if more <= 0 else f"\n… and {more:,} more characters, not shown"


def _breakable(text: str) -> Markup:
    """Return an id that wraps between groups of characters, and never before its last one."""
    shown = visible(text)
    groups = [shown[start : start + _GROUP] for start in range(0, len(shown), _GROUP)]
    if len(groups) > 1 and len(groups[-1]) < _GROUP:
        groups[-2:] = ["".join(groups[-2:])]
    return Markup("<wbr>").join(groups)


def _parts(parts: Iterable[Part]) -> Markup:
    """Return the parts of a sentence. Values are marked, and keep their text direction inside.

    A value may be a text of several lines, which gets a block of its own.
    """
    result = Markup()
    for part in parts:
        shown = "\n".join(map(visible, part.text.split("\n"))) if part.value else visible(part.text)
        block = " block" if "\n" in shown else ""
        if part.value:
            text = _breakable(shown) if _ID.fullmatch(shown) else shown
            result += Markup('<bdi class="value{}">{}</bdi>').format(block, text)
        else:
            result += escape(shown)
    return result
