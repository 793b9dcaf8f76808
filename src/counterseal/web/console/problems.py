"""What a page says when there is no page: in plain words, and nothing of the inside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from counterseal.errors import CountersealError, GrantError, RegistryError, StoreError
from counterseal.views import NotFoundError, RoleRequiredError

__all__ = ["TITLES", "Problem", "problem_of", "understood"]

TITLES: Final = {
    400: "This can't be understood",
    403: "Not allowed",
    404: "Not there",
    405: "Not like that",
    408: "Too slow",
    413: "Too long",
    415: "Not a form",
    421: "Another host",
    422: "That is not possible",
    429: "Too much at once",
    500: "Something went wrong here",
    503: "Not now",
}


class Problem(Exception):  # noqa: N818 - an answer that a page gives, not a fault
    """Ends a request with a page that says so."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers


def problem_of(error: Exception) -> Problem | None:
    """What to say about an error. None: it is a fault of ours, of which nothing is said."""
    match error:
        case Problem():
            return error
        case NotFoundError():
            return Problem(404, str(error))
        case RoleRequiredError():
            return Problem(403, str(error))
        case RegistryError() | GrantError():
            return Problem(422, str(error))
        case StoreError():
            return Problem(503, "The store can't be reached just now. Try again in a moment.")
        case CountersealError() | _:
            return None


@contextmanager
def understood() -> Iterator[None]:
    """Around what reads parameters: those that make no sense are the visitor's, not our fault."""
    try:
        yield
    except ValueError as error:
        raise Problem(400, str(error)) from None
