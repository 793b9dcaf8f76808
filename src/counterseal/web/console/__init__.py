"""The console: server-rendered pages where people decide and look.

Pages work without JavaScript; scripts keep them current and add keyboard shortcuts.

To add a page:

1. Write a handler in the file of its section, and add it to `routes(state) -> list[Route]` there:
   `state.get(path, handler)` or `state.form(path, handler)`. A handler is called for signed-in
   people only, and after a form was checked (origin, session, size). A new section is a new file,
   with its entry in `_PAGES` for a place in the navigation.
2. A handler takes a `PageRequest`. It reads `request.view`, which knows tenant and roles, and
   returns `await request.render("page.html", title=…, shows="/v1/…", …)`, or after a form
   `request.redirect(path)`. `request.parameter(name)` is a parameter of the URL,
   `request.form_value(name)` a field of the form. Exceptions that `web/problems.py` knows become
   error pages; raise `RequestProblemError(code, message)` for everything else.
3. A template extends `base.html` and fills `block main`. Macros are in `macros.html`:
   `{% import "macros.html" as ui with context %}`. Every form has `{{ ui.csrf() }}`. Addresses are
   made by `address("calls", call_id, tab="events")`, which quotes; files by `asset("main.js")`.
4. Values are text: never mark one as safe. `{{ value }}` is escaped, on one line, with invisible
   characters spelt out; `{{ text|lines }}` inside a `pre` keeps line breaks; `ui.json(value)` shows
   JSON, `{{ parts|parts }}` the parts of a sentence. Browsers ignore `style` and `on…` attributes.
5. An element that stays current has an `id` and `data-live="approvals"` (topics separated by
   spaces: `approvals`, `kills`, `record`; more are added in `live.marks_of`). It is replaced when
   the topic changes, unless the new element has the same `data-live-key`, which protects forms that
   a person is filling in.
6. A test in `tests/console` opens the page at 380 and 1600 pixels, in light and dark, without
   JavaScript, and with axe: add it to the list of pages in `test_accessibility.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from starlette.convertors import PathConvertor, register_url_convertor
from starlette.responses import Response
from starlette.routing import Match, Route

from counterseal.accounts import People, Person
from counterseal.views import TenantView
from counterseal.web.console import approvals, attention, audit, calls, overview, sign_in, tools
from counterseal.web.console.live import Broker, EventStream, FullError, marks_of, stream
from counterseal.web.console.page_request import ConsoleState, NavEntry, PageRequest
from counterseal.web.identity import origin_of
from counterseal.web.problems import RequestProblemError

if TYPE_CHECKING:
    from counterseal.runtime import Runtime

__all__ = ["Broker", "console_routes", "marks_of"]

_PAGES: Final = (
    (NavEntry("Approvals", "/approvals"), approvals.routes),
    (NavEntry("Calls", "/calls"), calls.routes),
    (NavEntry("Tools", "/tools"), tools.routes),
    (NavEntry("Needs attention", "/operator"), attention.routes),
    (NavEntry("Overview", "/overview"), overview.routes),
    (NavEntry("Audit", "/audit"), audit.routes),
)
"""The navigation, and the pages behind it."""


class _Anything(PathConvertor):
    """The rest of a path, line breaks included."""

    regex = "(?s:.*)"


register_url_convertor("anything", _Anything())


def console_routes(
    runtime: Runtime,
    people: People,
    view_for: Callable[[Person], TenantView],
    *,
    urls: Collection[str],
    broker: Broker | None = None,
    evaluation: Path | None = None,
) -> list[Route]:
    """Return all pages. Add them last: they answer every path that no other route has.

    `urls` are the console's own addresses, the public one first; cookies are for https only if that
    one is. Close the broker when the server stops, or open pages hold it up. `evaluation` is the
    file of the last recorded evaluation.
    """
    public = next(iter(urls), "")
    state = ConsoleState(
        people=people,
        view_for=view_for,
        broker=broker or Broker(marks_of(runtime)),
        clock=runtime.clock,
        origins=frozenset(filter(None, map(origin_of, urls))),
        https=public.startswith("https:"),
        navigation=tuple(entry for entry, _ in _PAGES),
        evaluation=evaluation,
    )
    otherwise = state.get("/{path:anything}", _not_found, open_to_all=True)
    otherwise.methods = set()  # of every method
    return [
        state.assets.route(),
        *sign_in.routes(state),
        *(route for _, routes in _PAGES for route in routes(state)),
        state.get("/events", _events, open_to_all=True),
        otherwise,
    ]


async def _events(request: PageRequest) -> Response:
    """Stream changes to an open page; answer 204 if it should not ask again."""
    session, state = request.session, request.state
    if session is None or request.parameter("tenant") != session.person.tenant:
        return Response(status_code=204)
    listening = ExitStack()
    try:
        listener = listening.enter_context(
            state.broker.listening(session.person.tenant, session.person.name)
        )
    except FullError:
        return Response(status_code=503, headers={"Retry-After": "30"})

    async def is_signed_in() -> bool:
        return await state.people.sessions.still_valid(session) is not None

    return EventStream(stream(listener, is_signed_in), done=listening.close)


async def _not_found(request: PageRequest) -> Response:
    """Answer a path that no page has, or not for this method."""
    scope = request.http.scope
    partial = [
        route for route in scope["router"].routes if route.matches(scope)[0] is Match.PARTIAL
    ]
    allowed = sorted({method for route in partial for method in route.methods or ()})
    if not allowed:
        raise RequestProblemError("not-found", "There is no such page.")
    methods = ", ".join(allowed)
    detail = f"This address accepts {methods} only."
    raise RequestProblemError("method-not-allowed", detail, headers={"Allow": methods})
