"""`counterseal keys`: signing and sealing keys in a folder, and API keys in the store.

API keys are changed in the project's store; every worker applies a change within a second.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from counterseal.cli.options import (
    AllTenants,
    AsJson,
    Expires,
    KeysFolder,
    StoreUrl,
    command_group,
    expiry,
    with_groups,
)
from counterseal.cli.project import (
    OperatorChange,
    keys_folder,
    load_keys,
    load_registry,
    project_settings,
)
from counterseal.cli.render import fail, note, one_line, print_json, render, table

if TYPE_CHECKING:
    from counterseal.keys import Key, Purpose
    from counterseal.registry.identities import Credential

PURPOSES = ("audit", "approval", "vault", "session")

app = command_group(
    "Create signing and sealing keys, and issue API keys for clients of the gateway."
)


# Keys that sign and seal -------------------------------------------------------------------------


@app.command("new")
def new(
    purpose: Annotated[str, Argument(metavar="PURPOSE", help="audit, approval, vault or session.")],
    keys: KeysFolder = None,
    as_json: AsJson = False,
) -> None:
    """Create a key. It signs or seals from now on; older keys still verify and open.

    Audit keys sign checkpoints of the audit log, approval keys sign approvals, vault keys encrypt
    the kept arguments and outputs of calls. Back up a vault key: without it, what it encrypted
    can't be read. A session key encrypts cursors and the state that MCP clients carry.
    """
    from counterseal.keys import KeysError, new_key

    folder, wanted = _folder(keys), _purpose(purpose)
    try:
        key = new_key(folder, wanted, datetime.now(UTC))
    except KeysError as error:
        fail(str(error))
    render(_record(key, signs=True), lambda: [f"{key.key_id}  {key.file}"], as_json=as_json)
    if not as_json:
        note("Only you can read the file. Keep it out of git and out of backups of the store.")


@app.command("list")
def list_keys(keys: KeysFolder = None, as_json: AsJson = False) -> None:
    """List the keys, and which of them are in use."""
    ring = load_keys(_folder(keys))
    rows = [_record(key, signs=ring.newest(key.purpose) is key) for key in ring.keys]
    if not rows and not as_json:
        fail("There are no keys.", "Create one with `counterseal keys new audit`.", code=1)
    cells = [
        (row["key_id"], row["purpose"], row["created"][:10], row["use"], Path(row["file"]).name)
        for row in rows
    ]
    titles = ("Key", "Purpose", "Created", "Use", "File")
    render({"keys": rows}, lambda: [table(cells, titles=titles)], as_json=as_json)


@app.command("export")
def export(
    purpose: Annotated[str, Argument(metavar="PURPOSE", help="audit or approval.")],
    key_id: Annotated[
        str | None, Option("--key", metavar="ID", help="Which key.  [default: newest]")
    ] = None,
    keys: KeysFolder = None,
    as_json: AsJson = False,
) -> None:
    """Print a public key, for a person who verifies the audit log and must not be able to sign.

    That person saves it under the same name in a folder of their own, and gives it with --keys.
    """
    wanted = _purpose(purpose)
    if wanted == "vault":
        fail("A vault key has no public key and can't be exported.")
    ring = load_keys(_folder(keys))
    matching = [key for key in ring.keys if key.purpose == wanted and key_id in (None, key.key_id)]
    if not matching:
        which = f"no {purpose} key {key_id!r}" if key_id else f"no {purpose} key"
        fail(f"There is {which}.", "`counterseal keys list` shows the keys.")
    key = matching[-1]
    pem = key.public_pem()
    if as_json:
        print_json({**_record(key, signs=ring.newest(wanted) is key), "pem": pem})
    else:
        print(pem, end="")


def _purpose(given: str) -> Purpose:
    from counterseal.keys import Purpose

    if given not in PURPOSES:
        fail(f"Unknown purpose {given!r}.", f"Allowed: {', '.join(PURPOSES)}.")
    return Purpose(given)


def _folder(given: Path | None) -> Path:
    folder = keys_folder(given)
    if folder is None:
        fail(
            "No folder of keys is configured.",
            'Write [keys] path = "keys" into counterseal.toml, or give --keys FOLDER.',
        )
    return folder


def _record(key: Key, *, signs: bool) -> dict[str, Any]:
    used, unused = ("seals", "opens") if key.purpose == "vault" else ("signs", "verifies")
    return {
        "key_id": key.key_id,
        "purpose": key.purpose.value,
        "created": key.created.isoformat(timespec="seconds"),
        "signs": signs,
        "use": used if signs else unused,
        "private": key.is_whole,
        "file": str(key.file),
    }


# API keys ----------------------------------------------------------------------------------------


@app.command("issue")
@with_groups
def issue(
    tenant: Annotated[str, Option(metavar="T", help="For which tenant.")],
    agent: Annotated[str, Option(metavar="A", help="As which agent.")],
    user: Annotated[str | None, Option(metavar="U", help="On behalf of which user.")] = None,
    role: Annotated[list[str] | None, Option(metavar="R", help="A role; can be repeated.")] = None,
    scope: Annotated[
        list[str] | None, Option(metavar="S", help="A scope; can be repeated.")
    ] = None,
    risk_level: Annotated[
        str, Option(metavar="L", help="Risk level for policy: low, medium, high, critical.")
    ] = "low",
    expires: Expires = None,
    *,
    change: OperatorChange,
) -> None:
    """Issue an API key for a client of the gateway, and print it once.

    The client sends it as `Authorization: Bearer KEY`. The store keeps only a hash: revoke a lost
    key and issue another one.
    """
    from counterseal.proposal import Principal

    may = {"roles": role or (), "scopes": scope or ()}
    try:
        principal = Principal(tenant=tenant, agent=agent, user=user, risk_level=risk_level, **may)
    except ValueError as error:
        fail(str(error))
    until, why = expiry(expires), change.why()
    text, credential = change.make(
        lambda operator: operator.issue_key(principal, expires_at=until, reason=why)
    )
    change.print({**credential.export(), "key": text}, text)
    note("The key is shown only this once. Store it where your client keeps its secrets.")
    note(f"Revoke it with `counterseal keys revoke {credential.key_id}`.")
    # A client with the key may see no tools. The project's code is not imported to say why.
    grants = [one.grant for one in load_registry(change.store).changes if one.op == "grant"]
    granted = {grant.agent for grant in grants if grant}
    if agent not in granted | {grant.agent for grant in project_settings().grants}:
        note(f"The agent {one_line(agent)} has no grants yet, so it sees no tools.")
    elif not scope:
        note("The key has no scopes, so it does not see tools that need some. Give --scope S.")


@app.command("revoke")
@with_groups
def revoke(
    key_id: Annotated[str, Argument(metavar="KEY_ID", help="A key's id.")], change: OperatorChange
) -> None:
    """Revoke an API key on every worker, and end the sessions that use it.

    The id is in `counterseal keys issued`, and in the key itself after `cs_key_`.
    """
    why = change.why()
    made = change.make(lambda operator: operator.revoke_key(key_id, reason=why))
    change.print(made.export(), f"{made.revoked_key} is revoked.")


@app.command("issued")
def issued(tenant: AllTenants = None, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """List the API keys that are in force. The keys themselves are not stored."""
    known = load_registry(store).credentials
    keys = [key for key in known if tenant in (None, key.principal.tenant)]
    now = datetime.now(UTC)
    if not keys and not as_json:
        note("No API key is in force.")
        return
    rows = [{**key.export(), "expired": key.expired(now)} for key in keys]
    cells, titles = [_cells(key, now) for key in keys], ("Key", "Holder", "May", "Why")
    render({"keys": rows}, lambda: [table(cells, titles=titles)], as_json=as_json)


def _cells(credential: Credential, now: datetime) -> tuple[str, ...]:
    """Return four columns: with more, key ids would wrap at 80 columns."""
    holder, key = credential.principal, [credential.key_id]
    if credential.expires_at is not None:
        state = "expired" if credential.expired(now) else "until"
        key.append(f"{state} {credential.expires_at:%Y-%m-%d}")
    whose = [holder.agent, f"of {holder.tenant}", *([f"for {holder.user}"] if holder.user else [])]
    may = [*(f"role {name}" for name in sorted(holder.roles)), *sorted(holder.scopes)]
    cells = (key, whose, may, [f"{credential.reason} ({credential.by})"])
    return tuple("\n".join(map(one_line, lines)) for lines in cells)
