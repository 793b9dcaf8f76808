"""`counterseal keys`: the keys that sign the record and seal the vault; and API keys, issued."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from counterseal.cli import api_keys
from counterseal.cli.output import fail, note, print_json, print_styled
from counterseal.cli.stores import KeysFolder, keys_folder

if TYPE_CHECKING:
    from counterseal.keys import Key, KeyRing, Purpose

__all__ = ["app"]

PURPOSES = ("audit", "approval", "vault", "session")

app = typer.Typer(
    help="Make keys that sign and seal, and issue API keys for clients of the gateway.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("new")
def new(
    purpose: Annotated[
        str, typer.Argument(metavar="PURPOSE", help="What for: audit, approval, vault or session.")
    ],
    keys: KeysFolder = None,
    as_json: AsJson = False,
) -> None:
    """Make a key. From now on it signs or seals; older ones still verify and open.

    Audit keys sign the checkpoints of the record, approval keys sign what people have approved,
    vault keys seal what is kept of calls. Back a vault key up: without it, nobody can open what it
    sealed. A session key seals cursors and the state that MCP clients carry.
    """
    from datetime import UTC, datetime

    from counterseal.keys import KeysError, new_key

    folder, wanted = _folder(keys), _purpose(purpose)
    try:
        made = new_key(folder, wanted, datetime.now(UTC))
    except KeysError as error:
        fail(str(error))
    if as_json:
        print_json(_record(made, signs=True))
    else:
        print(f"{made.key_id}  {made.file}")
        note("Readable only by you. Keep it out of the store's backups and out of git.")


@app.command("list")
def list_keys(keys: KeysFolder = None, as_json: AsJson = False) -> None:
    """List the keys, and which of them are in use."""
    ring = _ring(_folder(keys))
    rows = [_record(key, signs=ring.newest(key.purpose) is key) for key in ring.keys]
    if as_json:
        print_json({"keys": rows})
        return
    if not rows:
        fail("There are no keys.", "`counterseal keys new audit` makes one.", code=1)
    from counterseal.cli.layout import table

    titles = ("Key", "Purpose", "Created", "Use", "File")
    listed = [
        (row["key_id"], row["purpose"], row["created"][:10], row["use"], Path(row["file"]).name)
        for row in rows
    ]
    print_styled(table(listed, titles=titles))


@app.command("export")
def export(
    purpose: Annotated[
        str, typer.Argument(metavar="PURPOSE", help="Whose public key: audit or approval.")
    ],
    key_id: Annotated[
        str | None, typer.Option("--key", metavar="ID", help="Which key.  [default: newest]")
    ] = None,
    keys: KeysFolder = None,
    as_json: AsJson = False,
) -> None:
    """Print a public key, for whoever is to check the record without being able to sign.

    They put it into a folder of their own, under the same name, and give that with --keys.
    """
    wanted = _purpose(purpose)
    if wanted == "vault":
        fail("A vault key has no public key, and is never shown.")
    ring = _ring(_folder(keys))
    there = [key for key in ring.keys if key.purpose == wanted and key_id in (None, key.key_id)]
    if not there:
        which = f"no {purpose} key {key_id!r}" if key_id else f"no {purpose} key"
        fail(f"There is {which}.", "`counterseal keys list` shows what there is.")
    pem = there[-1].public_pem()
    if as_json:
        print_json({**_record(there[-1], signs=ring.newest(wanted) is there[-1]), "pem": pem})
    else:
        print(pem, end="")


app.command("issue")(api_keys.issue)
app.command("revoke")(api_keys.revoke)
app.command("issued")(api_keys.issued)


def _purpose(given: str) -> Purpose:
    from counterseal.keys import Purpose

    if given not in PURPOSES:
        fail(f"There are no keys for {given!r}.", f"Keys are for: {', '.join(PURPOSES)}.")
    return Purpose(given)


def _folder(given: Path | None) -> Path:
    return keys_folder(given) or _fail_unknown()


def _fail_unknown() -> NoReturn:
    fail(
        "No folder of keys is configured.",
        'Write [keys] path = "keys" into counterseal.toml, or give --keys FOLDER.',
    )


def _ring(folder: Path) -> KeyRing:
    from counterseal.keys import KeyRing, KeysError

    try:
        return KeyRing.load(folder)
    except KeysError as error:
        fail(str(error))


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
