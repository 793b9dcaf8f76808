"""Reads that leave what the model saw of them: the same on every store."""

from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from counterseal import Grant, Proposal, Runtime
from counterseal.accounts.users import Person
from counterseal.errors import NotDoneError
from counterseal.keys import KeyRing, Purpose, new_key
from counterseal.ledger.requests import ExpiryRequest
from counterseal.operations.auditor import AmbiguousCallError
from counterseal.testing import fake_tool, someone
from counterseal.views import TenantView
from counterseal.views.base import NotFoundError
from counterseal.views.call_page import RedactionRow

NUMBER = {
    "type": "object",
    "properties": {"n": {"type": "integer", "description": "Which."}},
    "required": ["n"],
    "additionalProperties": False,
}
SECRET = "hunter2-and-more"
NO_LONGER = "It is no longer kept."


def file_of(n):
    """A case file; every second one has a password in it."""
    return {"case": f"case_{n}", "password": SECRET} if n % 2 else {"case": f"case_{n}"}


class Archive:
    """A runtime on the store under test, and people who look at what was read."""

    def __init__(self, runtime):
        self.runtime = runtime

    async def read(self, n, tool="look_up", tenant="acme", **more):
        asked = Proposal(tool=tool, arguments={"n": n}, run_id="run_1", **more)
        return await self.runtime.submit(asked, someone(tenant=tenant))

    def view(self, tenant="acme"):
        return TenantView(
            self.runtime, Person(name="vic", tenant=tenant, roles=frozenset({"viewer"}))
        )

    async def page(self, seen, tenant="acme"):
        return await self.view(tenant).calls.page(seen.call_id)

    async def end(self, seen, tenant="acme"):
        *_, (_, event) = await self.runtime.store.events(tenant, call_id=seen.call_id)
        return event.body


@pytest.fixture
def archive(store):
    @asynccontextmanager
    async def archive(*tools, **options):
        made = tools or (fake_tool("look_up", file_of, input_schema=NUMBER),)
        runtime = Runtime(store, **options)
        await store.ready()
        names = [one.contract.name for one in made]
        grants = [Grant(agent="agent", tool=name, max_calls_per_run=99) for name in names]
        runtime.register(*(one.tool for one in made), grants=grants)
        yield Archive(runtime)
        await runtime.executor.aclose()

    return archive


async def test_a_read_that_something_was_taken_out_of_keeps_what_the_model_saw(archive):
    async with archive() as there:
        seen = await there.read(1)
        page = await there.page(seen)
        assert page.text == seen.for_model()
        assert '"password":"[redacted:password]"' in page.text
        assert page.redactions == [RedactionRow(rule="password", pointer="/password", count=1)]
        assert page.observation.result_payload.data["case"] == "case_1"
        assert (page.not_kept, page.cut, page.ledger) == ("", "", None)
        found = await there.view().calls.observation(call_id=seen.call_id)
        assert (found["text"], found["cut"]) == (page.text, "")
        kept = await there.runtime.store.fetch("acme", (await there.end(seen))["seen"])
        assert SECRET.encode() not in kept


@pytest.mark.parametrize(
    ("setting", "own", "kept"),
    [
        ("none", None, [False, False]),
        ("redacted", None, [True, False]),
        ("all", None, [True, True]),
        ("none", "redacted", [True, False]),
        ("none", "all", [True, True]),
        ("all", "none", [False, False]),
        ("all", "redacted", [True, False]),
    ],
)
async def test_the_setting_says_which_are_kept_and_a_contract_comes_first(
    archive, setting, own, kept
):
    said = {} if own is None else {"keep_reads": own}
    made = fake_tool("look_up", file_of, input_schema=NUMBER, **said)
    async with archive(made, keep_reads=setting) as there:
        told = [await there.read(n) for n in (1, 2)]
        assert ["seen" in await there.end(one) for one in told] == kept
        pages = [await there.page(one) for one in told]
        assert [page.text == one.for_model() for page, one in zip(pages, told, strict=True)] == kept
        asked = ["keep_reads" in page.not_kept for page in pages]
        assert asked == [not one for one in kept]


@pytest.mark.parametrize(("setting", "kept"), [("redacted", False), ("all", True)])
async def test_a_read_that_fails_is_one_of_all(archive, setting, kept):
    made = fake_tool("look_up", LookupError("no such case"), input_schema=NUMBER, max_retries=0)
    async with archive(made, keep_reads=setting) as there:
        seen = await there.read(1)
        assert not seen.ok
        assert ((await there.page(seen)).text == seen.for_model()) is kept


async def test_words_about_a_failure_are_kept_where_something_was_taken_out_of_them(archive):
    said = NotDoneError(f"the archive wants password={SECRET}")
    made = fake_tool("look_up", said, input_schema=NUMBER, max_retries=0)
    async with archive(made) as there:
        seen = await there.read(1)
        page = await there.page(seen)
        assert (page.text, bool(page.redactions)) == (seen.for_model(), True)
        assert SECRET not in page.text


async def test_what_is_announced_or_leaves_a_version_is_kept_like_any_other_read(archive):
    made = fake_tool(
        "look_up",
        lambda n: {**file_of(n), "version": 3},
        input_schema=NUMBER,
        output_schema={"type": "object", "properties": {"version": {"type": "integer"}}},
        resource="case:{n}",
        version_from="/version",
        observability={"audit_required": True},
    )
    async with archive(made) as there:
        seen = await there.read(1)
        assert (await there.page(seen)).text == seen.for_model()


async def test_it_is_found_under_its_own_tenant_only(archive):
    async with archive() as there:
        seen = await there.read(1)
        theirs = there.view("zeta")
        with pytest.raises(NotFoundError):
            await theirs.calls.page(seen.call_id)
        with pytest.raises(NotFoundError):
            await theirs.calls.observation(call_id=seen.call_id)
        pointer = (await there.end(seen))["seen"]
        assert await there.runtime.store.fetch("zeta", pointer) is None


async def test_one_id_in_two_tenants_leads_each_to_its_own(archive):
    async with archive() as there:
        for tenant, n in (("acme", 1), ("zeta", 3)):
            await there.read(n, tenant=tenant, call_id="call_x")
        for tenant, n in (("acme", 1), ("zeta", 3)):
            found = await there.view(tenant).calls.observation(call_id="call_x")
            assert found["result_payload"]["data"]["case"] == f"case_{n}"


async def test_an_id_that_two_agents_have_used_shows_neither_what_the_other_read(archive):
    async with archive() as there:
        there.runtime.registry.grant(Grant(agent="other", tool="look_up"))
        await there.read(1, call_id="call_x")
        asked = Proposal(tool="look_up", arguments={"n": 3}, run_id="run_2", call_id="call_x")
        await there.runtime.submit(asked, someone("other"))
        with pytest.raises(AmbiguousCallError, match="2 calls have the id 'call_x'"):
            await there.view().calls.observation(call_id="call_x")
        mine = await there.view().calls.observation(call_id="call_x", owner=("other", None))
        assert mine["result_payload"]["data"]["case"] == file_of(n=3)["case"]


async def test_what_is_forgotten_with_the_vault_is_no_longer_kept(archive, store):
    async with archive() as there:
        seen = await there.read(1)
        assert (await store.expire(ExpiryRequest(vault_after=-1)))[
            "vault"
        ] == 2  # with the arguments
        page = await there.page(seen)
        assert (page.text, page.observation, page.not_kept) == (None, None, NO_LONGER)
        assert page.redactions == [RedactionRow(rule="password", pointer="/password", count=1)]
        with pytest.raises(NotFoundError):
            await there.view().calls.observation(call_id=seen.call_id)


async def test_with_a_key_it_is_sealed_and_without_that_key_no_longer_kept(
    archive, store, tmp_path
):
    new_key(tmp_path / "keys", Purpose.VAULT, datetime(2026, 7, 31, tzinfo=UTC))
    ring = KeyRing.load(tmp_path / "keys")
    async with archive(keys=ring) as there:
        seen = await there.read(1)
        assert (await there.page(seen)).text == seen.for_model()
        assert b"case_1" not in await store.fetch("acme", (await there.end(seen))["seen"])
    async with archive() as there:
        assert (await there.page(seen)).not_kept == NO_LONGER


async def test_a_long_one_is_cut_and_the_page_says_so(archive):
    made = fake_tool(
        "look_up",
        lambda n: {"password": SECRET, "rows": [f"row {row}" for row in range(2000)]},
        input_schema=NUMBER,
    )
    async with archive(made, keep_reads_bytes=2000) as there:
        seen = await there.read(1)
        page = await there.page(seen)
        assert seen.for_model().startswith(page.text)
        assert len(page.text) == 2000
        assert page.cut.startswith("Only the first 2,000 of its ")
        assert page.observation.result_payload.data["truncated"] is True


async def test_a_vault_that_fails_does_not_keep_a_read_from_its_end(archive, store, monkeypatch):
    def keep(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr(store, "keep", keep)
    async with archive() as there:
        seen = await there.read(1)
        assert (seen.code, seen.data["case"]) == ("SUCCESS", "case_1")
        assert (await there.end(seen))["seen"] is None
        page = await there.page(seen)
        assert (page.text, page.not_kept) == (
            None,
            "It could not be kept: the vault did not accept it.",
        )
        assert page.redactions


async def test_where_nothing_is_to_be_kept_the_vault_is_not_touched(archive, store, monkeypatch):
    def keep(*_):
        raise AssertionError("the vault was used")

    monkeypatch.setattr(store, "keep", keep)
    async with archive(keep_reads="none", keep_arguments_days=0) as there:
        assert (await there.read(1)).redactions
        assert "seen" not in await there.end(await there.read(1))
    async with archive(keep_arguments_days=0) as there:
        assert "seen" not in await there.end(await there.read(2))
