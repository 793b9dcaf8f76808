"""A server with OpenTelemetry's SDK beside it, or without: prints what was measured, as JSON.

A process of its own, because the API lets a provider be set only once in each.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import mcp_types as types
from mcp import Client
from opentelemetry import context, metrics, propagate, trace

from counterseal import Context, Grant, Principal, Runtime, tool
from counterseal.gateway.server import McpServer
from counterseal.telemetry import _histogram

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
BOT = Principal(tenant="acme", agent="bot", user="u_1")
READS: Any = {"effect": "read_only", "version": "1.0.0", "owner": "desk"}
WHO = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}


@tool(**READS)
async def look() -> dict[str, int]:
    """Look."""
    return {"seen": 1}


@tool(**READS)
async def ask(ctx: Context) -> dict[str, str]:
    """Ask."""
    answer = await ctx.client.ask("elicitation/create", WHO)
    return {"action": answer["action"]}


async def accept(asked: Any, params: Any) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={})


async def calls(mode: str) -> list[str]:
    """Each of the calls, and the trace that its caller is told."""
    async with Runtime.open("memory:") as runtime:
        grants = [Grant(agent="bot", tool=one.contract.name) for one in (look, ask)]
        runtime.register(look, ask, grants=grants)
        server = McpServer(runtime, caller=lambda: BOT, console="https://console.test")
        async with Client(server.sdk_server, mode=mode, elicitation_callback=accept) as client:
            meta: Any = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
            # Some clients put a span of their own in its place: let that be of the same trace.
            token = context.attach(propagate.extract(meta))
            first = await client.call_tool("look", {}, meta=meta)
            context.detach(token)
            results = [
                first,
                await client.call_tool("look", {"odd": 1}),
                await client.call_tool("ask", {}),
            ]
        await server.calls.close()
    return [result.meta["counterseal/observation"]["trace_id"] for result in results]


async def main(mode: str) -> dict[str, Any]:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider([reader]))
    told = await calls(mode)
    await asyncio.sleep(0)
    spans = [
        {
            "name": span.name,
            "kind": span.kind.name,
            "trace": f"{span.context.trace_id:032x}",
            "parent": span.parent and f"{span.parent.span_id:016x}",
            "id": f"{span.context.span_id:016x}",
            "attributes": dict(span.attributes or {}),
        }
        for span in exporter.get_finished_spans()
    ]
    data = reader.get_metrics_data()
    points = [
        {"metric": metric.name, "unit": metric.unit, "count": point.count, **dict(point.attributes)}
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    ]
    return {"told": told, "spans": spans, "points": points}


async def without(mode: str) -> dict[str, Any]:
    told = await calls(mode)
    kept = _histogram.cache_info().currsize
    return {"told": told, "histograms": kept, "sdk": "opentelemetry.sdk" in sys.modules}


if __name__ == "__main__":
    work = main if sys.argv[1] == "with" else without
    sys.stdout.write(json.dumps(asyncio.run(work(sys.argv[2]))))
