"""`counterseal keys issue`, `revoke` and `issued`: API keys, with which clients reach the gateway.

Works on the project's store: every worker knows of a new or revoked key a second later.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from counterseal.cli.operators import (
    AsJson,
    By,
    Reason,
    Store,
    address,
    just_look,
    operate,
    why,
)
from counterseal.cli.output import fail, note, one_line, print_json, print_styled
from counterseal.cli.trying import project_settings, user_name

if TYPE_CHECKING:
    from counterseal.registry.identities import Credential

__all__ = ["Expires", "expiry", "issue", "issued", "revoke"]

_MOST_DAYS = 3650

Expires = Annotated[
    str | None,
    typer.Option(
        "--expires",
        metavar="WHEN",
        help="After so many days, or on a date like 2027-01-31 (UTC).  [default: never]",
    ),
]


def issue(
    tenant: Annotated[str, typer.Option("--tenant", metavar="T", help="For which tenant.")],
    agent: Annotated[str, typer.Option("--agent", metavar="A", help="As which agent.")],
    user: Annotated[
        str | None, typer.Option("--user", metavar="U", help="On behalf of which user.")
    ] = None,
    role: Annotated[
        list[str] | None, typer.Option("--role", metavar="R", help="A role; can be repeated.")
    ] = None,
    scope: Annotated[
        list[str] | None, typer.Option("--scope", metavar="S", help="A scope; can be repeated.")
    ] = None,
    expires: Expires = None,
    reason: Reason = None,
    by: By = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Issue an API key for a client of the gateway, and print it this once.

    The client sends it as `Authorization: Bearer KEY`. Only a hash of it is kept: a key that is
    lost is revoked, and another one issued.
    """
    from counterseal.proposal import Principal
    from counterseal.registry import Registry

    settings, who = project_settings(), by or user_name("--by")
    try:
        principal = Principal(
            tenant=tenant, agent=agent, user=user, roles=role or (), scopes=scope or ()
        )
    except ValueError as error:
        fail(str(error))
    until, said = expiry(expires), why(reason)
    text, made = operate(
        address(settings, store),
        Registry(),
        who,
        lambda one: one.issue_key(principal, expires_at=until, reason=said),
    )
    if as_json:
        print_json({**made.export(), "key": text})
    else:
        print(text)
    note("It is shown this once. Keep it where your client keeps its secrets.")
    note(f"End it with `counterseal keys revoke {made.key_id}`.")


def revoke(
    key_id: Annotated[str, typer.Argument(metavar="KEY_ID", help="A key's id.")],
    reason: Reason = None,
    by: By = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """End an API key on every worker, and the sessions that use it.

    Take the id from `counterseal keys issued`, or from the key itself: it stands after `cs_key_`.
    """
    from counterseal.registry import Registry

    settings, who, said = project_settings(), by or user_name("--by"), why(reason)
    change = operate(
        address(settings, store),
        Registry(),
        who,
        lambda one: one.revoke_key(key_id, reason=said),
    )
    if as_json:
        print_json(change.export())
    else:
        print(f"{change.unkeys} is revoked.")


def issued(
    tenant: Annotated[
        str | None, typer.Option("--tenant", metavar="T", help="Those of one tenant only.")
    ] = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """List the API keys that were issued and not revoked. The keys themselves are not kept."""
    from counterseal.registry import Registry

    registry = Registry()
    operate(address(project_settings(), store), registry, "-", just_look)
    found = [one for one in registry.credentials if tenant in (None, one.principal.tenant)]
    now = datetime.now(UTC)
    if as_json:
        rows = [{**one.export(), "expired": one.expired(now)} for one in found]
        print_json({"keys": rows})
        return
    if not found:
        note("No API key is in force.")
        return
    from counterseal.cli.layout import table

    listed = [_row(one, now) for one in found]
    print_styled(table(listed, titles=("Key", "Holder", "May", "Why")))


def _row(one: Credential, now: datetime) -> tuple[str, ...]:
    """Four columns, so that none is so narrow that it breaks a key's id in two."""
    who, key = one.principal, [one.key_id]
    if one.expires_at is not None:
        key.append(f"{'expired' if one.expired(now) else 'until'} {one.expires_at:%Y-%m-%d}")
    holder = [who.agent, f"of {who.tenant}", *([f"for {who.user}"] if who.user else [])]
    may = [*(f"role {name}" for name in sorted(who.roles)), *sorted(who.scopes)]
    cells = (key, holder, may, [f"{one.reason} ({one.by})"])
    return tuple("\n".join(map(one_line, lines)) for lines in cells)


def expiry(text: str | None) -> datetime | None:
    """The end that was asked for: some days from now, or the beginning of a day."""
    if text is None:
        return None
    if re.fullmatch("[0-9]{1,4}", text) and 1 <= int(text) <= _MOST_DAYS:
        return datetime.now(UTC).replace(microsecond=0) + timedelta(days=int(text))
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        fail(
            f"--expires: {text!r} is neither a number of days up to {_MOST_DAYS:,} nor a date.",
            "Write 90, 2027-01-31, or 2027-01-31T18:00:00+01:00.",
        )
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
