"""`counterseal users`: people who sign in to the console: passwords, roles and personal keys.

Changes are written to the project's store; every worker applies them within a second.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer
from typer import Argument, Option

from counterseal.cli.options import (
    AllTenants,
    AsJson,
    Expires,
    StoreUrl,
    command_group,
    expiry,
    with_groups,
)
from counterseal.cli.project import OperatorChange, load_registry, require_packages
from counterseal.cli.render import fail, note, one_line, render, table

if TYPE_CHECKING:
    from counterseal.accounts import Accounts
    from counterseal.registry.identities import User

app = command_group("Manage people who sign in to the console, and what they may do.")

T = TypeVar("T")

_MAX_PASSWORD: Final = 4096
"""Characters of stdin that are read for a password."""

Name = Annotated[str, Argument(metavar="NAME", help="The user's name.")]
Roles = Annotated[
    list[str] | None,
    Option(
        "--role",
        metavar="R",
        help="viewer, approver, operator, admin, or a role of approvals; can be repeated.",
    ),
]
Tenant = Annotated[str, Option("--tenant", metavar="T", help="In which tenant; '*' for all.")]
FromStdin = Annotated[bool, Option("--password-stdin", help="Read the password from stdin.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserChange(OperatorChange):
    """The options of commands that change users."""

    def user(self, act: Callable[[Accounts], Awaitable[T]]) -> T:
        """Change users in the store, and return the result."""
        require_packages("argon2")
        from counterseal.accounts import Accounts

        return self.make(lambda operator: act(Accounts(operator)))

    def why_and_password(self, *, from_stdin: bool) -> tuple[str, str]:
        """Return the reason and the password: from stdin, or asked for twice and not shown."""
        from counterseal.accounts.users import check_password
        from counterseal.errors import RegistryError

        if from_stdin and not self.reason:
            fail("--password-stdin needs --reason TEXT: stdin is used for the password.")
        why = self.why()
        if from_stdin:
            password = sys.stdin.read(_MAX_PASSWORD + 1).removesuffix("\n").removesuffix("\r")
        elif _is_interactive():
            password = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        else:
            fail("Stdin is no terminal, so no password can be asked for.", "Use --password-stdin.")
        try:
            check_password(password)
        except RegistryError as error:
            fail(str(error))
        return why, password


def _is_interactive() -> bool:
    return sys.stdin.isatty()


@app.command("add")
@with_groups
def add(
    name: Name,
    tenant: Tenant,
    role: Roles = None,
    password_stdin: FromStdin = False,
    *,
    change: UserChange,
) -> None:
    """Add a user who can sign in. The password is asked for twice.

    A viewer reads, an approver decides on requests, an operator stops and grants tools, an admin
    does all of that. Use `roles` to add a user to further tenants.
    """
    if not role:
        fail("The role is missing. Give it with --role R.", "viewer, approver, operator or admin.")
    _note_powerless(role)
    why, password = change.why_and_password(from_stdin=password_stdin)
    user = change.user(lambda users: users.add(name, password, {tenant: role}, reason=why))
    change.print(user.export(), f"{user.name} can sign in.")


@app.command("list")
def list_users(tenant: AllTenants = None, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """List users, with their roles and personal keys."""
    known = load_registry(store).users
    users = [user for user in known if not tenant or {tenant, "*"} & user.tenants.keys()]
    if not users and not as_json:
        note("There are no users. Add one with `counterseal users add`.")
        return
    titles = ("User", "Roles", "Keys", "Last")
    render(
        {"users": [user.export() for user in users]},
        lambda: [table(map(_cells, users), titles=titles)],
        as_json=as_json,
    )


@app.command("set-password")
@with_groups
def set_password(name: Name, password_stdin: FromStdin = False, *, change: UserChange) -> None:
    """Set a new password for a user, and end their sessions. Personal keys stay."""
    why, password = change.why_and_password(from_stdin=password_stdin)
    user = change.user(lambda users: users.set_password(name, password, reason=why))
    change.print(user.export(), f"{user.name} has a new password.")


@app.command("roles")
@with_groups
def roles(
    name: Name,
    tenant: Tenant,
    role: Roles = None,
    none: Annotated[bool, Option("--none", help="Remove all roles there.")] = False,
    *,
    change: UserChange,
) -> None:
    """Replace the roles of a user in one tenant.

    In force from the next request on; sessions end, personal keys go on with the new roles.
    """
    if bool(role) == none:
        fail("Give either --role R or --none.")
    _note_powerless(role or ["viewer"])
    why = change.why()
    user = change.user(lambda users: users.set_roles(name, tenant, role or (), reason=why))
    change.print(user.export(), f"{user.name} has new roles.")


@app.command("disable")
@with_groups
def disable(name: Name, change: UserChange) -> None:
    """Refuse a user, by session and by key, until `enable`."""
    why = change.why()
    user = change.user(lambda users: users.set_active(name, active=False, reason=why))
    change.print(user.export(), f"{user.name} is disabled.")


@app.command("enable")
@with_groups
def enable(name: Name, change: UserChange) -> None:
    """Allow a disabled user to sign in again."""
    why = change.why()
    user = change.user(lambda users: users.set_active(name, active=True, reason=why))
    change.print(user.export(), f"{user.name} is enabled.")


@app.command("sign-out")
@with_groups
def sign_out(name: Name, change: UserChange) -> None:
    """End all sessions of a user. The user can sign in again."""
    why = change.why()
    user = change.user(lambda users: users.sign_out(name, reason=why))
    change.print(user.export(), f"{user.name} is signed out everywhere.")


@app.command("remove")
@with_groups
def remove(name: Name, change: UserChange) -> None:
    """Remove a user, with all sessions and personal keys. Their events stay on record."""
    why = change.why()
    made = change.user(lambda users: users.remove(name, reason=why))
    change.print(made.export(), f"{made.removed_user} is removed.")


@app.command("key")
@with_groups
def key(
    name: Name,
    tenant: Annotated[
        str | None, Option(metavar="T", help="For which tenant, if the user has several.")
    ] = None,
    expires: Expires = None,
    *,
    change: UserChange,
) -> None:
    """Issue a personal key for the HTTP API, and print it once.

    Send it as `Authorization: Bearer KEY`. It may always do what the user may do in that tenant.
    The store keeps only a hash.
    """
    until, why = expiry(expires), change.why()
    text, issued = change.user(lambda users: users.issue_key(name, tenant, until=until, reason=why))
    change.print({**issued.export(), "key": text}, text)
    note(f"The key is shown only this once. It is for the tenant {one_line(issued.tenant)}.")
    note(f"Revoke it with `counterseal users revoke-key {issued.key_id}`.")


@app.command("revoke-key")
@with_groups
def revoke_key(
    key_id: Annotated[str, Argument(metavar="KEY_ID", help="A personal key's id.")],
    change: UserChange,
) -> None:
    """Revoke a personal key on every worker.

    The id is in `counterseal users list`, and in the key itself after `cs_person_`.
    """
    why = change.why()
    user = change.user(lambda users: users.revoke_key(key_id, reason=why))
    change.print(user.export(), f"The key of {user.name} is revoked.")


def _note_powerless(roles: list[str]) -> None:
    from counterseal.accounts.users import Role

    if not set(roles) & set(Role):
        note(f"None of these roles may read anything. Add one of {', '.join(Role)}.")


def _cells(user: User) -> tuple[str, ...]:
    """Return four columns: with more, key ids would wrap at 80 columns."""
    name = [user.name, *([] if user.active else ["disabled"])]
    roles = [f"{tenant}: {', '.join(sorted(of))}" for tenant, of in sorted(user.tenants.items())]
    keys = [
        f"{key.key_id} {key.tenant}"
        + (f" until {key.expires_at:%Y-%m-%d}" if key.expires_at else "")
        for key in user.keys
    ]
    cells = (name, roles, keys, [f"{user.reason} ({user.by})"])
    return tuple("\n".join(map(one_line, lines)) for lines in cells)
