"""People who sign in: who they are, and what they may do where."""

from counterseal.people.changing import Accounts
from counterseal.people.directory import Directory, LocalUsers
from counterseal.people.model import EVERYWHERE, Person, Role
from counterseal.people.people import People
from counterseal.people.sessions import Session, Sessions, check_csrf
from counterseal.people.signing_in import Refused, SignIn, Why
from counterseal.people.web import (
    cookie_in,
    cookie_name,
    dropped_cookie,
    origin_of,
    safe_next,
    same_origin,
    set_cookie,
)

__all__ = [
    "EVERYWHERE",
    "Accounts",
    "Directory",
    "LocalUsers",
    "People",
    "Person",
    "Refused",
    "Role",
    "Session",
    "Sessions",
    "SignIn",
    "Why",
    "check_csrf",
    "cookie_in",
    "cookie_name",
    "dropped_cookie",
    "origin_of",
    "safe_next",
    "same_origin",
    "set_cookie",
]
