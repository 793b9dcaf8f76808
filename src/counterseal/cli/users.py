"""`counterseal users`: who can sign in to the console, their passwords, roles and personal keys.

Works on the project's store: every worker knows of a change a second later.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from counterseal.cli.api_keys import Expires, expiry
from counterseal.cli.operators import AsJson, By, Reason, Store, address, just_look, operate, why
from counterseal.cli.output import fail, note, one_line, print_json, print_styled
from counterseal.cli.serving import need_gateway
from counterseal.cli.trying import project_settings, user_name

if TYPE_CHECKING:
    from counterseal.accounts import Accounts
    from counterseal.registry.identities import User

__all__ = ["app"]

app = typer.Typer(
    help="Say who can sign in to the console, and what they may do.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

T = TypeVar("T")

_MOST: Final = 4096
"""How much of stdin is read for a password."""

Name = Annotated[str, typer.Argument(metavar="NAME", help="The user's name.")]
Roles = Annotated[
    list[str] | None,
    typer.Option(
        "--role",
        metavar="R",
        help="viewer, approver, operator, admin, or one that approvals ask for; can be repeated.",
    ),
]
Tenant = Annotated[
    str, typer.Option("--tenant", metavar="T", help="In which tenant; '*' for all of them.")
]
FromStdin = Annotated[
    bool, typer.Option("--password-stdin", help="Read the password from stdin, without asking.")
]


@app.command("add")
def add(
    name: Name,
    tenant: Tenant,
    role: Roles = None,
    password_stdin: FromStdin = False,
    reason: Reason = None,
    by: By = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Add somebody who can sign in. The password is asked for twice.

    A viewer looks, an approver decides what waits, an operator stops and grants tools, an admin
    does all of that. A user of several tenants gets the further ones with `roles`.
    """
    if not role:
        fail("Say with which role, with --role R.", "viewer, approver, operator, or admin.")
    _note_powerless(role)
    said = _said(reason, password_stdin=password_stdin)
    password = _password(password_stdin=password_stdin)
    made = _change(store, by, lambda users: users.add(name, password, {tenant: role}, reason=said))
    _print_user(made, f"{made.name} can sign in.", as_json=as_json)


@app.command("list")
def list_users(
    tenant: Annotated[
        str | None, typer.Option("--tenant", metavar="T", help="Those of one tenant only.")
    ] = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """List who can sign in, with their roles and personal keys."""
    from counterseal.registry import Registry

    registry = Registry()
    operate(address(project_settings(), store), registry, "-", just_look)
    found = [one for one in registry.users if tenant is None or {tenant, "*"} & one.tenants.keys()]
    if as_json:
        print_json({"users": [one.export() for one in found]})
        return
    if not found:
        note("There are no users. `counterseal users add` makes one.")
        return
    from counterseal.cli.layout import table

    print_styled(table([_row(one) for one in found], titles=("User", "Roles", "Keys", "Last")))


@app.command("set-password")
def set_password(
    name: Name,
    password_stdin: FromStdin = False,
    reason: Reason = None,
    by: By = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Give a user another password, and end their sessions. Personal keys stay."""
    said = _said(reason, password_stdin=password_stdin)
    password = _password(password_stdin=password_stdin)
    made = _change(store, by, lambda users: users.set_password(name, password, reason=said))
    _print_user(made, f"{made.name} has another password.", as_json=as_json)


@app.command("roles")
def roles(
    name: Name,
    tenant: Tenant,
    role: Roles = None,
    none: Annotated[bool, typer.Option("--none", help="Take all roles there away.")] = False,
    reason: Reason = None,
    by: By = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Set the roles that a user has in one tenant, in the place of those before.

    It holds from the next request on; sessions end, personal keys go on with the new roles.
    """
    if bool(role) == none:
        fail("Say which roles, with --role R, or --none.")
    _note_powerless(role or ["viewer"])
    said = why(reason)
    made = _change(store, by, lambda users: users.set_roles(name, tenant, role or (), reason=said))
    _print_user(made, f"{made.name} has other roles.", as_json=as_json)


@app.command("disable")
def disable(
    name: Name,
    reason: Reason = None,
    by: By = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Let a user in no more, by session or by key, until `enable`."""
    said = why(reason)
    made = _change(store, by, lambda users: users.set_active(name, active=False, reason=said))
    _print_user(made, f"{made.name} is disabled.", as_json=as_json)


@app.command("enable")
def enable(
    name: Name,
    reason: Reason = None,
    by: By = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Let a user in again."""
    said = why(reason)
    made = _change(store, by, lambda users: users.set_active(name, active=True, reason=said))
    _print_user(made, f"{made.name} is enabled.", as_json=as_json)


@app.command("sign-out")
def sign_out(
    name: Name,
    reason: Reason = None,
    by: By = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """End all sessions of a user. They can sign in again."""
    said = why(reason)
    made = _change(store, by, lambda users: users.sign_out(name, reason=said))
    _print_user(made, f"{made.name} is signed out everywhere.", as_json=as_json)


@app.command("remove")
def remove(
    name: Name,
    reason: Reason = None,
    by: By = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Remove a user, with all sessions and personal keys. What they did stays on record."""
    said = why(reason)
    change = _change(store, by, lambda users: users.remove(name, reason=said))
    if as_json:
        print_json(change.export())
    else:
        print(f"{change.unuser} is removed.")


@app.command("key")
def key(
    name: Name,
    tenant: Annotated[
        str | None,
        typer.Option("--tenant", metavar="T", help="For which tenant, if there are several."),
    ] = None,
    expires: Expires = None,
    reason: Reason = None,
    by: By = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Issue a personal key for the HTTP API, and print it this once.

    It is sent as `Authorization: Bearer KEY`, and may do what the user may do in that tenant at
    that moment. Only a hash of it is kept.
    """
    until, said = expiry(expires), why(reason)
    text, made = _change(
        store, by, lambda users: users.issue_key(name, tenant, until=until, reason=said)
    )
    if as_json:
        print_json({**made.export(), "key": text})
    else:
        print(text)
    note(f"It is shown this once, and is for {one_line(made.tenant)}.")
    note(f"End it with `counterseal users revoke-key {made.key_id}`.")


@app.command("revoke-key")
def revoke_key(
    key_id: Annotated[str, typer.Argument(metavar="KEY_ID", help="A personal key's id.")],
    reason: Reason = None,
    by: By = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """End a personal key on every worker.

    Take the id from `counterseal users list`, or from the key: it stands after `cs_person_`.
    """
    said = why(reason)
    made = _change(store, by, lambda users: users.revoke_key(key_id, reason=said))
    _print_user(made, f"The key of {made.name} is revoked.", as_json=as_json)


# What it works on --------------------------------------------------------------------------------


def _change(store: str | None, by: str | None, act: Callable[[Accounts], Awaitable[T]]) -> T:
    need_gateway("argon2")
    from counterseal.accounts import Accounts
    from counterseal.registry import Registry

    settings, who = project_settings(), by or user_name("--by")
    return operate(
        address(settings, store), Registry(), who, lambda operator: act(Accounts(operator))
    )


def _said(reason: str | None, *, password_stdin: bool) -> str:
    if password_stdin and not reason:
        fail("Say why, with --reason TEXT: stdin is for the password.")
    return why(reason)


def _password(*, password_stdin: bool) -> str:
    """From stdin, or from somebody who types it twice; it is never shown."""
    from counterseal.accounts.passwords import check_password
    from counterseal.errors import RegistryError

    if password_stdin:
        password = sys.stdin.read(_MOST + 1).removesuffix("\n").removesuffix("\r")
    elif _asked():
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        fail("Nobody is there to be asked for a password.", "Pipe it in, with --password-stdin.")
    try:
        check_password(password)
    except RegistryError as error:
        fail(str(error))
    return password


def _asked() -> bool:
    """Whether somebody is there who can be asked."""
    return sys.stdin.isatty()


# Showing -----------------------------------------------------------------------------------------


def _note_powerless(given: list[str]) -> None:
    from counterseal.accounts.users import Role

    if not set(given) & set(Role):
        known = ", ".join(Role)
        note(f"None of these roles lets somebody look at anything: that takes one of {known}.")


def _print_user(user: User, text: str, *, as_json: bool) -> None:
    if as_json:
        print_json(user.export())
    else:
        print(text)


def _row(user: User) -> tuple[str, ...]:
    """Four columns, so that none is so narrow that it breaks a key's id in two."""
    who = [user.name, *([] if user.active else ["disabled"])]
    may = [f"{tenant}: {', '.join(sorted(had))}" for tenant, had in sorted(user.tenants.items())]
    held = [
        f"{one.key_id} {one.tenant}"
        + (f" until {one.expires_at:%Y-%m-%d}" if one.expires_at else "")
        for one in user.keys
    ]
    cells = (who, may, held, [f"{user.reason} ({user.by})"])
    return tuple("\n".join(map(one_line, lines)) for lines in cells)
