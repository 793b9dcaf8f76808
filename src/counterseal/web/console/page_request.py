"""One request to the console, and the steps that every request takes.

`ConsoleState` is shared by all requests. It wraps each page: it finds the session, checks forms,
and turns errors into pages. A page's handler gets a `PageRequest`, reads
`request.view`, and renders a template.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from math import ceil, floor
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from counterseal.accounts import People, Person, Session, check_csrf
from counterseal.errors import GrantError, RegistryError, StoreError
from counterseal.operations.auditor import AmbiguousCallError
from counterseal.views import TenantView
from counterseal.views.base import NotFoundError, RoleRequiredError, window_seconds
from counterseal.views.record import VerificationRunningError
from counterseal.web.console.live import Broker
from counterseal.web.console.rendering import Assets, address, environment
from counterseal.web.identity import same_origin, session_cookie
from counterseal.web.middleware import TITLES, BodyTooLargeError, bare_page, read_body

LIVE_HEADER: Final = "counterseal-live"
"""Sent when a page refreshes itself, which does not prolong the session."""
_log = logging.getLogger("counterseal.web.console")

# --- errors ---------------------------------------------------------------------------------------


class PageError(Exception):
    """Ends a request with an error page."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers


def _page_error(error: Exception) -> PageError | None:
    """Return the page for an error; None for a defect, about which the page says nothing."""
    match error:
        case PageError():
            return error
        case NotFoundError():
            return PageError(404, str(error))
        case RoleRequiredError():
            return PageError(403, str(error))
        case RegistryError() | GrantError():
            return PageError(422, str(error))
        case AmbiguousCallError():
            return PageError(409, str(error))
        case VerificationRunningError():
            return PageError(429, str(error))
        case StoreError():
            return PageError(503, "The store cannot be reached. Try again in a moment.")
    return None


@contextmanager
def parameter_errors() -> Iterator[None]:
    """Answer a ValueError with 400: the address has a parameter that makes no sense."""
    try:
        yield
    except ValueError as error:
        raise PageError(400, str(error)) from None


# --- forms and times ------------------------------------------------------------------------------

_MAX_FORM: Final = 64 * 1024
_MAX_FIELDS: Final = 100
_FORM_TIMEOUT: Final = 20.0
"""Seconds that a client has to send a form."""
_FORM_TYPE: Final = "application/x-www-form-urlencoded"


async def read_form(
    request: Request, *, limit: int = _MAX_FORM, seconds: float = _FORM_TIMEOUT
) -> dict[str, str]:
    """Return a form's fields by name; of a repeated name, the last. Raises PageError."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _FORM_TYPE:
        raise PageError(415, f"Send the form as {_FORM_TYPE}.")
    try:
        raw = await read_body(request, limit, seconds)
    except BodyTooLargeError:
        raise PageError(413, f"The form is longer than {limit // 1024} KiB. Shorten it.") from None
    except TimeoutError:
        raise PageError(408, "The form took too long to arrive. Send it again.") from None
    except ClientDisconnect:
        raise PageError(400, "The form did not arrive in full.") from None
    try:
        fields = parse_qsl(
            raw.decode("utf-8"), keep_blank_values=True, errors="strict", max_num_fields=_MAX_FIELDS
        )
    except ValueError:
        raise PageError(400, "The form cannot be read.") from None
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

    @cached_property
    def assets(self) -> Assets:
        return Assets()

    @cached_property
    def templates(self) -> Any:
        return environment(self.assets.url)

    def get(self, path: str, handler: Handler) -> Route:
        """Return the route of a page for signed-in people."""
        return self._route(path, handler, "GET", self._signed_in)

    def post(self, path: str, handler: Handler) -> Route:
        """Return the route of a form that was made for this session and tenant."""
        return self._route(path, handler, "POST", self._submitted)

    def form(self, path: str, handler: Handler) -> tuple[Route, Route]:
        """Return the routes of a form below its page: one that takes it, and one that leads back.

        A browser that reloads the answer to a form asks for its address.
        """

        async def back(request: PageRequest) -> Response:
            return request.redirect(address(*request.http.scope["path"].split("/")[1:-1]))

        return self.post(path, handler), self.get(path, back)

    def open_get(self, path: str, handler: Handler) -> Route:
        """Return the route of a page that needs no session."""
        return self._route(path, handler, "GET", lambda request, handle: handle(request))

    def open_post(self, path: str, handler: Handler) -> Route:
        """Return the route of a form on one of our pages that needs no session."""
        return self._route(path, handler, "POST", self._submitted_without_session)

    def fallback(self, path: str, handler: Handler) -> Route:
        """Return the route for every method and path that no other route answers."""
        route = self._route(path, handler, "GET", lambda request, handle: handle(request))
        route.methods = set()
        return route

    # --- steps of a request -----------------------------------------------------------------------

    def _route(self, path: str, handler: Handler, method: str, step: Step) -> Route:
        async def endpoint(http: Request) -> Response:
            request = PageRequest(state=self, http=http)
            try:
                secret = session_cookie(http, https=self.https)
                request.session = await self.people.session(secret, refresh=not request.is_refresh)
                response = await step(request, handler)
            except Exception as error:  # noqa: BLE001 - every error becomes a page
                response = await self._error_page(request, error)
            return response

        return Route(path, endpoint=endpoint, methods=[method], include_in_schema=False)

    async def _signed_in(self, request: PageRequest, handle: Handler) -> Response:
        if request.session is None:
            return request.to_sign_in(request.path_and_query)
        request.view = self.view_for(request.person)
        return await handle(request)

    async def _submitted(self, request: PageRequest, handle: Handler) -> Response:
        self._check_origin(request)
        request.form = await read_form(request.http)
        if request.session is None:
            return request.to_sign_in(request.form_page)
        if not check_csrf(request.session, request.form.pop("csrf", None)):
            raise PageError(403, "This form was made for another session. Reload its page.")
        request.view = self.view_for(request.person)
        return await handle(request)

    async def _submitted_without_session(self, request: PageRequest, handle: Handler) -> Response:
        self._check_origin(request)
        request.form = await read_form(request.http)
        return await handle(request)

    def _check_origin(self, request: PageRequest) -> None:
        if not same_origin(request.http.headers, self.origins):
            raise PageError(403, "This form comes from a page of another site.")

    async def _error_page(self, request: PageRequest, error: Exception) -> Response:
        page_error = _page_error(error)
        if page_error is None:
            error_id = f"err_{secrets.token_hex(6)}"
            _log.error("%s: a page failed", error_id, exc_info=error)
            page_error = PageError(500, f"The error is logged as {error_id}.")
        try:
            return await request.error_page(page_error)
        except Exception:  # noqa: BLE001 - the store may be down; a page without data still works
            _log.exception("the error page failed")
            return bare_page(500, "The error is logged.")


# --- one request ----------------------------------------------------------------------------------


@dataclass(kw_only=True)
class PageRequest:
    """One request: who sent it, what they sent, and how to answer."""

    state: ConsoleState
    http: Request
    session: Session | None = None
    form: dict[str, str] = field(default_factory=dict)
    _view: TenantView | None = field(default=None, init=False)

    @property
    def person(self) -> Person:
        if self.session is None:
            raise LookupError("this request has no session")
        return self.session.person

    @property
    def view(self) -> TenantView:
        """The person's view of their tenant."""
        if self._view is None:
            raise LookupError("this request has no session")
        return self._view

    @view.setter
    def view(self, view: TenantView) -> None:
        self._view = view

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

    def to_sign_in(self, then: str) -> Response:
        return self.redirect(address("sign-in", next=then if then != "/" else None))

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
        context = {
            "title": title,
            "shows": shows,
            "now": self.state.clock(),
            "path": self.http.url.path,
            "navigation": self.state.navigation,
            **await self._person_context(),
            "counts": await self._counts() if with_counts else {},
            **values,
        }
        text = self.state.templates.get_template(template).render(context)
        return HTMLResponse(text, status_code=status)

    async def error_page(self, error: PageError) -> Response:
        """Return the page for an error."""
        title = TITLES.get(error.status, TITLES[500])
        response = await self.render(
            "error.html", title=title, status=error.status, with_counts=False, message=error.message
        )
        response.headers.update(error.headers)
        return response

    async def _person_context(self) -> Mapping[str, Any]:
        if self.session is None:
            return {"me": None, "csrf_token": "", "marks": {}, "kills": ()}
        person, view = self.session.person, self._tenant_view()
        return {
            "me": person,
            "tenants": await self.state.people.tenants(self.session.user),
            "csrf_token": self.session.csrf,
            "marks": self.state.broker.latest(person.tenant),
            "kills": view.tools.kills() if view else (),
        }

    async def _counts(self) -> Mapping[str, int]:
        """Return how much waits behind entries of the navigation."""
        view = self._tenant_view()
        if view is None:
            return {}
        waiting, attention = await view.approvals.count(), await view.attention.count()
        return {"/approvals": waiting, "/operator": attention}

    def _tenant_view(self) -> TenantView | None:
        """Return the person's view; None without a session, or for a person without any role."""
        try:
            return self._view or (self.state.view_for(self.person) if self.session else None)
        except RoleRequiredError:
            return None


Handler = Callable[[PageRequest], Awaitable[Response]]
Step = Callable[[PageRequest, Handler], Awaitable[Response]]
