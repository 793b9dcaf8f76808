"""`counterseal metrics`: the twenty numbers, counted from the record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from counterseal.cli.output import fail, note, one_line, print_json, print_styled
from counterseal.cli.stores import StoreUrl, with_store

if TYPE_CHECKING:
    from counterseal.storage import Store
    from counterseal.views import MetricRow

__all__ = ["metrics"]

Told = Sequence[tuple[str, "Sequence[MetricRow]"]]


def metrics(
    window: Annotated[
        str, typer.Option("--window", metavar="TIME", help="How far back: 15m, 24h, 7d.")
    ] = "24h",
    tenant: Annotated[
        str | None, typer.Option("--tenant", metavar="T", help="Whose.  [default: everybody's]")
    ] = None,
    store: StoreUrl = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_prometheus: Annotated[
        bool, typer.Option("--prometheus", help="Print what Prometheus reads.")
    ] = False,
) -> None:
    """Show how well contracts work: the twenty metrics, each with what it was made of.

    They are counted from the record, so they are the same wherever they are asked for. A metric
    with nothing to divide by has no value.
    """
    import time

    from counterseal.views.base import window_seconds
    from counterseal.views.metrics import metric_rows

    if as_json and as_prometheus:
        fail("Give --json or --prometheus, not both.")
    try:
        window_seconds(window)
    except ValueError as error:
        fail(f"--{error}.")

    async def counted(there: Store) -> Told:
        known = [name for name in await there.tenants() if name != "*"]  # everybody's: no calls
        names = known if tenant is None else [tenant]
        return [(name, await metric_rows(there, name, window, time.time())) for name in names]

    found = with_store(store, counted)
    if as_prometheus:
        from counterseal.views import prometheus

        typer.echo(prometheus(found), nl=False)
    elif as_json:
        print_json(
            {name: [one.model_dump(mode="json") for one in several] for name, several in found}
        )
    elif not found:
        note("Nothing is on record yet.")
    else:
        _print(found, window)


def _print(found: Told, window: str) -> None:
    from counterseal.cli.layout import heading, table

    for name, several in found:
        rows = [
            (one.title, _value(one), f"{one.numerator:g} / {one.denominator:g}", one.formula)
            for one in several
        ]
        print_styled(
            heading(f"{one_line(name)}, the last {window}"),
            table(rows, titles=("Metric", "Value", "Counted", "Formula")),
        )


def _value(one: MetricRow) -> str:
    if one.value is None:
        return "-"
    return f"{one.value:.1%}" if one.unit == "ratio" else f"{one.value:.4g}"
