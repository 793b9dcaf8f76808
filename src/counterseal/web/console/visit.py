"""One request of somebody at the console, and the way that every request takes.

`House` is what all requests share. It wraps each page: who is it, may the form be taken, what is
said when there is no page, and the headers of every answer. A page gets a `Visit` and is left with
asking the desk and rendering.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from counterseal.accounts import People, Person, Session, check_csrf
from counterseal.views import KillRow, RoleRequiredError, TenantView
from counterseal.web.browser import same_origin, session_cookie
from counterseal.web.console.assets import Assets
from counterseal.web.console.bare import bare_page
from counterseal.web.console.forms import read_form
from counterseal.web.console.headers import headers
from counterseal.web.console.live import Broker
from counterseal.web.console.problems import TITLES, Problem, problem_of
from counterseal.web.console.rendering import address, environment

__all__ = ["Handler", "House", "Section", "Visit"]

LIVE: Final = "counterseal-live"
"""A header: the page fetches itself anew. That nobody did is why the session's time runs on."""
_log = logging.getLogger("counterseal.web.console")


class Section(NamedTuple):
    """An entry of the header."""

    title: str
    path: str


@dataclass(frozen=True, kw_only=True)
class House:
    """What all visits have in common."""

    people: People
    view_for: Callable[[Person], TenantView]
    broker: Broker
    clock: Callable[[], float]
    origins: frozenset[str] = frozenset()
    """Our own, as browsers call them."""
    https: bool = False
    sections: Sequence[Section] = ()

    @cached_property
    def assets(self) -> Assets:
        return Assets(https=self.https)

    @cached_property
    def templates(self) -> Any:
        return environment(self.assets.url)

    def get(self, path: str, handler: Handler) -> Route:
        """A page for whoever is signed in."""
        return self._route(path, handler, "GET", self._signed_in)

    def post(self, path: str, handler: Handler) -> Route:
        """A form of theirs: from one of our pages, made for this session and tenant."""
        return self._route(path, handler, "POST", self._sent)

    def open_get(self, path: str, handler: Handler) -> Route:
        """A page for everybody."""
        return self._route(path, handler, "GET", lambda visit, then: then(visit))

    def open_post(self, path: str, handler: Handler) -> Route:
        """A form for everybody, from one of our pages."""
        return self._route(path, handler, "POST", self._sent_by_anybody)

    def other(self, path: str, handler: Handler) -> Route:
        """What no other route answers to, by whatever method."""
        route = self._route(path, handler, "GET", lambda visit, then: then(visit))
        route.methods = set()
        return route

    # --- the way of a request ---------------------------------------------------------------------

    def _route(self, path: str, handler: Handler, method: str, way: Way) -> Route:
        async def endpoint(request: Request) -> Response:
            visit = Visit(house=self, request=request)
            try:
                secret = session_cookie(request, https=self.https)
                visit.session = await self.people.session(secret, refresh=not visit.live)
                answer = await way(visit, handler)
            except Exception as error:  # noqa: BLE001 - whatever it is, a page says so
                answer = await self._problem(visit, error)
            return self._finished(visit, answer)

        return Route(path, endpoint=endpoint, methods=[method], include_in_schema=False)

    async def _signed_in(self, visit: Visit, then: Handler) -> Response:
        if visit.session is None:
            return visit.to_sign_in(visit.here)
        visit.view = self.view_for(visit.person)
        return await then(visit)

    async def _sent(self, visit: Visit, then: Handler) -> Response:
        self._refuse_foreign(visit)
        visit.form = await read_form(visit.request)
        if visit.session is None:
            return visit.to_sign_in(visit.came_from)
        if not check_csrf(visit.session, visit.form.pop("csrf", None)):
            raise Problem(403, "This form was made for another session. Reload its page.")
        visit.view = self.view_for(visit.person)
        return await then(visit)

    async def _sent_by_anybody(self, visit: Visit, then: Handler) -> Response:
        self._refuse_foreign(visit)
        visit.form = await read_form(visit.request)
        return await then(visit)

    def _refuse_foreign(self, visit: Visit) -> None:
        if not same_origin(visit.request.headers, self.origins):
            raise Problem(403, "This form comes from a page that is not ours.")

    def _finished(self, visit: Visit, answer: Response) -> Response:
        for name, value in headers(https=self.https).items():
            answer.headers.setdefault(name, value)
        return answer

    async def _problem(self, visit: Visit, error: Exception) -> Response:
        problem = problem_of(error)
        if problem is None:
            mark = f"err_{secrets.token_hex(6)}"
            _log.error("%s: a page failed", mark, exc_info=error)
            problem = Problem(500, f"It is in the log as {mark}. Nothing more is known here.")
        try:
            return await visit.problem(problem)
        except Exception:  # noqa: BLE001 - the same, with less of a page
            _log.exception("the page about a failure failed")
            return bare_page(500, "Nothing more is known here.", https=self.https)


@dataclass(kw_only=True)
class Visit:
    """One request."""

    house: House
    request: Request
    session: Session | None = None
    form: dict[str, str] = field(default_factory=dict)
    """What was sent."""
    _view: TenantView | None = field(default=None, init=False)

    @property
    def person(self) -> Person:
        if self.session is None:
            raise LookupError("nobody is signed in here")
        return self.session.person

    @property
    def view(self) -> TenantView:
        if self._view is None:
            raise LookupError("nobody is signed in here")
        return self._view

    @view.setter
    def view(self, view: TenantView) -> None:
        self._view = view

    @property
    def live(self) -> bool:
        """Whether it is the page that asks, and not a person."""
        return LIVE in self.request.headers

    @property
    def here(self) -> str:
        """This page's path and parameters."""
        url = self.request.url
        return f"{url.path}?{url.query}" if url.query else url.path

    @property
    def came_from(self) -> str:
        """The page of ours that a form was on."""
        parts = urlsplit(self.request.headers.get("referer", ""))
        return f"{parts.path}?{parts.query}" if parts.query else parts.path

    def asked(self, name: str) -> str | None:
        """A parameter of the URL; an empty one is as none."""
        return self.request.query_params.get(name, "").strip() or None

    def said(self, name: str) -> str:
        """A field of the form."""
        return self.form.get(name, "").strip()

    def go(self, path: str) -> Response:
        """To another page of ours."""
        return RedirectResponse(path, status_code=303)

    def to_sign_in(self, then: str) -> Response:
        return self.go(address("sign-in", next=then if then != "/" else None))

    async def render(
        self,
        template: str,
        *,
        title: str,
        shows: str | None = None,
        status: int = 200,
        **values: Any,
    ) -> Response:
        """A page. `shows` is the path of the `/v1` resource that it shows."""
        told = {
            "title": title,
            "shows": shows,
            "now": self.house.clock(),
            "path": self.request.url.path,
            "sections": self.house.sections,
            **await self._about_me(),
            **values,
        }
        text = self.house.templates.get_template(template).render(told)
        return HTMLResponse(text, status_code=status)

    async def problem(self, problem: Problem) -> Response:
        """A page that says why there is none."""
        answer = await self.render(
            "problem.html",
            title=TITLES.get(problem.status, TITLES[500]),
            status=problem.status,
            message=problem.message,
        )
        answer.headers.update(problem.headers)
        return answer

    async def _about_me(self) -> Mapping[str, Any]:
        if self.session is None:
            return {"me": None, "tenants": (), "csrf_token": "", "kills": (), "marks": {}}
        me = self.session.person
        return {
            "me": me,
            "tenants": await self.house.people.tenants(self.session.user),
            "csrf_token": self.session.csrf,
            "marks": self.house.broker.latest(me.tenant),
            "kills": self._kills(),
        }

    def _kills(self) -> Sequence[KillRow]:
        try:
            return (self._view or self.house.view_for(self.person)).tools.kills()
        except RoleRequiredError:
            return ()


Handler = Callable[[Visit], Awaitable[Response]]
Way = Callable[[Visit, Handler], Awaitable[Response]]
