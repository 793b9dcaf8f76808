"""`counterseal users`: people who sign in to the console: passwords, roles and personal keys.

Changes are written to the project's store; every worker applies them within a second.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer
from typer import Argument, Option

from counterseal.cli.options import AsJson, By, Expires, Reason, StoreUrl, expiry
from counterseal.cli.project import ask_reason, load_registry, operate, require_packages
from counterseal.cli.render import fail, note, one_line, render, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from counterseal.accounts import Accounts
    from counterseal.registry.identities import User

app = typer.Typer(
    help="Manage people who sign in to the console, and what they may do.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

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


@app.command("add")
def add(
    name: Name,
    tenant: Tenant,
    role: Roles = None,
    password_stdin: FromStdin = False,
    reason: Reason = None,
    by: By = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Add a user who can sign in. The password is asked for twice.

    A viewer reads, an approver decides on requests, an operator stops and grants tools, an admin
    does all of that. Use `roles` to add a user to further tenants.
    """
    if not role:
        fail("The role is missing. Give it with --role R.", "viewer, approver, operator or admin.")
    _note_powerless(role)
    why = _reason(reason, password_stdin=password_stdin)
    password = _password(password_stdin=password_stdin)
    user = _change(store, by, lambda users: users.add(name, password, {tenant: role}, reason=why))
    _print_user(user, f"{user.name} can sign in.", as_json=as_json)


@app.command("list")
def list_users(
    tenant: Annotated[str | None, Option(metavar="T", help="Of one tenant only.")] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """List users, with their roles and personal keys."""
    known = load_registry(store).users
    users = [user for user in known if not tenant or {tenant, "*"} & user.tenants.keys()]
    if not users and not as_json:
        note("There are no users. Add one with `counterseal users add`.")
        return

    def page() -> Iterator[RenderableType]:
        yield table([_cells(user) for user in users], titles=("User", "Roles", "Keys", "Last"))

    render({"users": [user.export() for user in users]}, page, as_json=as_json)


@app.command("set-password")
def set_password(
    name: Name,
    password_stdin: FromStdin = False,
    reason: Reason = None,
    by: By = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Set a new password for a user, and end their sessions. Personal keys stay."""
    why = _reason(reason, password_stdin=password_stdin)
    password = _password(password_stdin=password_stdin)
    user = _change(store, by, lambda users: users.set_password(name, password, reason=why))
    _print_user(user, f"{user.name} has a new password.", as_json=as_json)


@app.command("roles")
def roles(
    name: Name,
    tenant: Tenant,
    role: Roles = None,
    none: Annotated[bool, Option("--none", help="Remove all roles there.")] = False,
    reason: Reason = None,
    by: By = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Replace the roles of a user in one tenant.

    In force from the next request on; sessions end, personal keys go on with the new roles.
    """
    if bool(role) == none:
        fail("Give either --role R or --none.")
    _note_powerless(role or ["viewer"])
    why = ask_reason(reason)
    user = _change(store, by, lambda users: users.set_roles(name, tenant, role or (), reason=why))
    _print_user(user, f"{user.name} has new roles.", as_json=as_json)


@app.command("disable")
def disable(
    name: Name,
    reason: Reason = None,
    by: By = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Refuse a user, by session and by key, until `enable`."""
    why = ask_reason(reason)
    user = _change(store, by, lambda users: users.set_active(name, active=False, reason=why))
    _print_user(user, f"{user.name} is disabled.", as_json=as_json)


@app.command("enable")
def enable(
    name: Name,
    reason: Reason = None,
    by: By = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Allow a disabled user to sign in again."""
    why = ask_reason(reason)
    user = _change(store, by, lambda users: users.set_active(name, active=True, reason=why))
    _print_user(user, f"{user.name} is enabled.", as_json=as_json)


@app.command("sign-out")
def sign_out(
    name: Name,
    reason: Reason = None,
    by: By = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """End all sessions of a user. The user can sign in again."""
    why = ask_reason(reason)
    user = _change(store, by, lambda users: users.sign_out(name, reason=why))
    _print_user(user, f"{user.name} is signed out everywhere.", as_json=as_json)


@app.command("remove")
def remove(
    name: Name,
    reason: Reason = None,
    by: By = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Remove a user, with all sessions and personal keys. Their events stay on record."""
    why = ask_reason(reason)
    change = _change(store, by, lambda users: users.remove(name, reason=why))
    render(change.export(), lambda: [f"{change.removed_user} is removed."], as_json=as_json)


@app.command("key")
def key(
    name: Name,
    tenant: Annotated[
        str | None, Option(metavar="T", help="For which tenant, if the user has several.")
    ] = None,
    expires: Expires = None,
    reason: Reason = None,
    by: By = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Issue a personal key for the HTTP API, and print it once.

    Send it as `Authorization: Bearer KEY`. It may always do what the user may do in that tenant.
    The store keeps only a hash.
    """
    until, why = expiry(expires), ask_reason(reason)
    text, issued = _change(
        store, by, lambda users: users.issue_key(name, tenant, until=until, reason=why)
    )
    render({**issued.export(), "key": text}, lambda: [text], as_json=as_json)
    note(f"The key is shown only this once. It is for the tenant {one_line(issued.tenant)}.")
    note(f"Revoke it with `counterseal users revoke-key {issued.key_id}`.")


@app.command("revoke-key")
def revoke_key(
    key_id: Annotated[str, Argument(metavar="KEY_ID", help="A personal key's id.")],
    reason: Reason = None,
    by: By = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a personal key on every worker.

    The id is in `counterseal users list`, and in the key itself after `cs_person_`.
    """
    why = ask_reason(reason)
    user = _change(store, by, lambda users: users.revoke_key(key_id, reason=why))
    _print_user(user, f"The key of {user.name} is revoked.", as_json=as_json)


# Helpers -----------------------------------------------------------------------------------------


def _change(store: str | None, by: str | None, act: Callable[[Accounts], Awaitable[T]]) -> T:
    require_packages("argon2")
    from counterseal.accounts import Accounts

    return operate(store, by, lambda operator: act(Accounts(operator)))


def _reason(given: str | None, *, password_stdin: bool) -> str:
    if password_stdin and not given:
        fail("--password-stdin needs --reason TEXT: stdin is used for the password.")
    return ask_reason(given)


def _password(*, password_stdin: bool) -> str:
    """Read the password from stdin, or ask for it twice without showing it."""
    from counterseal.accounts.users import check_password
    from counterseal.errors import RegistryError

    if password_stdin:
        password = sys.stdin.read(_MAX_PASSWORD + 1).removesuffix("\n").removesuffix("\r")
    elif _is_interactive():
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        fail("Stdin is no terminal, so no password can be asked for.", "Use --password-stdin.")
    try:
        check_password(password)
    except RegistryError as error:
        fail(str(error))
    return password


def _is_interactive() -> bool:
    return sys.stdin.isatty()


def _note_powerless(roles: list[str]) -> None:
    from counterseal.accounts.users import Role

    if not set(roles) & set(Role):
        note(f"None of these roles may read anything. Add one of {', '.join(Role)}.")


def _print_user(user: User, text: str, *, as_json: bool) -> None:
    render(user.export(), lambda: [text], as_json=as_json)


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
