"""What holds for every route that the console has, from the table of them: none is forgotten."""

import re

import pytest

from counterseal import Grant
from counterseal.views.tools import grant_row
from counterseal.web.console import Broker, console_routes, marks_of
from tests.console.conftest import client_of
from tests.console.plant import HELD
from tests.console.test_sign_in import csrf_of, sent

DOOR = {"/sign-in", "/{path:anything}"}
"""What is for everybody."""
SHARED = {"/kill", "/kill/restore", "/tools/{name}/use", "/tools/{name}/grant", "/audit/verify"} | {
    *("/tools/{name}/rollout", "/what-if")
}
"""Forms that name nothing of one tenant: kills and contracts are shared, a policy is only tried."""
REDIRECTS = re.compile(r"/approvals/\{approval_id\}/decision|/tools/\{name\}/\w+|/static/.*")
"""Pages that lead to another one, or are files: nothing is looked up there."""


@pytest.fixture
def routes(works):
    """(method, path) of all."""
    made = console_routes(
        works.runtime,
        works.people,
        lambda person: works.view(person.name, person.tenant),
        urls=[works.url],
        broker=Broker(marks_of(works.runtime)),
    )
    return [(method, one.path) for one in made for method in one.methods if method != "HEAD"]


@pytest.fixture
async def ids(works):
    """Of what there is in acme, by the names that paths and forms have for it."""
    made = await works.call("read_gauge", {"gauge": "g"}, run="run_acme")
    held = await works.call("open_valve", {"valve": "v"}, run="run_acme")
    await works.stuck()
    (concern,) = (await works.view().attention.rows()).items
    grant = Grant(agent="shift-bot", tool="read_gauge", tenant="acme", max_calls_per_run=7)
    await works.runtime.operator("root").grant(grant, reason="For a test.")
    return {
        "call_id": made.call_id,
        "run_id": "run_acme",
        "approval_id": held.approval_id,
        "name": HELD,
        "key": concern.key,
        "grant": grant_row(grant).id,
        "tenant": "acme",
    }


def filled(path, ids):
    return re.sub(r"\{(\w+)(:\w+)?\}", lambda found: ids.get(found[1], "nothing"), path)


def bare(answer, ids):
    """A page without what was asked for, and what differs from visit to visit."""
    text = re.sub(r"[0-9a-f]{64}|nothing", "", answer.text)
    for one in ids.values():
        text = text.replace(one, "")
    return answer.status_code, text


async def test_no_form_of_any_route_is_taken_without_the_sessions_token(works, root, routes):
    changes = len(works.runtime.registry.changes)
    forms = [path for method, path in routes if method == "POST" and path not in DOOR]
    assert len(forms) >= 11
    async with client_of(works, "olga") as olga:
        another = csrf_of(await olga.get("/"))
    mine = csrf_of(await root.get("/"))
    for path in forms:
        for token in ("", "0" * 64, another):
            answer = await root.post(filled(path, {}), data={"csrf": token, "reason": "x"})
            assert answer.status_code == 403, path
        for said in ({"Origin": "https://evil.test"}, {"Sec-Fetch-Site": "same-site"}):
            answer = await root.post(filled(path, {}), data={"csrf": mine}, headers=said)
            assert answer.status_code == 403, path
    assert (await root.get("/approvals")).status_code == 200
    assert len(works.runtime.registry.changes) == changes


async def test_no_page_is_shown_without_signing_in(works, routes, ids):
    async with client_of(works) as nobody:
        for method, path in routes:
            if method == "GET" and path not in DOOR and not path.startswith("/static/"):
                answer = await nobody.get(filled(path, ids))
                assert answer.status_code == (204 if path == "/events" else 303), path
                assert not answer.content


async def test_an_id_of_another_tenant_is_as_good_as_none_in_every_page(works, routes, ids):
    asked = 0
    async with client_of(works, "zed") as zed:
        for method, path in routes:
            if method != "GET" or "{" not in path or path in DOOR or REDIRECTS.fullmatch(path):
                continue
            theirs, nobodys = await zed.get(filled(path, ids)), await zed.get(filled(path, {}))
            assert theirs.status_code == 404, path
            assert bare(theirs, ids) == bare(nobodys, ids), path
            asked += 1
    assert asked == 5


async def test_an_id_of_another_tenant_is_as_good_as_none_in_every_form(works, routes, ids):
    forms = {
        "/approvals/{approval_id}/decision": {"choice": "reject", "comment": "x"},
        "/calls/{call_id:path}/arguments": {},
        "/operator": {"kind": "unknown", "action": "happened", "key": "{key}"},
        "/tenant": {"tenant": "{tenant}"},
        "/tools/{name}/revoke": {"grant": "{grant}"},
        "/tools/{name}/quarantine": {"action": "refuse"},
    }
    posts = {path for method, path in routes if method == "POST"} - DOOR - SHARED - {"/sign-out"}
    assert posts == forms.keys()
    changes = len(works.runtime.registry.changes)
    async with client_of(works, "zed") as zed:
        for path, form in forms.items():
            named = {**ids, "name": "read_gauge"} if "revoke" in path else ids
            answers = []
            for known in (named, {"name": named["name"]} if "revoke" in path else {}):
                fields = {name: filled(value, known) for name, value in form.items()}
                answers.append(await sent(zed, filled(path, known), reason="x", **fields))
            theirs, nobodys = answers
            assert theirs.status_code in (403, 404), path
            assert bare(theirs, ids) == bare(nobodys, ids), path
    assert len(works.runtime.registry.changes) == changes
    assert works.kept.decided == []
    assert (await works.runtime.approvals.find("acme", ids["approval_id"])).status == "waiting"
    assert [one.key for one in (await works.view().attention.rows()).items] == [ids["key"]]
