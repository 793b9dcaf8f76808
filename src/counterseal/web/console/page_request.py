"""One request to the console, and the steps that every request takes.

`ConsoleState` is shared by all requests. It wraps each page: it finds the session, checks forms,
and turns errors into pages. A page's handler gets a `PageRequest`, reads
`request.view`, and renders a template.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from math import ceil, floor
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from counterseal.accounts import People, Person, Session, check_csrf
from counterseal.views import TenantView
from counterseal.views.base import RoleRequiredError, window_seconds
from counterseal.web.console.live import Broker
from counterseal.web.console.rendering import Assets, address, environment
from counterseal.web.identity import same_origin, session_cookie
from counterseal.web.middleware import TITLES, bare_page, read_body
from counterseal.web.problems import RequestProblemError, problem_of

LIVE_HEADER: Final = "counterseal-live"
"""Sent when a page refreshes itself, which does not prolong the session."""
_log = logging.getLogger("counterseal.web.console")

# --- forms and times ------------------------------------------------------------------------------

_MAX_FORM: Final = 64 * 1024
_MAX_FIELDS: Final = 100
_FORM_TIMEOUT: Final = 20.0
"""Seconds that a client has to send a form."""
_FORM_TYPE: Final = "application/x-www-form-urlencoded"


async def read_form(
    request: Request, *, limit: int = _MAX_FORM, seconds: float = _FORM_TIMEOUT
) -> dict[str, str]:
    """Return a form's fields by name; of a repeated name, the last."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _FORM_TYPE:
        raise RequestProblemError("unsupported-media-type", f"Send the form as {_FORM_TYPE}.")
    try:
        raw = (await read_body(request, limit, seconds)).decode()
        fields = parse_qsl(raw, keep_blank_values=True, errors="strict", max_num_fields=_MAX_FIELDS)
    except (ValueError, ClientDisconnect):
        raise RequestProblemError("invalid-request", "The form cannot be read.") from None
    return {name: value.replace("\r\n", "\n") for name, value in fields}


def read_time(name: str, text: str | None) -> float | None:
    """Return a time from a form or an address; UTC if it has no zone. ValueError names it."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise ValueError(f"{name}: expected a time in UTC such as 2026-03-01T14:30") from None


def form_time(seconds: float | None, *, up: bool = False) -> str:
    """Return a time for a form's field, to the minute: rounded down, or up."""
    if seconds is None:
        return ""
    minutes = ceil(seconds / 60) if up else floor(seconds / 60)
    return f"{datetime.fromtimestamp(minutes * 60, UTC):%Y-%m-%dT%H:%M}"


# --- the state that all requests share ------------------------------------------------------------


class NavEntry(NamedTuple):
    """An entry of the navigation."""

    title: str
    path: str


@dataclass(frozen=True, kw_only=True)
class ConsoleState:
    """The parts that all requests share, and the routes made from handlers."""

    people: People
    view_for: Callable[[Person], TenantView]
    broker: Broker
    clock: Callable[[], float]
    origins: frozenset[str] = frozenset()
    """The console's own origins, as browsers write them."""
    https: bool = False
    navigation: Sequence[NavEntry] = ()
    evaluation: Path | None = None
    """The file of the last recorded evaluation."""

    @cached_property
    def assets(self) -> Assets:
        return Assets()

    @cached_property
    def templates(self) -> Any:
        return environment(self.assets.url)

    def get(self, path: str, handler: Handler, *, open_to_all: bool = False) -> Route:
        """Return the route of a page, for signed-in people unless it is open to all."""
        return self._route(path, handler, "GET", open_to_all=open_to_all)

    def post(self, path: str, handler: Handler, *, open_to_all: bool = False) -> Route:
        """Return the route of a form, which was made for this session and tenant."""
        return self._route(path, handler, "POST", open_to_all=open_to_all)

    def form(self, path: str, handler: Handler) -> tuple[Route, Route]:
        """Return the routes of a form below its page: one that takes it, and one that leads back.

        A browser that reloads the answer to a form asks for its address.
        """

        async def back(request: PageRequest) -> Response:
            return request.redirect(address(*request.http.scope["path"].split("/")[1:-1]))

        return self.post(path, handler), self.get(path, back)

    def _route(self, path: str, handler: Handler, method: str, *, open_to_all: bool) -> Route:
        async def answer(request: PageRequest) -> Response:
            """Check a form, and that the person is signed in; then let the handler answer."""
            is_form, page = method == "POST", request.path_and_query
            if is_form:
                if not same_origin(request.http.headers, self.origins):
                    detail = "This form comes from a page of another site."
                    raise RequestProblemError("csrf", detail)
                request.form, page = await read_form(request.http), request.form_page
            if not open_to_all:
                if request.session is None:
                    return request.redirect(address("sign-in", next=page if page != "/" else None))
                if is_form and not check_csrf(request.session, request.form.pop("csrf", None)):
                    detail = "This form was made for another session. Reload its page."
                    raise RequestProblemError("csrf", detail)
            return await handler(request)

        async def endpoint(http: Request) -> Response:
            request = PageRequest(state=self, http=http)
            try:
                secret = session_cookie(http, https=self.https)
                request.session = await self.people.sessions.read(
                    secret, refresh=not request.is_refresh
                )
                return await answer(request)
            except Exception as error:  # noqa: BLE001 - every error becomes a page
                return await self._error_page(request, error)

        return Route(path, endpoint=endpoint, methods=[method], include_in_schema=False)

    async def _error_page(self, request: PageRequest, error: Exception) -> Response:
        problem = problem_of(error)
        if problem is None:
            error_id = f"err_{secrets.token_hex(6)}"
            _log.error("%s: a page failed", error_id, exc_info=error)
            problem = RequestProblemError("internal", f"The error is logged as {error_id}.")
        try:
            response = await request.render(
                "error.html",
                title=TITLES.get(problem.kind.status, TITLES[500]),
                status=problem.kind.status,
                with_counts=False,
                message=problem.detail,
            )
        except Exception:  # noqa: BLE001 - the store may be down; a page without data still works
            _log.exception("the error page failed")
            return bare_page(500, "The error is logged.")
        response.headers.update(problem.headers)
        return response


# --- one request ----------------------------------------------------------------------------------


@dataclass(kw_only=True)
class PageRequest:
    """One request: who sent it, what they sent, and how to answer."""

    state: ConsoleState
    http: Request
    session: Session | None = None
    form: dict[str, str] = field(default_factory=dict)

    @property
    def person(self) -> Person:
        if self.session is None:
            raise LookupError("this request has no session")
        return self.session.person

    @cached_property
    def view(self) -> TenantView:
        """The person's view of their tenant. Raises RoleRequiredError for one without any role."""
        return self.state.view_for(self.person)

    @property
    def is_refresh(self) -> bool:
        """Whether the page refreshes itself."""
        return LIVE_HEADER in self.http.headers

    @property
    def path_and_query(self) -> str:
        url = self.http.url
        return f"{url.path}?{url.query}" if url.query else url.path

    @property
    def form_page(self) -> str:
        """The path and query of the page that the form was on."""
        parts = urlsplit(self.http.headers.get("referer", ""))
        return f"{parts.path}?{parts.query}" if parts.query else parts.path

    def segment(self, name: str) -> str:
        """Return a named segment of the path."""
        value: str = self.http.path_params[name]
        return value

    def parameter(self, name: str) -> str | None:
        """Return a parameter of the URL; None if it is missing or empty."""
        return self.http.query_params.get(name, "").strip() or None

    def form_value(self, name: str) -> str:
        """Return a field of the form; empty if it is missing."""
        return self.form.get(name, "").strip()

    def time_range(self) -> tuple[float | None, float | None]:
        """Return `since` and `until` of the URL, or the last `within` (24h). Raises ValueError."""
        since = read_time("since", self.parameter("since"))
        until = read_time("until", self.parameter("until"))
        within = self.parameter("within")
        if since is None and within is not None:
            since = (self.state.clock() if until is None else until) - window_seconds(within)
        return since, until

    def redirect(self, path: str) -> Response:
        """Send the browser to another page of ours."""
        return RedirectResponse(path, status_code=303)

    async def render(
        self,
        template: str,
        *,
        title: str,
        shows: str | None = None,
        status: int = 200,
        with_counts: bool = True,
        **values: Any,
    ) -> Response:
        """Return a page. `shows` is the path of the `/v1` resource that it shows.

        `with_counts` is whether the navigation says how much waits.
        """
        session, view, counts = self.session, None, dict[str, int]()
        with suppress(LookupError, RoleRequiredError):
            view = self.view
        if view is not None and with_counts:
            waiting, attention = await view.approvals.count(), await view.attention.count()
            counts = {"/approvals": waiting, "/operator": attention}
        context = {
            "title": title,
            "shows": shows,
            "now": self.state.clock(),
            "path": self.http.url.path,
            "navigation": self.state.navigation,
            "me": None if session is None else session.person,
            "tenants": () if session is None else await self.state.people.tenants(session.user),
            "csrf_token": "" if session is None else session.csrf,
            "marks": {} if session is None else self.state.broker.latest(session.person.tenant),
            "kills": () if view is None else view.tools.kills(),
            "counts": counts,
            **values,
        }
        text = self.state.templates.get_template(template).render(context)
        return HTMLResponse(text, status_code=status)


Handler = Callable[[PageRequest], Awaitable[Response]]
