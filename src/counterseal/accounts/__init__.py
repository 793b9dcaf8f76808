"""People who sign in: who they are, and what they may do where."""

from counterseal.accounts.changing import Accounts
from counterseal.accounts.directory import Directory, LocalUsers
from counterseal.accounts.model import EVERYWHERE, Person, Role
from counterseal.accounts.people import People
from counterseal.accounts.sessions import Session, Sessions, check_csrf
from counterseal.accounts.signing_in import Refused, SignIn, Why
from counterseal.accounts.web import (
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
