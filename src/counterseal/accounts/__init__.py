"""People who sign in: users and their roles, passwords, sessions and personal keys.

A `User` is the stored account, with its password hash and its roles in every tenant. A `Person` is
a user who works in one tenant, with the roles that count there. A `Voter` (see `approvals.terms`)
is a person who votes on a request for approval.
"""

from counterseal.accounts.sessions import SESSION_SECONDS, Session, Sessions, check_csrf
from counterseal.accounts.sign_in import People, RefusalReason, SignInRefused
from counterseal.accounts.users import EVERYWHERE, Accounts, Directory, Person, Role

__all__ = [
    "EVERYWHERE",
    "SESSION_SECONDS",
    "Accounts",
    "Directory",
    "People",
    "Person",
    "RefusalReason",
    "Role",
    "Session",
    "Sessions",
    "SignInRefused",
    "check_csrf",
]
