"""The least that a JSON endpoint can be: Starlette on uvicorn reads an object and writes one.

`_bare_endpoint.py PORT` serves `POST /v1/calls`, which gives the text back, and `GET /notices`.
"""

from __future__ import annotations

import sys

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


async def echo(request: Request) -> JSONResponse:
    body = await request.json()
    return JSONResponse({"data": {"text": body["arguments"]["text"]}})


async def notices(request: Request) -> JSONResponse:
    return JSONResponse({"case_id": request.query_params["case_id"]})


def main() -> None:
    routes = [Route("/v1/calls", echo, methods=["POST"]), Route("/notices", notices)]
    uvicorn.run(
        Starlette(routes=routes),
        host="127.0.0.1",
        port=int(sys.argv[1]),
        http="h11",  # the parser of `counterseal serve`
        log_level="warning",
        access_log=False,
    )


if __name__ == "__main__":
    main()
