"""`counterseal audit seal` and `verify`: sign where the record ends, and check that it is whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from counterseal.cli.output import fail, note, print_json
from counterseal.cli.stores import Counting, KeysFolder, StoreUrl, ring_of, with_store

if TYPE_CHECKING:
    from counterseal.audit.checkpoint import Checkpoint
    from counterseal.audit.report import Report
    from counterseal.storage import Store

__all__ = ["AnyTenant", "AsJson", "AsLines", "seal", "verify"]

AnyTenant = Annotated[
    str | None, typer.Option("--tenant", metavar="T", help="Whose.  [default: everybody's]")
]
AsLines = Annotated[bool, typer.Option("--json", help="Print JSON Lines.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def seal(
    tenant: AnyTenant = None,
    store: StoreUrl = None,
    keys: KeysFolder = None,
    as_json: AsLines = False,
) -> None:
    """Sign where the record ends, so that nobody can change or cut off what came before.

    With --json it prints the receipt of each tenant's last checkpoint, whoever made it. Keep them
    elsewhere, and give them to `counterseal audit verify --receipts`.
    """
    import json
    import time

    from counterseal.audit.checkpoint import receipt
    from counterseal.operations.auditor import seal_store

    signer = ring_of(keys).signer("audit")
    if signer is None:
        fail("There is no audit key to sign with.", "`counterseal keys new audit` makes one.")

    async def sealed(there: Store) -> list[tuple[str, Checkpoint | None, Checkpoint | None]]:
        names = [tenant] if tenant is not None else await there.tenants()
        made = {name: await seal_store(there, name, signer, time.time()) for name in names}
        return [(name, made[name], _last(await there.checkpoints(name))) for name in names]

    for name, made, last in with_store(store, sealed):
        if as_json and last is not None:
            print(json.dumps(receipt(last)))
        elif made is None:
            note(f"{name}: nothing to seal since the last checkpoint.")
        else:
            count = len(made.heads)
            grown = f"{count} segment{'' if count == 1 else 's'}"
            print(f"{name}: checkpoint {made.number} seals {grown}, {made.hash.hex()[:16]}")


def _last(checkpoints: Sequence[Checkpoint]) -> Checkpoint | None:
    return max(checkpoints, key=lambda one: one.number, default=None)


def verify(
    tenant: AnyTenant = None,
    receipts: Annotated[
        Path | None,
        typer.Option("--receipts", metavar="FILE", help="What `seal --json` has printed."),
    ] = None,
    store: StoreUrl = None,
    keys: KeysFolder = None,
    as_json: AsJson = False,
) -> None:
    """Check that the record is whole: nothing changed, missing, inserted or in another order.

    Exits with 1 when something is wrong, and says what and where. What came after the last
    checkpoint is reported as unsealed: whoever can write to the store could have chained it anew.
    """
    from counterseal.operations.auditor import verify_store

    ring, progress = ring_of(keys), Counting()
    known: Mapping[str, Mapping[int, bytes]] = {} if receipts is None else _receipts(receipts)

    async def checked(there: Store) -> list[Report]:
        names = [tenant] if tenant else sorted({*await there.tenants(), *known})
        return [
            await verify_store(there, name, ring, receipts=known.get(name), progress=told)
            for name in names
        ]

    def told(count: int) -> None:
        progress.say(f"{count:,} events")

    reports = with_store(store, checked)
    progress.done()
    if as_json:
        ok = all(report.ok for report in reports)
        print_json({"ok": ok, "tenants": [report.record() for report in reports]})
    else:
        from counterseal.cli.events import print_report

        for report in reports:
            print_report(report)
        if not reports:
            note("Nothing is on record yet.")
    if not all(report.ok for report in reports):
        raise typer.Exit(1)


def _receipts(file: Path) -> dict[str, dict[int, bytes]]:
    import json

    found: dict[str, dict[int, bytes]] = {}
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{file}: can't be read: {getattr(error, 'strerror', None) or 'it is not UTF-8'}.")
    for number, line in enumerate(lines, 1):
        try:
            one = json.loads(line)
            found.setdefault(str(one["tenant"]), {})[int(one["number"])] = bytes.fromhex(
                one["hash"]
            )
        except (ValueError, KeyError, TypeError):
            fail(f"{file}:{number}: is no receipt as `counterseal audit seal --json` prints it.")
    return found
