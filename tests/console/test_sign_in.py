"""Signing in: who gets in, how it is locked, and that no redirect leads to another site."""

import re

import pytest

from tests.console.conftest import client_of
from tests.console.world import PASSWORD

FORM = {"name": "ann", "password": PASSWORD}


def csrf_of(answer):
    return re.search(r'name="csrf" value="([0-9a-f]+)"', answer.text)[1]


async def sent(client, path, page="/", **fields):
    """A form of a page, as a browser would send it."""
    token = csrf_of(await client.get(page))
    return await client.post(path, data={"csrf": token, **fields})


async def test_a_visitor_is_redirected_to_sign_in_and_back(bank):
    async with client_of(bank) as client:
        answer = await client.get("/approvals?tool=send_notice")
        assert answer.status_code == 303
        door = answer.headers["location"]
        assert door == "/sign-in?next=%2Fapprovals%3Ftool%3Dsend_notice"
        page = await client.get(door)
        assert 'value="/approvals?tool=send_notice"' in page.text
        told = {**FORM, "next": "/approvals?tool=send_notice"}
        answer = await client.post("/sign-in", data=told)
        assert answer.headers["location"] == "/approvals?tool=send_notice"
        assert (await client.get(answer.headers["location"])).status_code == 200


@pytest.mark.parametrize(
    "target",
    [
        "https://evil.example",
        "//evil.example",
        "/\\evil.example",
        "/a//evil.example",
        "javascript:alert(1)",
        "/x\r\nSet-Cookie: a=b",
        "\t//evil.example",
    ],
)
async def test_signing_in_redirects_to_no_other_site(bank, target):
    async with client_of(bank) as client:
        answer = await client.post("/sign-in", data={**FORM, "next": target})
        assert answer.headers["location"] == "/"
        answer = await client.get("/sign-in", params={"next": target})
        assert answer.headers["location"] == "/"


async def test_wrong_names_and_wrong_passwords_get_one_answer_and_then_a_wait(bank):
    async with client_of(bank) as client:
        answers = []
        for name in ("ann", "nobody"):
            told = {"name": name, "password": "wrong horse battery"}
            answers.append(await client.post("/sign-in", data=told))
        assert [one.status_code for one in answers] == [403, 403]
        assert all("Wrong name or password" in one.text for one in answers)
        assert all("set-cookie" not in one.headers for one in answers)
        assert "wrong horse" not in answers[0].text
        for _ in range(6):
            answer = await client.post("/sign-in", data={**FORM, "password": "still wrong here"})
        assert answer.status_code == 429
        assert "Too many failed attempts. Try again in" in answer.text
        assert 0 < int(answer.headers["retry-after"]) <= 900
        assert (await client.post("/sign-in", data=FORM)).status_code == 429


async def test_signing_in_makes_a_new_session_and_ends_the_old_one(bank):
    async with client_of(bank, "ann") as client:
        before = client.cookies["counterseal"]
        await client.post("/sign-in", data=FORM)
        after = client.cookies["counterseal"]
        assert before != after
        client.cookies.clear()
        client.cookies.set("counterseal", before)
        assert (await client.get("/")).status_code == 303


async def test_a_cookie_that_was_put_there_before_is_worth_nothing(bank):
    async with client_of(bank) as client:
        client.cookies.set("counterseal", "AAAA")
        answer = await client.post("/sign-in", data=FORM)
        assert "counterseal=AAAA" not in answer.headers["set-cookie"]
        attributes = answer.headers["set-cookie"].split("; ")[1:]
        assert {"HttpOnly", "SameSite=lax", "Path=/"} <= set(attributes)


async def test_of_two_cookies_none_counts(bank, ann):
    good = ann.cookies["counterseal"]
    async with client_of(bank) as client:
        for first, second in ((good, "x"), ("x", good), (good, good)):
            both = {"Cookie": f"counterseal={first}; counterseal={second}"}
            assert (await client.get("/approvals", headers=both)).status_code == 303


async def test_signing_out_takes_a_form_and_ends_the_session(bank):
    async with client_of(bank, "ann") as client:
        cookie = client.cookies["counterseal"]
        assert (await client.get("/sign-out")).status_code == 405
        assert (await client.post("/sign-out", data={"csrf": ""})).status_code == 403
        answer = await sent(client, "/sign-out")
        assert answer.headers["location"] == "/sign-in"
        assert "Max-Age=0" in answer.headers["set-cookie"]
        client.cookies.clear()
        client.cookies.set("counterseal", cookie)
        assert (await client.get("/")).status_code == 303


async def test_signing_out_everywhere_ends_all_sessions(bank):
    async with client_of(bank, "ann") as one, client_of(bank, "ann") as other:
        await sent(one, "/sign-out", everywhere="1")
        assert (await other.get("/")).status_code == 303


async def test_an_idle_session_ends_and_polling_of_a_page_does_not_extend_it(bank, ann):
    live = {"Counterseal-Live": "1"}
    bank.clock.advance(1800)
    for headers in (live, {}):
        answer = await ann.get("/", headers=headers)
        assert (answer.status_code, "set-cookie" in answer.headers) == (200, False)
    bank.clock.advance(3000)
    assert (await ann.get("/", headers=live)).status_code == 200
    bank.clock.advance(601)
    assert (await ann.get("/")).status_code == 303


async def test_a_form_that_comes_after_the_session_is_not_taken(bank, ann):
    approval_id = await bank.notice()
    token = csrf_of(await ann.get(f"/approvals/{approval_id}"))
    bank.clock.advance(3601)
    answer = await ann.post(
        f"/approvals/{approval_id}/decision",
        data={"csrf": token, "choice": "approve"},
        headers={"Referer": f"{bank.url}/approvals/{approval_id}"},
    )
    assert answer.headers["location"] == f"/sign-in?next=%2Fapprovals%2F{approval_id}"
    assert await bank.status(approval_id) == "waiting"


# --- forms from elsewhere -------------------------------------------------------------------------


async def test_a_form_without_the_sessions_token_is_not_taken(bank, ann):
    approval_id = await bank.notice()
    path = f"/approvals/{approval_id}/decision"
    async with client_of(bank, "bob") as bob:
        theirs = csrf_of(await bob.get("/"))
    for token in ({}, {"csrf": ""}, {"csrf": "0" * 64}, {"csrf": theirs}, {"csrf": "ü"}):
        answer = await ann.post(path, data={"choice": "approve", **token})
        assert answer.status_code == 403
        assert "another session" in answer.text
    assert await bank.status(approval_id) == "waiting"


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://127.0.0.1:1"},
    ],
)
async def test_a_form_from_another_page_is_not_taken_even_with_the_token(bank, ann, headers):
    approval_id = await bank.notice()
    token = csrf_of(await ann.get("/"))
    told = {"csrf": token, "choice": "approve"}
    answer = await ann.post(f"/approvals/{approval_id}/decision", data=told, headers=headers)
    assert (answer.status_code, await bank.status(approval_id)) == (403, "waiting")
    answer = await ann.post("/sign-in", data=FORM, headers=headers)
    assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)


# --- tenants --------------------------------------------------------------------------------------


async def test_a_user_of_two_tenants_switches_between_them(bank):
    here, there = await bank.notice(), await bank.notice(tenant="zeta")
    async with client_of(bank, "eve") as eve:
        assert (await eve.get(f"/approvals/{here}")).status_code == 200
        assert (await eve.get(f"/approvals/{there}")).status_code == 404
        old = csrf_of(await eve.get("/"))
        answer = await sent(eve, "/tenant", tenant="zeta")
        assert answer.headers["location"] == "/"
        assert (await eve.get(f"/approvals/{here}")).status_code == 404
        assert (await eve.get(f"/approvals/{there}")).status_code == 200
        told = {"csrf": old, "choice": "approve"}
        assert (await eve.post(f"/approvals/{there}/decision", data=told)).status_code == 403


async def test_a_user_can_not_switch_to_a_tenant_without_a_role(bank, ann):
    for tenant in ("zeta", "*", "", "acme\r\nX: y"):
        answer = await sent(ann, "/tenant", tenant=tenant)
        assert (answer.status_code, "set-cookie" in answer.headers) == (404, False)
    assert 'data-tenant="acme"' in (await ann.get("/")).text
