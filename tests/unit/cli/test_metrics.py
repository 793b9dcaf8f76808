"""`counterseal metrics`: the numbers of a real store."""

import json
import time

import pytest

from counterseal.audit import CallFields, Event, EventType
from counterseal.storage import open_store
from counterseal.views.metrics import METRICS


@pytest.fixture
def url(folder):
    """A store with two calls of one tenant, and one of another."""
    import asyncio

    url = f"sqlite:///{folder}/store.db"

    async def fill():
        store = open_store(url)
        for tenant, code in (("acme", "SUCCESS"), ("acme", "TIMEOUT"), ("zeta", "SUCCESS")):
            kind = EventType.SUCCEEDED if code == "SUCCESS" else EventType.FAILED
            caller = CallFields(tenant, "run_1", "call_1", "save", "1.0.0", "bot", None, "t")
            store.note(Event(kind, caller, time.time(), code, body={"announced": True}))
        await store.close()

    asyncio.run(fill())
    return url


def test_a_table_for_every_tenant(run, url):
    text = run("metrics", "--store", url).stdout
    assert "acme, the last 24h" in text
    assert "zeta, the last 24h" in text
    assert "Trace completeness rate" in text


def test_json_says_what_each_number_was_made_of(run, url):
    told = json.loads(run("metrics", "--store", url, "--tenant", "acme", "--json").stdout)
    assert list(told) == ["acme"]
    assert [one["name"] for one in told["acme"]] == list(METRICS)
    valid = told["acme"][1]
    assert (valid["numerator"], valid["denominator"], valid["value"]) == (2, 2, 1)
    assert valid["link"]["numerator"]["metric"] == valid["name"]
    assert told["acme"][12]["value"] is None


def test_prometheus_gets_every_tenant(run, url):
    text = run("metrics", "--store", url, "--prometheus", "--window", "1h").stdout
    assert 'counterseal_schema_valid_call_rate{tenant="acme",window="1h"} 1\n' in text
    assert 'counterseal_schema_valid_call_rate{tenant="zeta",window="1h"} 1\n' in text


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--window", "soon"], "--window: expected minutes"),
        (["--json", "--prometheus"], "contradict"),
    ],
)
def test_wrong_use_is_named(run, url, more, said):
    result = run("metrics", "--store", url, *more)
    assert result.exit_code == 2
    assert said in result.stderr
