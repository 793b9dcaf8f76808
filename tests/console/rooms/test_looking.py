"""What the pages about calls, runs, numbers and the record show, over HTTP."""

import asyncio
import re
from datetime import UTC, datetime
from html import unescape
from urllib.parse import quote

import pytest

from counterseal import Grant
from counterseal.errors import StoreError
from counterseal.keys import KeyRing, Purpose, new_key
from counterseal.ledger.requests import ExpiryRequest
from counterseal.operations.auditor import seal_store
from counterseal.testing import fake_tool
from counterseal.web.console.overview import amount
from tests.console.conftest import client_of
from tests.console.plant import HELD
from tests.console.test_sign_in import csrf_of, sent

EITHER = "/v1/events?type=tool.denied&type=tool.failed"


def rows_of(page):
    return re.findall(r'data-row="([^"]+)"', page.text)


def said(page):
    """What a page says, without its markup."""
    main = page.text.partition("<main")[2].partition("</main>")[0].replace("<wbr>", "")
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", main)).split())


async def test_every_page_says_which_resource_it_shows_and_that_is_there(works, root):
    call = await works.call("read_gauge", {"gauge": "g1"})
    for path, resource in (
        ("/calls", "/v1/calls"),
        ("/calls?tool=read_gauge&code=SUCCESS", "/v1/calls?tool=read_gauge&code=SUCCESS"),
        (f"/calls/{call.call_id}", f"/v1/calls/{call.call_id}"),
        ("/calls?metric=retry_success_rate", "/v1/calls?metric=retry_success_rate"),
        ("/runs", "/v1/runs"),
        ("/runs?agent=shift-bot", "/v1/runs?agent=shift-bot"),
        ("/runs/run_1", "/v1/runs/run_1"),
        ("/tools", "/v1/tools"),
        ("/tools/read_gauge", "/v1/tools/read_gauge"),
        (f"/tools/{HELD}", f"/v1/tools/{HELD}"),
        ("/kill", "/v1/kills"),
        ("/operator", "/v1/concerns"),
        ("/overview", "/v1/metrics?window=24h"),
        ("/overview?window=7d", "/v1/metrics?window=7d"),
        ("/audit", "/v1/audit"),
        ("/audit/events?call=c", "/v1/events?call=c"),
        ("/audit/events?type=tool.denied,tool.failed", EITHER),
    ):
        page = await root.get(path)
        assert page.status_code == 200, path
        found = re.search(r'<a href="([^"]+)"><code>GET ([^<]+)</code></a>', page.text)
        assert unescape(found[1]) == unescape(found[2]) == resource
        told = await root.get(resource)
        assert told.status_code == 200, told.text
        assert told.headers["content-type"] == "application/json"


# --- calls ----------------------------------------------------------------------------------------


async def test_calls_are_found_by_tool_agent_run_code_and_time(works, root):
    first = await works.call("read_gauge", {"gauge": "g1"}, run="run_a")
    assert rows_of(await root.get("/calls")) == [first.call_id]
    works.clock.now += 1800
    wrong = await works.call("read_gauge", {"gauge": 7}, run="run_b")
    note = await works.call("write_note", {"note": "n"}, run="run_b")
    other = await works.call("write_note", {"note": "n"}, agent="stranger")
    await works.call("read_gauge", {"gauge": "g1"}, tenant="zeta")
    newest_first = [one.call_id for one in (other, note, wrong, first)]
    assert rows_of(await root.get("/calls")) == newest_first
    for query, found in (
        ("tool=read_gauge", [wrong, first]),
        ("agent=stranger", [other]),
        ("run=run_b", [note, wrong]),
        ("code=TYPE_MISMATCH", [wrong]),
        ("within=15m", [other, note, wrong]),
        ("until=2026-01-01T00:15", [first]),
        ("since=2026-01-01T00:15&tool=write_note&agent=shift-bot", [note]),
        ("tool=read", []),
    ):
        page = await root.get(f"/calls?{query}")
        assert rows_of(page) == [one.call_id for one in found], query
        assert ("No call matches." in page.text) == (not found)
        for name, value in (pair.split("=") for pair in query.split("&")):
            kept = f'(?:id="{name}"[^>]* value="{value}"|<option value="{value}" selected)'
            assert re.search(kept, page.text), name


async def test_older_calls_are_on_further_pages_with_the_same_search(works, root):
    for number in range(53):
        await works.call("read_gauge", {"gauge": f"g{number}"})
    await works.call("write_note", {"note": "n"})
    page = await root.get("/calls?tool=read_gauge&within=24h")
    more = unescape(re.search(r'href="([^"]+)" rel="next"', page.text)[1])
    assert more.startswith("/calls?tool=read_gauge&within=24h&cursor=")
    rest = await root.get(more)
    assert [len(rows_of(page)), len(rows_of(rest))] == [50, 3]
    assert not set(rows_of(page)) & set(rows_of(rest))
    assert 'rel="next"' not in rest.text


async def test_an_empty_list_says_what_to_do(root):
    assert "No call yet." in (await root.get("/calls")).text
    assert "Choose a longer window" in (await root.get("/overview")).text
    assert "Nothing needs attention." in (await root.get("/operator")).text


@pytest.mark.parametrize(
    "path",
    [
        "/calls?since=noon",
        "/calls?within=soon",
        "/calls?code=FINE",
        "/calls?cursor=x",
        "/calls?metric=happiness",
        "/calls?part=rest",
        "/runs?cursor=x",
        "/audit/events?type=no.such",
        "/audit/events?until=never",
        "/overview?window=ages",
        "/operator?cursor=x",
        "/tools?from=x",
    ],
)
async def test_an_address_that_makes_no_sense_is_said_to(root, path):
    answer = await root.get(path)
    assert answer.status_code == 400
    assert "Invalid request" in said(answer)


async def test_a_calls_page_tells_its_whole_story(works, root):
    seen = await works.call("write_note", {"note": "Knock twice."}, key="k-1")
    page = await root.get(f"/calls/{seen.call_id}")
    story, text = await works.view().calls.page(seen.call_id), said(page)
    for gate in story.gates:
        assert f"{gate.gate} allow" in text
    assert text.count("µs") + text.count(" ms") > len(story.gates)
    assert "1. Succeeded SUCCESS" in text
    assert "COMPLETED" in text
    assert "call:write_note:k-1" in text
    assert " ".join(story.text.split()) in " ".join(unescape(page.text).split())
    assert "/author contract 1" in text  # what was taken out of it
    assert story.trace_id in text
    assert [one.type for one in story.events] == re.findall(r"tool\.\w+(?= \w)", text)
    assert story.copy_as.cli in text
    assert story.copy_as.curl.replace("{base}", works.url) in text


async def test_a_read_shows_what_the_model_saw_beside_what_was_taken_out_of_it(works, root):
    made = fake_tool("read_log", {"line": "login", "password": "hunter2-and-more"})
    grants = [Grant(agent="shift-bot", tool="read_log")]
    works.runtime.register(made.tool, grants=grants)
    call = await works.call("read_log", {})
    page = await root.get(f"/calls/{call.call_id}")
    assert "hunter2" not in page.text
    told = said(page)
    assert '"line":"login","password":"[redacted:password]"' in told
    assert "/password password 1" in told
    await works.runtime.store.expire(ExpiryRequest(vault_after=-1))
    told = said(await root.get(f"/calls/{call.call_id}"))
    assert "It is no longer kept." in told
    assert "/password password 1" in told


async def test_a_read_of_which_only_the_beginning_is_kept_says_so(works, root):
    made = fake_tool("read_log", {"password": "hunter2-and-more", "lines": ["a line"] * 4000})
    works.runtime.register(made.tool, grants=[Grant(agent="shift-bot", tool="read_log")])
    call = await works.call("read_log", {})
    told = said(await root.get(f"/calls/{call.call_id}"))
    size = len(call.for_model().encode())
    assert f"Only the first 16,384 of its {size:,} bytes are kept." in told


async def test_a_refused_call_says_at_which_gate_and_why(works, root):
    seen = await works.call("read_gauge", {"gauge": 7})
    text = said(await root.get(f"/calls/{seen.call_id}"))
    assert "refused by the gate schema" in text
    assert "An argument had the wrong type." in text
    assert "scope not run" in text
    assert "Not executed." in text


async def test_an_operator_sees_the_arguments_and_that_is_on_record(works, root, vic):
    seen = await works.call("read_gauge", {"gauge": ["dial of Ruth"]})
    path = f"/calls/{seen.call_id}"
    page = await root.get(path)
    assert "Show the arguments" in said(page)
    assert "dial of Ruth" not in page.text
    assert "An operator can see the arguments." in said(await vic.get(path))
    refused = await sent(vic, f"{path}/arguments")
    assert refused.status_code == 403
    assert "dial of Ruth" not in refused.text
    assert "arguments.read" not in said(await root.get(path))
    shown = said(await sent(root, f"{path}/arguments"))
    assert '{ "gauge" : [ "dial of Ruth" ] }' in shown
    assert "That you looked is on record." in shown
    *_, read = (await works.view().calls.page(seen.call_id)).events
    assert (read.type, read.user) == ("arguments.read", "root")


async def test_a_held_call_shows_its_approval_and_a_replay_the_call_that_did_it(works, root):
    held = await works.call("open_valve", {"valve": "v-7"})
    text = said(await root.get(f"/calls/{held.call_id}"))
    assert "Approval waiting 0 of 2 approved Valve v-7 is opened." in text
    first = await works.call("write_note", {"note": "n"}, key="same")
    await works.call("write_note", {"note": "n"}, key="same")
    again, *_ = rows_of(await root.get("/calls?tool=write_note"))
    page = await root.get(f"/calls/{again}")
    assert "repeat" in said(page)
    assert f'href="/calls/{first.call_id}"' in page.text


async def test_an_id_with_slashes_and_signs_is_found(works, root):
    odd = "call/1?x=<b>#é"
    observation = await works.call("read_gauge", {"gauge": "g"}, call_id=odd, run="run/2 ?")
    assert observation.caller_call_id == odd
    own = await root.get(f"/calls/{quote(odd, safe='')}", follow_redirects=True)
    assert (own.status_code, odd in unescape(own.text)) == (200, True)
    page = await root.get("/calls")
    (link,) = re.findall(r'<a class="mono" href="([^"]+)" data-open', page.text)
    assert (await root.get(unescape(link))).status_code == 200
    (run,) = set(re.findall(r'href="(/runs/[^"]+)"', page.text))
    assert "run/2 ?" in said(await root.get(unescape(run)))


async def test_what_is_another_tenants_is_not_there_in_the_same_words_as_nothing(works, root):
    theirs = await works.call("read_gauge", {"gauge": "g"}, tenant="zeta", run="run_zeta")
    for kind, theirs_path in (
        ("call", f"/calls/{theirs.call_id}"),
        ("run", "/runs/run_zeta"),
        ("call", "/calls/nothing"),
        ("tool", "/tools/nothing"),
    ):
        answer = await root.get(theirs_path)
        assert answer.status_code == 404
        assert f"There is no such {kind}." in said(answer)
    async with client_of(works, "zed") as zed:
        assert rows_of(await zed.get("/calls")) == [theirs.call_id]
        assert HELD not in (await zed.get("/tools")).text
        assert (await zed.get(f"/tools/{HELD}")).status_code == 404


# --- numbers --------------------------------------------------------------------------------------


async def test_the_overview_shows_the_metrics_and_leads_to_what_is_behind_them(works, root):
    for gauge in ("g1", 7, "g2"):
        await works.call("read_gauge", {"gauge": gauge})
    await works.call("read_gauge", {"gauge": "g"}, agent="stranger")
    works.clock.now += 1
    page = await root.get("/overview?window=1h")
    table = page.text.partition('class="dense stack metrics"')[2]
    metrics = await works.view().metrics.rows("1h")
    assert len(metrics) == 20
    followed = 0
    for metric in metrics:
        row = table.partition(f'<tr id="{metric.name}">')[2].partition("</tr>")[0]
        text = " ".join(unescape(re.sub(r"<[^>]+>", " ", row)).split())
        assert text.startswith(
            f"{metric.title} {metric.meaning} {amount(metric.value, metric.unit)} "
        )
        assert metric.formula in text
        assert " 1h " in text
        for link, number in re.findall(r'href="([^"]+)" aria-label="([\d.]+) ', row):
            behind = await root.get(unescape(link))
            told = unescape(re.search(r'<a href="(/v1/calls[^"]+)">', behind.text)[1])
            title = metric.title.partition(", ")[0]  # the calls of a cost are those of any currency
            assert f"counted by {title} :" in said(behind)
            rows = rows_of(behind)
            assert [one["call_id"] for one in (await root.get(told)).json()["items"]] == rows
            if metric.unit == "ratio" or "part=" in link:
                assert len(rows) == int(number), (metric.name, link)
            followed += 1
    assert table.count('<tr id="') == 20
    assert followed > 20


async def test_charts_have_a_text_for_screen_readers(works, root):
    await works.call("read_gauge", {"gauge": "g1"})
    works.clock.now += 60
    page = await root.get("/overview?window=15m")
    drawings = re.findall(r'<svg[^>]*role="img" aria-labelledby="(\S+) (\S+)"', page.text)
    assert len(drawings) == 6
    for title, description in drawings:
        assert re.search(f'<title id="{title}">[^<]+</title>', page.text)
        assert re.search(f'<desc id="{description}">[^<]+</desc>', page.text)
    series = await works.view().metrics.series("schema_valid_call_rate", "15m", 15)
    told = page.text.partition('aria-label="Schema-valid call rate over time"')[2]
    cells = re.findall(r'<td class="number">([^<]+)</td>', told.partition("</table>")[0])
    assert [unescape(one) for one in cells] == [amount(one, "ratio") for one in series.values]


# --- the record -----------------------------------------------------------------------------------


async def test_the_record_says_how_far_it_is_sealed_and_is_checked(works, root, tmp_path):
    await works.call("write_note", {"note": "n"})
    assert "never been sealed" in said(await root.get("/audit"))
    ring = KeyRing([new_key(tmp_path, Purpose.AUDIT, datetime.now(UTC))])
    works.runtime.keys = ring
    sealed = await seal_store(works.runtime.store, "acme", ring.signer("audit"), works.clock())
    page = await root.get("/audit")
    assert "Everything up to the last seal." in said(page)
    assert sealed.hash.hex() in page.text
    await works.call("write_note", {"note": "m"})
    assert "1 segment has new events since the last seal" in said(await root.get("/audit"))
    checked = said(await sent(root, "/audit/verify"))
    report = await works.view().record.verify()
    assert f"verified All {report.events} events are unchanged." in checked
    assert f"Sealed {report.sealed} events, by 1 checkpoint" in checked
    assert f"Not sealed yet {report.unsealed} events" in checked


async def test_a_check_is_one_form_at_a_time_and_leaves_nothing_behind(works, root, vic):
    token = csrf_of(await root.get("/audit"))
    assert (await root.post("/audit/verify", data={"csrf": "x"})).status_code == 403
    async with root.stream("POST", "/audit/verify", data={"csrf": token}) as answer:
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        text = "".join([piece async for piece in answer.aiter_text()])
    assert text.rstrip().endswith("</html>")
    assert (await sent(vic, "/audit/verify")).status_code == 200
    assert (await root.get("/audit/verify")).headers["location"] == "/audit"


async def test_a_check_that_takes_long_says_how_far_it_is(works, root, vic, monkeypatch):
    store, go_on = works.runtime.store, asyncio.Event()
    recorded = store.recorded

    async def slowly(*asked):
        await go_on.wait()
        return await recorded(*asked)

    monkeypatch.setattr(store, "recorded", slowly, raising=False)
    monkeypatch.setattr("counterseal.views.audit_log._PROGRESS_INTERVAL", 0.01)
    token, text = csrf_of(await root.get("/audit")), ""
    async with root.stream("POST", "/audit/verify", data={"csrf": token}) as answer:
        async for piece in answer.aiter_text():
            text += piece
            if "0 events checked so far" in text and not go_on.is_set():
                second = await sent(vic, "/audit/verify")
                go_on.set()
    assert second.status_code == 409
    assert "A verification of this record is running" in said(second)
    assert "are unchanged" in text


async def test_a_check_of_a_store_that_is_away_says_so(works, root, monkeypatch):
    async def away(*_):
        raise StoreError("it is away")

    monkeypatch.setattr(works.runtime.store, "recorded", away, raising=False)
    assert "did not finish" in said(await sent(root, "/audit/verify"))


async def test_a_record_that_was_changed_does_not_hold(works, root, monkeypatch):
    await works.call("write_note", {"note": "n"})
    store, recorded = works.runtime.store, works.runtime.store.recorded

    async def without_one(*asked):
        return (await recorded(*asked))[1:]

    monkeypatch.setattr(store, "recorded", without_one, raising=False)
    page = await sent(root, "/audit/verify")
    assert "failed" in said(page)
    assert "missing" in said(page)


async def test_events_are_found_by_type_tool_call_and_run(works, root):
    one = await works.call("write_note", {"note": "n"}, run="run_a")
    await works.call("read_gauge", {"gauge": 7}, run="run_b")
    for query, types in (
        ("run=run_a", ["tool.succeeded", "tool.started", "tool.requested"]),
        (f"call={one.call_id}&type=tool.started", ["tool.started"]),
        ("type=tool.denied,tool.started", ["tool.denied", "tool.started"]),
        ("tool=open_valve", []),
    ):
        page = await root.get(f"/audit/events?{query}")
        found = re.findall(r'<td class="mono" data-label="Type">([^<]+)</td>', page.text)
        assert found == types, query


async def test_exports_are_linked_for_every_form_and_span(works, root):
    page = await root.get("/audit")
    links = [
        unescape(one) for one in re.findall(r'href="(/v1/audit/export[^"]+)" download', page.text)
    ]
    assert len(links) == 8
    assert links[0] == "/v1/audit/export?format=jsonl"
    for link in links:
        assert (await root.get(link)).status_code == 200
    assert "/v1/audit/export?format=csv&since=2025-12-31T00%3A00%3A00%2B00%3A00" in links
