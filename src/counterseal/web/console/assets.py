"""Styles and scripts, under addresses that change with their content, so that they can be kept.

All of them are in memory, and share one address: modules find one another beside themselves.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from counterseal.web.console.headers import headers

__all__ = ["Assets"]

_KINDS: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_FOR_GOOD: Final = "public, max-age=31536000, immutable"


class Assets:
    """The folder `static`, as it was when the process began."""

    def __init__(self, *, https: bool = False) -> None:
        folder = files("counterseal.web.console") / "static"
        self._all = {
            one.name: one.read_bytes()
            for one in sorted(folder.iterdir(), key=lambda one: one.name)
            if _ending(one.name) in _KINDS
        }
        told = hashlib.sha256()
        for name, raw in self._all.items():
            told.update(b"%d %d %s%s" % (len(name), len(raw), name.encode(), raw))
        self._mark = told.hexdigest()[:16]
        self._https = https

    def url(self, name: str) -> str:
        """KeyError when there is no such file: a template is wrong."""
        self._all[name]
        return f"/static/{self._mark}/{name}"

    def route(self) -> Route:
        return Route("/static/{mark}/{name}", endpoint=self._serve, methods=["GET"])

    async def _serve(self, request: Request) -> Response:
        name = request.path_params["name"]
        raw = self._all.get(name)
        if raw is None:
            return Response(status_code=404, headers=headers(https=self._https))
        # A page that another version made is given what there is, which nobody should keep.
        same = request.path_params["mark"] == self._mark
        kept = headers(https=self._https, keep=_FOR_GOOD if same else "no-store")
        return Response(raw, media_type=_KINDS[_ending(name)], headers=kept)


def _ending(name: str) -> str:
    return "." + name.rpartition(".")[2]
