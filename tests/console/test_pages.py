"""Pages over HTTP: what they show, to whom, and under which headers."""

import asyncio
import re
from urllib.parse import urlsplit

import pytest

from counterseal import Grant, Proposal, Runtime
from counterseal.operations.approver import Voter
from counterseal.testing import fake_tool, someone
from counterseal.web.console.page_request import read_form
from counterseal.web.middleware import CSP
from tests.console.conftest import client_of
from tests.console.test_sign_in import csrf_of, sent
from tests.console.world import PATIENCE

HOSTILE = "<img src=x onerror=alert(1)>\"'><script>alert(2)</script>{{ 7 * 7 }}\u202e"


def voter(name, *roles):
    return Voter(user=name, tenant="acme", roles=frozenset(roles))


async def decide(client, approval_id, choice, **fields):
    return await sent(client, f"/approvals/{approval_id}/decision", choice=choice, **fields)


# --- headers --------------------------------------------------------------------------------------


async def test_every_answer_has_the_headers_that_keep_others_out(bank, ann):
    approval_id = await bank.notice()
    style = re.search(r'href="(/static/[^"]+\.css)"', (await ann.get("/")).text)[1]
    paths = [
        "/",
        "/sign-in",
        "/nowhere",
        style,
        "/static/x/nothing.js",
        f"/approvals/{approval_id}",
    ]
    async with client_of(bank) as stranger:
        answers = [await ann.get(path) for path in paths] + [await stranger.get("/")]
    answers.append(await ann.post("/sign-out", data={"csrf": ""}))
    for answer in answers:
        assert answer.headers["content-security-policy"] == CSP
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["referrer-policy"] == "same-origin"
        kept = answer.headers["cache-control"]
        assert kept == "no-store" or answer.request.url.path == style
    assert "'unsafe" not in CSP
    assert "http" not in CSP


async def test_files_are_kept_for_good_under_an_address_that_changes_with_them(bank, ann):
    page = (await ann.get("/")).text
    found = re.findall(r'(?:href|src)="(/static/[^"]+)"', page)
    assert {one.rpartition(".")[2] for one in found} == {"css", "js", "svg"}
    for path in found:
        answer = await ann.get(path)
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        imported = re.findall(r'from "\./([a-z]+\.js)"', answer.text)
        for name in imported:
            beside = f"{path.rpartition('/')[0]}/{name}"
            assert (await ann.get(beside)).status_code == 200
    old = await ann.get(f"/static/0000000000000000/{found[0].rpartition('/')[2]}")
    assert (old.status_code, old.headers["cache-control"]) == (200, "no-store")
    assert (await ann.get("/static/x/..%2F..%2Fapp.py")).status_code == 404


async def test_no_page_has_a_script_or_a_style_of_its_own(bank, ann):
    one, two = await bank.notice(), await bank.closing()
    for path in ("/", "/sign-in", "/nowhere", f"/approvals/{one}", f"/approvals/{two}"):
        page = (await ann.get(path)).text
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", page)
        assert all(" src=" in found for found in re.findall(r"<script[^>]*>", page))
        assert not re.search(r'(?:src|href|action)="(?:https?:)?//', page)


async def test_every_page_says_which_resource_it_shows(bank, ann):
    approval_id = await bank.notice()
    for path, resource in (
        ("/", "/v1/approvals?status=waiting"),
        ("/approvals?tool=x", "/v1/approvals?status=waiting&amp;tool=x"),
        ("/approvals?status=decided", "/v1/approvals?status=decided"),
        ("/approvals?status=executed", "/v1/approvals?status=spent"),
        ("/approvals?status=void&text=x", "/v1/approvals?status=void&amp;text=x"),
        (f"/approvals/{approval_id}", f"/v1/approvals/{approval_id}"),
    ):
        assert f'<a href="{resource}"><code>GET {resource}</code></a>' in (await ann.get(path)).text


# --- what is shown --------------------------------------------------------------------------------


async def test_what_others_say_is_text_wherever_it_stands(bank, ann):
    # Through arguments, the state of the world's words, the agent's name, and a voter's comment.
    one = await bank.notice(to=HOSTILE, text=HOSTILE)
    two = await bank.closing(account=HOSTILE)
    await bank.runtime.approvals.decide(two, voter("bob"), "approve", comment=HOSTILE)
    await bank.runtime.operator(HOSTILE.replace("\u202e", "")).kill(tool="refund", reason=HOSTILE)
    for path in ("/", f"/approvals/{one}", f"/approvals/{two}", f"/approvals/{two}/result"):
        page = (await ann.get(path)).text
        assert "&lt;img src=x onerror" in page
        assert "<img src=x" not in page
        assert "<script>" not in page
        assert "{{ 7 * 7 }}" in page
        assert "[U+202E]" in page
        assert "\u202e" not in page


async def test_what_the_address_says_is_text_too(bank, ann):
    for path in ("/approvals", "/approvals/x", "/nowhere", "/sign-in"):
        hostile = {"text": HOSTILE, "next": HOSTILE, "status": "waiting", "cursor": ""}
        page = (await ann.get(path, params=hostile, follow_redirects=True)).text
        assert "<img src=x" not in page
        assert "<script>" not in page


async def test_a_form_that_was_wrong_comes_back_with_what_was_written_as_text(bank, ann):
    approval_id = await bank.closing()
    told = {"typed": HOSTILE, "comment": f"{HOSTILE}\nsecond line"}
    answer = await decide(ann, approval_id, "approve", **told)
    assert answer.status_code == 422
    assert "type account:acc_4711 to confirm" in answer.text
    assert "<img src=x" not in answer.text
    assert "\nsecond line</textarea>" in answer.text
    assert await bank.status(approval_id) == "waiting"


async def test_the_inbox_is_narrowed_by_its_address(bank, ann):
    notice, closing = await bank.notice(), await bank.closing()
    for query, expected in (
        ("", {notice, closing}),
        ("?tool=send_notice", {notice}),
        ("?risk=CRITICAL_MUTATION", {closing}),
        ("?agent=assistant&text=CLOSED", {closing}),
        ("?agent=nobody", set()),
        ("?tool=&text=", {notice, closing}),
    ):
        page = (await ann.get(f"/approvals{query}")).text
        assert set(re.findall(r'data-row="([^"]+)"', page)) == expected


async def test_the_most_urgent_is_at_the_top_and_the_rest_on_further_pages(bank, ann):
    late = await bank.refund()
    soon = await bank.closing()
    made = {await bank.notice(text=f"number {number}") for number in range(55)}
    path, seen = "/approvals", []
    while path:
        page = (await ann.get(path)).text
        seen += re.findall(r'data-row="([^"]+)"', page)
        assert '"/v1/approvals?status=waiting"' in page  # its cursors are its own
        more = re.search(r'href="([^"]+)" rel="next"', page)
        path = more and more[1].replace("&amp;", "&")
    assert (seen[0], seen[-1]) == (soon, late)
    assert (len(seen), set(seen)) == (57, {late, soon} | made)


async def test_what_was_decided_is_on_a_tab_of_its_own(bank, ann):
    one, two = await bank.notice(), await bank.notice()
    await decide(ann, one, "approve")
    await decide(ann, two, "reject", comment="No.")
    for status, expected in (("decided", {one, two}), ("approved", {one}), ("rejected", {two})):
        page = (await ann.get("/approvals", params={"status": status})).text
        assert set(re.findall(r'data-row="([^"]+)"', page)) == expected
    assert "data-row" not in (await ann.get("/")).text


@pytest.mark.parametrize("query", ["cursor=x", "cursor=" + "A" * 2000, "status=odd"])
async def test_an_address_that_makes_no_sense_is_said_to(bank, ann, query):
    answer = await ann.get(f"/approvals?{query}")
    assert answer.status_code == 400
    assert query.partition("=")[0] in answer.text


async def unknown_tools_request(bank):
    """What another worker asks for, with a tool that this one does not know."""
    async with Runtime.open(bank.store_url, clock=bank.clock) as other:
        made = fake_tool("elsewhere", effect="external_notification")
        other.register(made.tool, grants=[Grant(agent="agent", tool="elsewhere")])
        proposal = Proposal(tool="elsewhere", arguments={}, run_id="run_9")
        return (await other.submit(proposal, someone())).approval_id


async def test_what_can_not_be_shown_can_be_rejected_and_nothing_else(bank, ann):
    approval_id = await unknown_tools_request(bank)
    page = await ann.get(f"/approvals/{approval_id}")
    assert page.status_code == 200
    assert "cannot be shown here" in page.text.replace("&#39;", "'")
    assert 'value="approve"' not in page.text
    assert (await decide(ann, approval_id, "approve")).status_code == 422
    assert await bank.status(approval_id) == "waiting"
    answer = await decide(ann, approval_id, "reject", comment="Unknown.")
    assert answer.headers["location"] == f"/approvals/{approval_id}/result"
    assert (await ann.get(answer.headers["location"])).status_code == 200
    assert await bank.status(approval_id) == "rejected"


# --- who may --------------------------------------------------------------------------------------


async def test_what_is_another_tenants_is_not_there_in_the_same_words_as_nothing(bank, ann):
    theirs = await bank.notice(tenant="zeta")
    for ending in ("", "/result"):
        real = await ann.get(f"/approvals/{theirs}{ending}")
        none = await ann.get(f"/approvals/appr_nothing{ending}")
        assert (real.status_code, none.status_code) == (404, 404)
        assert re.sub(r"[0-9a-f]{64}", "", real.text) == re.sub(r"[0-9a-f]{64}", "", none.text)
    for choice in ("approve", "reject"):
        answer = await decide(ann, theirs, choice, comment="x")
        assert answer.status_code == 404
    assert await bank.status(theirs, "zeta") == "waiting"


async def test_an_id_that_several_calls_have_leads_to_a_choice_among_them(bank, ann):
    made = fake_tool("jot", effect="draft")
    bank.runtime.register(made.tool, grants=[Grant(agent="clerk", tool="jot")])
    calls = []
    for run in ("run_7", "run_8"):
        own = {"run_id": run, "call_id": "call_0", "session_id": "session/7"}
        proposal = Proposal(tool="jot", arguments={}, **own)
        calls.append((await bank.runtime.submit(proposal, someone("clerk"))).call_id)
    page = await ann.get("/calls/call_0")
    assert page.status_code == 409
    for call, run in zip(calls, ("run_7", "run_8"), strict=True):
        assert f'href="/calls/{call}"' in page.text
        assert run in re.sub(r"<wbr>", "", page.text)
    one = (await ann.get(f"/calls/{calls[0]}")).text
    assert 'href="/calls?caller_call_id=call_0"' in one
    assert 'href="/calls?session=session%2F7"' in one
    found = (await ann.get("/calls?session=session%2F7&version=1.0.0")).text
    assert all(f'href="/calls/{call}"' in found for call in calls)
    assert 'name="session" value="session/7"' in found
    none = (await ann.get("/calls?workflow=wf&external_ref=re_1&conversation=c")).text
    assert not any(f'href="/calls/{call}"' in none for call in calls)


async def test_a_call_that_the_client_carries_out_says_so_before_and_after_its_report(bank, ann):
    peek = fake_tool("peek", effect="read_only", executed_by="client")
    bank.runtime.register(peek.tool, grants=[Grant(agent="clerk", tool="peek")])
    clerk = someone("clerk")
    handed = await bank.runtime.submit(Proposal(tool="peek", arguments={}, run_id="run_9"), clerk)
    before = (await ann.get(f"/calls/{handed.call_id}")).text
    assert "The client carries it out, and has not reported the outcome yet." in before
    assert "handed to the client" in before
    await bank.runtime.report_outcome(handed.call_id, clerk, fence=1, output={"seen": 3})
    after = (await ann.get(f"/calls/{handed.call_id}")).text
    assert "reported by the client" in after
    assert "has not reported" not in after
    assert "Executed by" in (await ann.get("/tools/peek")).text


async def test_a_viewer_looks_and_decides_nothing(bank):
    approval_id = await bank.notice()
    async with client_of(bank, "vic") as vic:
        page = (await vic.get(f"/approvals/{approval_id}")).text
        assert "requires the role approver" in page
        assert "<form id=" not in page
        answer = await decide(vic, approval_id, "approve")
        assert answer.status_code == 403
    assert await bank.status(approval_id) == "waiting"


async def test_a_second_vote_is_not_taken_and_the_page_says_why(bank, ann):
    approval_id = await bank.closing()
    assert (await decide(ann, approval_id, "approve", typed="account:acc_4711")).status_code == 303
    page = (await ann.get(f"/approvals/{approval_id}")).text
    assert "You have already voted on this request." in page
    needed = "An approver with the role compliance is still needed."
    assert needed in page
    assert needed in (await ann.get("/approvals")).text
    async with client_of(bank, "bob") as bob:
        page = (await bob.get(f"/approvals/{approval_id}")).text
        assert f"a role that may approve this. {needed}" in page
        assert ('<form id="approve"' in page, '<form id="reject"' in page) == (False, True)
        assert ('href="#approve"' in page, 'href="#reject"' in page) == (False, True)
        answer = await decide(ann, approval_id, "approve", typed="account:acc_4711")
        assert (answer.status_code, await bank.status(approval_id)) == (409, "waiting")
        answer = await decide(bob, approval_id, "reject", comment="Not this account.")
        assert (answer.status_code, await bank.status(approval_id)) == (303, "rejected")


async def test_a_justification_is_asked_for_where_it_is_needed(bank):
    approval_id = await bank.refund()
    async with client_of(bank, "kim") as kim, client_of(bank, "ann") as ann:
        assert "a role that may approve this" in (await ann.get(f"/approvals/{approval_id}")).text
        answer = await decide(kim, approval_id, "approve", comment="hm")
        assert answer.status_code == 422
        answer = await decide(kim, approval_id, "approve", justification="Within the limit.")
        assert answer.status_code == 303
    assert await bank.status(approval_id) == "approved"


async def test_what_has_expired_can_not_be_decided_any_more(bank, ann):
    approval_id = await bank.closing()
    token = csrf_of(await ann.get("/"))
    bank.clock.advance(601)
    page = (await ann.get(f"/approvals/{approval_id}")).text
    assert "The request has expired." in page
    assert 'value="approve"' not in page
    told = {"csrf": token, "choice": "approve", "typed": "account:acc_4711"}
    answer = await ann.post(f"/approvals/{approval_id}/decision", data=told)
    assert answer.status_code == 409


# --- when something is wrong ----------------------------------------------------------------------


async def test_a_fault_of_ours_says_nothing_of_the_inside(bank, ann, monkeypatch, caplog):
    async def broken(*_, **__):
        raise RuntimeError("secret-detail /srv/path")

    monkeypatch.setattr(bank.runtime.store, "list_held", broken)
    answer = await ann.get("/")
    assert answer.status_code == 500
    assert "secret-detail" not in answer.text
    assert "Traceback" not in answer.text
    mark = re.search(r"err_[0-9a-f]{12}", answer.text)[0]
    assert mark in caplog.text


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"a=" + b"x" * 70_000, "application/x-www-form-urlencoded", 413),
        (b"&".join(b"a=1" for _ in range(200)), "application/x-www-form-urlencoded", 400),
        (b"a=%ff%fe", "application/x-www-form-urlencoded", 400),
        (b'{"choice": "approve"}', "application/json", 415),
        (b"--x", "multipart/form-data; boundary=x", 415),
        (b"", "", 415),
    ],
)
async def test_what_is_no_form_of_ours_is_not_read(bank, ann, body, kind, status):
    for path in ("/sign-in", "/sign-out", "/approvals/x/decision"):
        answer = await ann.post(path, content=body, headers={"Content-Type": kind})
        assert answer.status_code == status
        assert "<h1>" in answer.text


async def test_a_client_that_never_ends_its_form_is_not_waited_for(bank, monkeypatch):
    monkeypatch.setitem(read_form.__kwdefaults__, "seconds", 0.2)
    parts = urlsplit(bank.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    head = "POST /sign-in HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n"
    kind = "Content-Type: application/x-www-form-urlencoded\r\n\r\nname=ann"
    writer.write((head + kind).encode())
    async with asyncio.timeout(PATIENCE):
        assert b" 408 " in await reader.readline()
    writer.close()


async def test_no_response_header_is_made_from_user_input(bank, ann):
    approval_id = await bank.notice()
    for path in (f"/approvals/{approval_id}%0d%0aX-Evil:%201/decision", "/a%0d%0aX-Evil:%201"):
        answer = await ann.get(path)
        assert "x-evil" not in answer.headers
        answer = await sent(ann, path, choice="approve")
        assert "x-evil" not in answer.headers
