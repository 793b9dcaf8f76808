"""A page for what is refused before anybody knows who asks: without a session, files or scripts."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from starlette.responses import HTMLResponse, Response

from counterseal.web.console.headers import headers
from counterseal.web.console.problems import TITLES

__all__ = ["bare_page"]


def bare_page(
    status: int, message: str, *, https: bool = False, more: Mapping[str, str] | None = None
) -> Response:
    """`more` are headers beside those of every page."""
    title = escape(TITLES.get(status, TITLES[500]))
    text = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"</head><body><main><h1>{title}</h1><p>{escape(message)}</p></main></body></html>\n"
    )
    return HTMLResponse(text, status, headers={**headers(https=https), **(more or {})})
