"""A database of an older version opens, verifies, and the work in it goes on."""

import httpx
import pytest

from tests.golden.commands import PASSWORD
from tests.golden.databases import restored
from tests.golden.gateway import serving

pytestmark = pytest.mark.slow
"""Programs and a Postgres have to start for them."""

KINDS = pytest.mark.parametrize("kind", ["sqlite", "postgres"])


def call(tool, arguments):
    return ["call", tool, arguments, "--as", "clerk", "--run", "run_1"]


def vote(approval_id, who, *more):
    return ["approvals", "approve", approval_id, "--as", who, "--yes", *more]


@KINDS
def test_repeats_are_answered_from_the_ledger(kind):
    with restored(kind) as database:
        settled, sent, held, killed = database.run(
            call("draft_reply", '{"text": "settled"}'),
            call("send_letter", '{"to": "ann"}'),
            call("send_letter", '{"to": "ben"}'),
            call("search", '{"text": "other"}'),
        )
        assert settled["execution_metadata"]["idempotency_hit"]
        assert sent["execution_metadata"]["idempotency_hit"]
        assert sent["result_payload"]["data"] == {"sent": "ann"}
        assert held["approval_id"] == database.facts["ben"]
        assert killed["status"]["is_error"], "an operator has stopped this tool"
        assert not (database.folder / "book.txt").exists(), "nothing was executed"


@KINDS
def test_what_was_left_is_continued_and_the_record_holds(kind):
    with restored(kind) as database:
        facts = database.facts
        confirmed = ("--confirm", "charge", "--justification", "by phone")
        *votes, done, waiting = database.run(
            vote(facts["ben"], "ada"),
            vote(facts["charge"], "ben", *confirmed),
            ["reconcile"],
            ["approvals", "list"],
        )
        assert [one["status"] for one in votes] == ["approved", "approved"]
        assert (done["executed"], done["compensated"]) == (2, 1)
        # The charge was held when its two approvers needed no role but the contract's. The default
        # policy now wants one from compliance: nothing is executed, and both are asked again.
        (charge,) = [row["approval_id"] for row in waiting if row["tool"] == "charge"]
        assert charge != facts["charge"]
        *votes, done, attention, _, verified = database.run(
            vote(charge, "ben", *confirmed),
            vote(charge, "ada", *confirmed),
            ["reconcile"],
            ["reconcile", "list"],
            ["audit", "seal"],
            ["audit", "verify"],
        )
        assert [one["status"] for one in votes] == ["waiting", "approved"]
        assert done["executed"] == 1
        book = (database.folder / "book.txt").read_text().splitlines()
        assert sorted(book) == ["charged ord_1", "dropped undone", "sent ben", "sent cy"]
        unknown = sorted(row["tool"] for row in attention if row["kind"] == "unknown")
        assert unknown == ["crash", "file_return"]
        assert verified["ok"]
        assert [tenant["unsealed"] for tenant in verified["tenants"]] == [0, 0]
        settle = ("--did-not-happen", "--reason", "not seen", "--by", "root", "--tenant", "acme")
        keys = [row["key"] for row in attention if row["kind"] == "unknown"]
        database.run(*(["reconcile", "settle", key, *settle] for key in keys))
        (after,) = database.run(["reconcile", "list"])
        assert after == []


@KINDS
def test_keys_and_passwords_that_were_issued_still_open_the_gateway(kind):
    with restored(kind) as database, serving(database.folder) as told, httpx.Client() as http:
        me = f"{told['url']}/v1/me"
        agent, person, stranger = (
            http.get(me, headers={"Authorization": f"Bearer {key}"})
            for key in (database.facts["key"], database.facts["personal_key"], "cs_key_none")
        )
        assert (agent.status_code, agent.json()["agent"]) == (200, "clerk")
        assert person.status_code == 200
        assert stranger.status_code == 401
        for password, status in ((PASSWORD, 303), (f"not {PASSWORD}", 403)):
            form = {"name": "ann", "password": password}
            assert http.post(f"{told['url']}/sign-in", data=form).status_code == status
