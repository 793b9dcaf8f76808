"""The demo without --auto, on Postgres with three workers: people decide, and it goes on."""

import contextlib
import json
import re
import signal
from collections import Counter

import httpx
import pytest

from tests.journeys.demo_runs import NOTICES, STATUSES, new_home, notices, running, statuses
from tests.waiting import until_now

pytestmark = pytest.mark.slow

REJECTED = "case_100004"


class Person:
    """Somebody at a browser without scripts: pages are read, forms are sent."""

    def __init__(self, base, name, password):
        self.client = httpx.Client(base_url=base, timeout=60, trust_env=False)
        self.client.get("/sign-in")
        told = {"name": name, "password": password, "next": "/"}
        assert self.client.post("/sign-in", data=told).status_code == 303

    def close(self):
        self.client.close()

    def csrf(self, page="/"):
        return re.search(r'name="csrf" value="([0-9a-f]+)"', self.client.get(page).text)[1]

    def send(self, page, action, **fields):
        form = {"csrf": self.csrf(page), **fields}
        return self.client.post(action, data=form).status_code

    def decide_all(self):
        """Approve everything that waits, but for one case."""
        votes = []
        for approval_id in dict.fromkeys(re.findall(r"appr_\w+", self.client.get("/").text)):
            page = f"/approvals/{approval_id}"
            text = self.client.get(page).text
            form = {"choice": "approve", "comment": "Agreed."}
            if REJECTED in text:
                form = {"choice": "reject", "comment": "Not before their readings are here."}
            if "is revoked for good" in text:
                assert self.send(page, f"{page}/decision", **form) == 422  # the target is not typed
                form["typed"] = "permit:NS-1270"
            votes.append(self.send(page, f"{page}/decision", **form))
        return votes


def events_of(base, key):
    """All events of a tenant, page by page."""
    events, cursor = [], None
    with httpx.Client(base_url=base, timeout=60, trust_env=False) as client:
        client.headers["Authorization"] = f"Bearer {key}"
        while True:
            query = {"limit": 200, **({"cursor": cursor} if cursor else {})}
            page = client.get("/v1/events", params=query).raise_for_status().json()
            events += page["items"]
            cursor = page["next"]
            if cursor is None:
                return events


def whole_json(demo):
    """What it printed, once all of it has come through the pipe."""

    def parsed():
        with contextlib.suppress(ValueError):
            return json.loads("".join(demo.out))

    return until_now(parsed, "the whole of its JSON")


def test_people_decide_in_the_console_and_the_figures_are_what_the_api_says():
    with contextlib.ExitStack() as stack:
        home = stack.enter_context(new_home())
        demo = stack.enter_context(running(home, "--postgres"))
        base = demo.until("Console").split()[1].rstrip("/")
        password = demo.until("Sign in").split()[-1]
        assert "6 calls wait for you" in demo.until("wait for you")
        assert {one["tenant"] for one in notices(home)} == {"eastvale"}  # its people have decided

        ada = stack.enter_context(contextlib.closing(Person(base, "ada", password)))
        ben = stack.enter_context(contextlib.closing(Person(base, "ben", password)))
        assert "search_filings" in ada.client.get("/tools?status=quarantined").text
        assert "Outcome unknown" in ada.client.get("/operator").text
        assert set(ada.decide_all()) == {303}
        demo.until("ada approves, 1 of 2")
        ben.decide_all()
        demo.until("The console stays up.")

        told = whole_json(demo)
        assert told["ok"] is True, "".join(demo.story)
        keys = json.loads((home / "sign-ins.json").read_text())["people"]
        for tenant in ("northshore", "eastvale"):
            figures = told["figures"][tenant]
            events = events_of(base, keys[f"{tenant}/vera"])
            kinds = Counter(event["type"] for event in events)
            for name, kind in (
                ("approved", "approval.granted"),
                ("rejected", "approval.rejected"),
                ("replayed", "tool.replayed"),
                ("settled", "tool.reconciled"),
                ("verified", "tool.verified"),
            ):
                assert figures[name] == kinds[kind], name
            assert sum(figures["denied"].values()) == kinds["tool.denied"]
            del figures["denied"]["ledger"]  # which is no gate
            for gate, times in figures["denied"].items():
                assert times == kinds[f"gate.{gate}.refused"], gate
            assert figures["corrected"] == sum("corrections" in one["body"] for one in events)

        voted = {
            (one["body"]["approver"], one["body"]["decision"])
            for tenant in ("northshore", "eastvale")
            for one in events_of(base, keys[f"{tenant}/vera"])
            if one["type"] == "approval.voted"
        }
        assert voted == {
            *(("ada", "approve"), ("ada", "reject"), ("ben", "approve")),
            *(("eva", "approve"), ("ike", "approve")),
        }
        assert {(one["case_id"], one["template"]) for one in notices(home)} == NOTICES
        now = statuses(home)
        assert {case: now[case] for case in STATUSES} == STATUSES

        assert demo.end(signal.SIGINT) == 130
        assert "goes on where it was" in demo.story[-1]
        with pytest.raises(httpx.ConnectError):
            httpx.get(base, trust_env=False)
