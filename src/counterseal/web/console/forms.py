"""What a form sends, read within bounds: so many bytes, so many fields, so many seconds."""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request

from counterseal.web.console.problems import Problem

__all__ = ["MOST_BYTES", "read_form"]

MOST_BYTES: Final = 64 * 1024
_MOST_FIELDS: Final = 100
_PATIENCE: Final = 20.0
"""Seconds that a client is given to send all of it."""
_KIND: Final = "application/x-www-form-urlencoded"


async def read_form(
    request: Request, *, most: int = MOST_BYTES, seconds: float = _PATIENCE
) -> dict[str, str]:
    """Fields by name; the last counts where one is given twice. Problem says what is wrong."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _KIND:
        raise Problem(415, "Forms are sent as the page has them.")
    try:
        async with asyncio.timeout(seconds):
            raw = await _body(request, most)
    except TimeoutError:
        raise Problem(408, "The form took too long to arrive. Send it again.") from None
    except ClientDisconnect:
        raise Problem(400, "The form did not arrive in full.") from None
    try:
        fields = parse_qsl(
            raw.decode("utf-8"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_MOST_FIELDS,
        )
    except ValueError:
        raise Problem(400, "The form can't be read.") from None
    return {name: value.replace("\r\n", "\n") for name, value in fields}


async def _body(request: Request, most: int) -> bytes:
    raw = bytearray()
    async for piece in request.stream():
        raw += piece
        if len(raw) > most:
            raise Problem(413, f"The form is longer than {most // 1024} KiB. Say it shorter.")
    return bytes(raw)
