"""Secrets: each tenant's own from every source, nothing weak, asked once, never in a message."""

import asyncio
import os
import re
import threading

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from counterseal.errors import SecretUnavailableError
from counterseal.execution.secrets import (
    Credentials,
    from_environment,
    from_files,
    secret_variable,
)

VALUE = "correct-horse-battery"
OTHER = "another-horse-battery"


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


class Vault:
    """An async resolver that answers when it is told to."""

    def __init__(self):
        self.asked = []
        self.cancelled = 0
        self.started = asyncio.Event()
        self.answer = asyncio.Event()

    async def __call__(self, tenant, name):
        self.asked.append((tenant, name))
        self.started.set()
        try:
            await self.answer.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return f"{VALUE}-{len(self.asked)}"


def counting():
    """A resolver whose every answer is another."""
    asked = []

    async def resolve(tenant, name):
        asked.append((tenant, name))
        return f"{VALUE}-{len(asked)}"

    return resolve, asked


async def refused(source, tenant="acme", name="api_key"):
    with pytest.raises(SecretUnavailableError) as raised:
        await Credentials(source).get(tenant, name)
    assert name in str(raised.value)
    return raised.value


# --- a mapping ------------------------------------------------------------------------------------


async def test_a_mapping_gives_a_tenant_its_own_before_what_is_for_all():
    credentials = Credentials({"api_key": VALUE, "acme": {"api_key": OTHER}})
    assert await credentials.get("acme", "api_key") == OTHER
    assert await credentials.get("globex", "api_key") == VALUE


async def test_another_tenants_secret_is_never_seen():
    source = {"acme": {"api_key": VALUE}}
    await refused(source, tenant="globex")
    # Neither by a name that is spelled like a tenant, nor by a tenant that is spelled like a name.
    await refused(source, tenant="globex", name="acme")
    await refused({"api_key": VALUE}, tenant="api_key", name="other")


async def test_what_a_mapping_does_not_hold_is_unavailable():
    assert "is not configured" in str(await refused({}))
    assert "is not configured" in str(await refused({"api_key": None}))


async def test_a_mapping_answers_without_a_thread():
    class Recorded(dict):
        def get(self, key):
            threads.append(threading.get_ident())
            return super().get(key)

    threads = []
    assert await Credentials(Recorded(api_key=VALUE)).get("acme", "api_key") == VALUE
    assert set(threads) == {threading.get_ident()}


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "blank"),
        (" \n" * 9, "blank"),
        ("hunter2", "fewer than 8"),
        ("hunter2    ", "fewer than 8"),
        ("correct\0horse", "NUL"),
        ("correct-\udce9horse", "not UTF-8"),
        (b"correct-horse", "must be text, got bytes"),
        (12345678, "must be text, got int"),
        ({"v": "correct-horse"}, "must be text, got dict"),
    ],
)
async def test_what_is_no_good_secret_is_refused_with_its_name_and_without_its_value(value, why):
    error = await refused(lambda tenant, name: value)
    assert why in str(error)
    for part in ("hunter", "horse", "12345678"):
        assert part not in str(error)


async def test_the_shortest_secret_has_eight_characters():
    assert await Credentials({"api_key": "12345678"}).get("acme", "api_key") == "12345678"


REFUSALS = re.compile(
    r"the secret api_key (is not configured; add it to secrets=|can't be used: "
    r"(it must be text, got (int|bytes)|it is blank|it holds a NUL character|it is not UTF-8 text"
    r"|it has fewer than 8 characters, too few to be masked reliably))"
)


@given(st.text(max_size=7) | st.binary() | st.integers() | st.none() | st.just("\ud800" * 9))
def test_no_refusal_says_anything_of_the_value(value):
    with pytest.raises(SecretUnavailableError) as raised:
        asyncio.run(Credentials({"api_key": value}).get("acme", "api_key"))
    assert REFUSALS.fullmatch(str(raised.value))


# --- resolvers ------------------------------------------------------------------------------------


async def test_a_resolver_is_asked_for_tenant_and_name():
    resolve, asked = counting()
    await Credentials(resolve).get("acme", "api_key")
    assert asked == [("acme", "api_key")]


async def test_a_resolver_that_is_not_async_leaves_the_event_loop_alone():
    def resolve(tenant, name):
        return f"{VALUE}-{threading.get_ident()}"

    found = await Credentials(resolve).get("acme", "api_key")
    assert found != f"{VALUE}-{threading.get_ident()}"


async def test_async_in_every_disguise_is_awaited():
    async def resolve(tenant, name):
        return f"{VALUE}-{threading.get_ident()}"

    class Resolver:
        async def __call__(self, tenant, name):
            return await resolve(tenant, name)

    def disguised(tenant, name):
        return resolve(tenant, name)

    for source in (resolve, Resolver(), disguised):
        found = await Credentials(source).get("acme", "api_key")
        assert found == f"{VALUE}-{threading.get_ident()}"


@pytest.mark.parametrize(
    "error",
    [OSError(VALUE), KeyError(VALUE), StopIteration(VALUE), SystemExit(VALUE), RecursionError()],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_a_resolver_raises_means_that_there_is_no_secret(error):
    def broken(tenant, name):
        raise error

    async def broken_later(tenant, name):
        await asyncio.sleep(0)
        raise error

    for source in (broken, broken_later):
        raised = await refused(source)
        cause = raised.__cause__
        # Python itself turns a StopIteration that leaves a coroutine into a RuntimeError.
        assert cause is error or cause.__cause__ is error
        assert VALUE not in str(raised)


async def test_a_resolver_that_says_itself_that_there_is_none_is_quoted():
    def resolve(tenant, name):
        raise SecretUnavailableError(f"{name}: the vault is sealed")

    assert str(await refused(resolve)) == "api_key: the vault is sealed"


async def test_a_resolver_that_cancels_itself_cancels_no_caller():
    async def resolve(tenant, name):
        raise asyncio.CancelledError

    await refused(resolve)


# --- remembering ----------------------------------------------------------------------------------


async def test_a_secret_is_remembered_for_its_time_and_not_longer():
    resolve, asked = counting()
    clock = Clock()
    credentials = Credentials(resolve, clock=clock, ttl=60)
    assert await credentials.get("acme", "api_key") == f"{VALUE}-1"
    clock.now += 59.9
    assert await credentials.get("acme", "api_key") == f"{VALUE}-1"
    clock.now += 0.1
    assert await credentials.get("acme", "api_key") == f"{VALUE}-2"
    assert len(asked) == 2


async def test_what_is_remembered_belongs_to_one_tenant_and_one_name():
    resolve, asked = counting()
    credentials = Credentials(resolve)
    pairs = [("acme", "a"), ("acme", "b"), ("globex", "a")]
    assert len({await credentials.get(*pair) for pair in pairs * 2}) == 3
    assert asked == pairs


async def test_the_oldest_go_first_when_there_are_too_many():
    resolve, asked = counting()
    credentials = Credentials(resolve, most=2)
    for name in ("a", "b", "c", "b", "c", "a"):
        await credentials.get("acme", name)
    assert [name for _, name in asked] == ["a", "b", "c", "a"]
    assert len(credentials._kept) == 2


async def test_what_is_out_of_time_does_not_stay_in_memory():
    resolve, _ = counting()
    clock = Clock()
    credentials = Credentials(resolve, clock=clock, ttl=60)
    await credentials.get("acme", "a")
    clock.now += 60
    await credentials.get("acme", "b")
    assert list(credentials._kept) == [("acme", "b")]


@pytest.mark.parametrize("nothing", [{"ttl": 0}, {"most": 0}])
async def test_remembering_can_be_turned_off(nothing):
    resolve, asked = counting()
    credentials = Credentials(resolve, **nothing)
    for _ in range(2):
        await credentials.get("acme", "api_key")
    assert len(asked) == 2
    assert credentials._kept == {}


async def test_a_failure_is_not_remembered():
    answers = iter([OSError("down"), "short", VALUE])

    def resolve(tenant, name):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    credentials = Credentials(resolve)
    for _ in range(2):
        with pytest.raises(SecretUnavailableError):
            await credentials.get("acme", "api_key")
    assert await credentials.get("acme", "api_key") == VALUE


async def test_forgetting_asks_anew_for_one_tenant_or_for_all():
    resolve, asked = counting()
    credentials = Credentials(resolve)

    async def both():
        asked.clear()
        for tenant in ("acme", "globex"):
            await credentials.get(tenant, "api_key")
        return [tenant for tenant, _ in asked]

    assert await both() == ["acme", "globex"]
    credentials.forget("acme")
    assert await both() == ["acme"]
    credentials.forget()
    assert await both() == ["acme", "globex"]


# --- at the same time -----------------------------------------------------------------------------


async def test_callers_at_the_same_time_share_one_question():
    vault = Vault()
    credentials = Credentials(vault)
    callers = [asyncio.create_task(credentials.get("acme", "api_key")) for _ in range(5)]
    await vault.started.wait()
    vault.answer.set()
    assert await asyncio.gather(*callers) == [f"{VALUE}-1"] * 5
    assert len(vault.asked) == 1


async def test_callers_in_front_of_a_thread_share_one_question():
    started, answer = threading.Event(), threading.Event()
    asked = []

    def resolve(tenant, name):
        asked.append(name)
        started.set()
        assert answer.wait(30)
        return VALUE

    credentials = Credentials(resolve)
    callers = [asyncio.create_task(credentials.get("acme", "api_key")) for _ in range(5)]
    assert await asyncio.to_thread(started.wait, 30)
    answer.set()
    assert await asyncio.gather(*callers) == [VALUE] * 5
    assert asked == ["api_key"]


async def test_one_callers_cancellation_does_not_fail_the_others():
    vault = Vault()
    credentials = Credentials(vault)
    first, second = (asyncio.create_task(credentials.get("acme", "api_key")) for _ in range(2))
    await vault.started.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    vault.answer.set()
    assert await second == f"{VALUE}-1"
    assert (vault.asked, vault.cancelled) == ([("acme", "api_key")], 0)


async def test_a_request_for_a_secret_without_a_waiter_is_given_up_and_made_anew():
    vault = Vault()
    credentials = Credentials(vault)
    callers = [asyncio.create_task(credentials.get("acme", "api_key")) for _ in range(2)]
    await vault.started.wait()
    for caller in callers:
        caller.cancel()
    await asyncio.wait(callers)
    vault.answer.set()
    assert await credentials.get("acme", "api_key") == f"{VALUE}-2"
    assert vault.cancelled == 1


async def test_a_caller_who_is_gone_before_the_question_was_asked_leaves_nothing_behind():
    vault = Vault()
    vault.answer.set()
    credentials = Credentials(vault)
    caller = asyncio.create_task(credentials.get("acme", "api_key"))
    await asyncio.sleep(0)  # the caller waits, the question has not begun
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert await credentials.get("acme", "api_key") == f"{VALUE}-1"


async def test_all_who_wait_learn_of_a_failure():
    answer = asyncio.Event()

    async def resolve(tenant, name):
        await answer.wait()
        raise OSError("down")

    credentials = Credentials(resolve)
    callers = [asyncio.create_task(credentials.get("acme", "api_key")) for _ in range(3)]
    await asyncio.sleep(0)
    answer.set()
    found = await asyncio.gather(*callers, return_exceptions=True)
    assert [type(one) for one in found] == [SecretUnavailableError] * 3


async def test_what_was_asked_before_it_was_forgotten_is_not_kept():
    vault = Vault()
    credentials = Credentials(vault)
    early = asyncio.create_task(credentials.get("acme", "api_key"))
    await vault.started.wait()
    credentials.forget("acme")
    late = asyncio.create_task(credentials.get("acme", "api_key"))
    await asyncio.sleep(0)
    vault.answer.set()
    await early
    await late
    assert len(vault.asked) == 2
    assert await credentials.get("acme", "api_key") == await late


def test_another_event_loop_asks_for_itself():
    hung = asyncio.new_event_loop()
    vault = Vault()
    credentials = Credentials(vault)
    waiting = hung.create_task(credentials.get("acme", "api_key"))
    hung.run_until_complete(vault.started.wait())

    async def elsewhere():
        vault.answer = asyncio.Event()
        vault.answer.set()
        return await credentials.get("acme", "api_key")

    assert asyncio.run(elsewhere()) == f"{VALUE}-2"
    waiting.cancel()
    hung.run_until_complete(asyncio.wait([waiting]))
    hung.run_until_complete(asyncio.sleep(0))
    hung.close()


# --- the environment ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "tenant", "variable"),
    [
        ("api-key", None, "COUNTERSEAL_SECRET_API_KEY"),
        ("smtp_password", None, "COUNTERSEAL_SECRET_SMTP_PASSWORD"),
        ("Stripe.Key2", None, "COUNTERSEAL_SECRET_STRIPE_KEY2"),
        ("api-key", "acme", "COUNTERSEAL_SECRET_ACME__API_KEY"),
        ("api-key", "acme-eu", "COUNTERSEAL_SECRET_ACME_2DEU__API_KEY"),
        ("api-key", "acme_eu", "COUNTERSEAL_SECRET_ACME_5FEU__API_KEY"),
        ("api-key", "Acme", "COUNTERSEAL_SECRET__41CME__API_KEY"),
        ("api-key", "é", "COUNTERSEAL_SECRET__C3_A9__API_KEY"),
    ],
)
def test_a_secret_has_one_variable(name, tenant, variable):
    assert secret_variable(name, tenant) == variable


@pytest.mark.parametrize("name", ["", "a__b", "_a", "a_", "a--b", "a b", "a/b", "é", "a\n", "a=b"])
async def test_a_name_that_could_be_mistaken_has_no_variable(name, monkeypatch):
    monkeypatch.setenv("COUNTERSEAL_SECRET_A__B", VALUE)
    with pytest.raises(SecretUnavailableError):
        secret_variable(name)
    await refused(from_environment, name=name)


TENANTS = st.text(min_size=1, max_size=6) | st.text("aA_-.2dD5fF", min_size=1, max_size=6)
NAMES = st.from_regex(r"[a-c2]{1,3}(_[a-cd5f2]{1,3}){0,2}", fullmatch=True)


@given(TENANTS, TENANTS | st.none(), NAMES, NAMES)
def test_no_two_secrets_meet_in_one_variable(tenant, other, name, another):
    assume((tenant, name) != (other, another))
    assert secret_variable(name, tenant) != secret_variable(another, other)
    # Nor where variables are written in capitals by the system.
    assert secret_variable(name, tenant) == secret_variable(name, tenant).upper()


async def test_a_tenants_own_variable_comes_before_the_one_for_all(monkeypatch):
    monkeypatch.setenv("COUNTERSEAL_SECRET_API_KEY", VALUE)
    monkeypatch.setenv("COUNTERSEAL_SECRET_ACME__API_KEY", OTHER)
    credentials = Credentials(from_environment)
    assert await credentials.get("acme", "api-key") == OTHER
    assert await credentials.get("globex", "api-key") == VALUE
    assert await credentials.get("Acme", "api-key") == VALUE


async def test_a_tenants_own_variable_that_is_no_good_is_not_passed_over(monkeypatch):
    monkeypatch.setenv("COUNTERSEAL_SECRET_API_KEY", VALUE)
    monkeypatch.setenv("COUNTERSEAL_SECRET_ACME__API_KEY", "")
    assert "blank" in str(await refused(from_environment, name="api-key"))


async def test_a_variable_that_is_not_set_is_named():
    told = str(await refused(from_environment, name="not-there"))
    assert "set COUNTERSEAL_SECRET_NOT_THERE" in told
    assert "COUNTERSEAL_SECRET_ACME__NOT_THERE for this tenant" in told


async def test_a_variable_that_is_no_text_is_refused(monkeypatch):
    monkeypatch.setitem(os.environ, "COUNTERSEAL_SECRET_API_KEY", os.fsdecode(b"\xff" * 9))
    assert "UTF-8" in str(await refused(from_environment, name="api-key"))


# --- files ----------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "secrets"
    (root / "acme").mkdir(parents=True)
    (root / "acme" / "api_key").write_text(f"{OTHER}\n")
    (root / "api_key").write_text(f"{VALUE}\n")
    (tmp_path / "outside").write_text("outside-the-directory")
    return root


async def test_a_tenants_own_file_comes_before_the_one_for_all(folder):
    credentials = Credentials(from_files(folder))
    assert await credentials.get("acme", "api_key") == OTHER
    assert await credentials.get("globex", "api_key") == VALUE


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (b"correct-horse", "correct-horse"),
        (b"correct-horse\n", "correct-horse"),
        (b"correct-horse\r\n", "correct-horse"),
        (b"correct-horse\n\n", "correct-horse\n"),
        (b" correct-h\xc3\xb6rse ", " correct-hörse "),
    ],
)
async def test_one_line_break_at_the_end_is_no_part_of_a_secret(folder, written, read):
    (folder / "token").write_bytes(written)
    assert await Credentials(from_files(str(folder))).get("acme", "token") == read


@pytest.mark.parametrize(
    "part",
    ["", ".", "..", "../outside", "/etc/hostname", "a/b", "acme\\api_key", "a\0b", ".hidden"],
)
async def test_no_name_and_no_tenant_leads_out_of_the_directory(folder, part):
    source = from_files(folder)
    await refused(source, name=part)
    await refused(source, tenant=part)


async def test_another_tenants_file_is_never_read(folder):
    (folder / "acme" / "own").write_text(VALUE)
    source = from_files(folder)
    for tenant, name in [("globex", "own"), ("globex", "acme"), ("ACME", "own"), ("acme ", "own")]:
        await refused(source, tenant=tenant, name=name)


async def test_links_may_lead_anywhere_inside_the_directory(folder):
    data = folder / "..2030_01_01"
    data.mkdir()
    (data / "token").write_text(VALUE)
    (folder / "..data").symlink_to(data.name)
    (folder / "token").symlink_to("..data/token")
    assert await Credentials(from_files(folder)).get("acme", "token") == VALUE


async def test_a_directory_that_is_itself_a_link_is_fine(folder, tmp_path):
    (tmp_path / "mounted").symlink_to(folder)
    assert await Credentials(from_files(tmp_path / "mounted")).get("acme", "api_key") == OTHER


@pytest.mark.parametrize("target", ["../outside", "/etc/hostname", "missing", "token"])
async def test_links_that_lead_elsewhere_are_refused(folder, target):
    (folder / "token").symlink_to(target)
    await refused(from_files(folder), name="token")


async def test_a_tenants_file_that_is_no_good_is_not_passed_over(folder):
    (folder / "acme" / "api_key").unlink()
    (folder / "acme" / "api_key").symlink_to("../../outside")
    await refused(from_files(folder))


async def test_only_plain_files_of_a_bounded_size_are_read(folder):
    (folder / "large").write_bytes(b"x" * (64 * 1024))
    assert len(await Credentials(from_files(folder)).get("acme", "large")) == 64 * 1024
    (folder / "large").write_bytes(b"x" * (64 * 1024 + 1))
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    for name in ("large", "folder", "pipe"):
        await refused(from_files(folder), name=name)


async def test_a_file_that_is_no_text_is_refused_without_its_bytes(folder):
    (folder / "token").write_bytes(b"correct-horse\xff")
    error = await refused(from_files(folder), name="token")
    assert "UTF-8" in str(error)
    assert error.__cause__ is None
    assert error.__context__ is None


async def test_a_file_that_is_not_there_is_named(folder):
    told = str(await refused(from_files(folder), name="token"))
    assert f"put it into {folder / 'token'}" in told
    await refused(from_files(folder / "missing"))
