"""One span a request, which is the SDK's own and carries what we know; and how long each took."""

import json
import subprocess
import sys
from functools import cache

import pytest

from tests.gateway.served import MODES
from tests.gateway.telemetry_worker import PARENT, TRACE

pytestmark = pytest.mark.slow


@cache
def measured(which, mode):
    """What a process of its own has measured of the same three calls."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.gateway.telemetry_worker", which, mode],
        capture_output=True,
        check=False,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def served(found, name=None):
    spans = [span for span in found["spans"] if span["kind"] == "SERVER"]
    return [span for span in spans if name is None or span["name"] == name]


@MODES
def test_a_call_is_one_span_of_the_servers_with_our_attributes(mode):
    found = measured("with", mode)
    fine, refused = served(found, "tools/call look")
    about = fine["attributes"]
    assert about["mcp.method.name"] == "tools/call"
    assert about["gen_ai.tool.name"] == "look"
    assert about["counterseal.tenant.id"] == "acme"
    assert about["counterseal.tool.version"] == "1.0.0"
    assert about["counterseal.tool.validation.status"] == "passed"
    assert "error.type" not in about
    about = refused["attributes"]
    assert about["counterseal.tool.error_code"] == "STRUCTURAL_VIOLATION"
    assert about["counterseal.tool.validation.status"] == "failed"
    assert about["error.type"] == "tool_error"
    assert not [span for span in found["spans"] if span["name"].startswith("execute_tool")]


@MODES
def test_the_callers_trace_goes_on_and_is_what_the_agent_is_told(mode):
    found = measured("with", mode)
    fine, refused = served(found, "tools/call look")
    assert fine["trace"] == found["told"][0] == TRACE
    assert refused["trace"] == found["told"][1] != TRACE
    asked = {span["id"] for span in found["spans"] if span["kind"] == "CLIENT"}
    assert fine["parent"] in {PARENT, *asked}


@MODES
def test_a_call_of_several_rounds_has_its_attributes_on_the_last(mode):
    found = measured("with", mode)
    *before, last = served(found, "tools/call ask")
    assert len(before) == (0 if mode == "legacy" else 1)
    assert last["attributes"]["counterseal.tool.validation.status"] == "passed"
    for span in before:
        assert not any(name.startswith("counterseal.") for name in span["attributes"])


@MODES
def test_every_request_is_measured(mode):
    points = measured("with", mode)["points"]
    timed = [point for point in points if point["metric"] == "mcp.server.operation.duration"]
    assert {point["unit"] for point in timed} == {"s"}
    of_look = [point for point in timed if point.get("gen_ai.tool.name") == "look"]
    assert sorted(point.get("error.type", "") for point in of_look) == ["", "tool_error"]
    assert all(point["mcp.method.name"] == "tools/call" for point in of_look)
    version = "2025-11-25" if mode == "legacy" else mode
    assert {point["mcp.protocol.version"] for point in of_look} == {version}
    sessions = [point for point in points if point["metric"] == "mcp.server.session.duration"]
    assert len(sessions) == (1 if mode == "legacy" else 0)


@MODES
def test_without_the_sdk_nothing_is_measured(mode):
    found = measured("without", mode)
    assert found["sdk"] is False
    assert found["histograms"] == 0
    assert found["told"][0] == TRACE, "the trace goes on all the same"
