"""`counterseal metrics`: the metrics, computed from the audit log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from counterseal.cli.options import AllTenants, AsJson, StoreUrl
from counterseal.cli.project import with_store
from counterseal.cli.render import Parts, fail, heading, note, one_line, render, table

if TYPE_CHECKING:
    from counterseal.storage import Store
    from counterseal.views.metrics import MetricRow

MetricsByTenant = Sequence[tuple[str, "Sequence[MetricRow]"]]


def metrics(
    window: Annotated[str, Option(metavar="TIME", help="How far back: 15m, 24h, 7d.")] = "24h",
    tenant: AllTenants = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
    as_prometheus: Annotated[
        bool, Option("--prometheus", help="Print in the Prometheus text format.")
    ] = False,
) -> None:
    """Show the metrics of contract quality, each with its numerator and denominator.

    They are computed from the audit log, so the console, the API and this command agree. A metric
    whose denominator is 0 has no value.
    """
    import time

    from counterseal.views.base import window_seconds
    from counterseal.views.metrics import metric_rows

    if as_json and as_prometheus:
        fail("--json and --prometheus contradict each other.", "Give one of them.")
    try:
        window_seconds(window)
    except ValueError as error:
        fail(f"--{error}.")

    async def measure_all(opened: Store) -> MetricsByTenant:
        known = [name for name in await opened.tenants() if name != "*"]  # "*" has no calls
        names = known if tenant is None else [tenant]
        return [(name, await metric_rows(opened, name, window, time.time())) for name in names]

    by_tenant = with_store(store, measure_all)
    if as_prometheus:
        from counterseal.views.metrics import prometheus

        typer.echo(prometheus(by_tenant), nl=False)
        return
    if not by_tenant and not as_json:
        note("The store has no calls yet.")

    def page() -> Parts:
        for name, values in by_tenant:
            rows = []
            for one in values:
                shape = ".1%" if one.unit == "ratio" else ".4g"
                value = "-" if one.value is None else format(one.value, shape)
                ratio = f"{one.numerator:g} / {one.denominator:g}"
                rows.append((one.title, value, ratio, one.formula))
            yield heading(f"{one_line(name)}, the last {window}")
            yield table(rows, titles=("Metric", "Value", "Counted", "Formula"))

    render(dict(by_tenant), page, as_json=as_json)
