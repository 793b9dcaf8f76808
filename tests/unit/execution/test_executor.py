"""Carrying a tool out: where it runs, what it is given, and what becomes of what it raises."""

import asyncio
import contextvars
import threading
from typing import Annotated

import anyio
import pytest

from counterseal import Config, Context, Secret, State
from counterseal.codes import Code
from counterseal.contract.declare import tool
from counterseal.errors import CountersealError, ToolFailedError
from counterseal.execution.attempt import AttemptRequest
from counterseal.execution.executor import Executor
from counterseal.proposal import Principal

READS = {"effect": "read_only", "version": "1.0.0", "owner": "tests"}
CONTEXT = Context(
    principal=Principal(tenant="acme", agent="agent"),
    run_id="run_1",
    call_id="call_1",
    config={"region": "eu"},
    state={"seen": [1, 2]},
)


def declare(function, **more):
    function.__doc__ = "A tool of a test."
    return tool(**{**READS, **more})(function)


@pytest.fixture
def outcome_of():
    async def run(function, arguments=None, secrets=None, context=lambda: CONTEXT, **more):
        made = declare(function, **more)
        runner = Executor(secrets).runner(made.contract, made)
        seconds = made.contract.runtime.timeout_ms / 1000
        return await runner.run(AttemptRequest(arguments or {}, context, seconds))

    return run


# --- where it runs --------------------------------------------------------------------------------


async def test_a_sync_tool_leaves_the_event_loop_alone(outcome_of):
    def where() -> int:
        return threading.get_ident()

    outcome = await outcome_of(where)
    assert outcome.code is Code.SUCCESS
    assert outcome.value != threading.get_ident()


async def test_the_loop_turns_while_a_sync_tool_works(outcome_of):
    done = threading.Event()

    def wait() -> bool:
        return done.wait(10)

    running = asyncio.create_task(outcome_of(wait))
    await asyncio.sleep(0)
    done.set()
    assert (await running).value is True


async def test_a_sync_tool_that_is_declared_inline_stays(outcome_of):
    def where() -> int:
        return threading.get_ident()

    assert (await outcome_of(where, isolation="inline")).value == threading.get_ident()


async def test_an_async_tool_stays_on_the_event_loop_and_in_one_task(outcome_of):
    async def where() -> list[int]:
        before = (threading.get_ident(), id(asyncio.current_task()))
        await asyncio.sleep(0)
        assert before == (threading.get_ident(), id(asyncio.current_task()))
        return [before[0]]

    assert (await outcome_of(where)).value == [threading.get_ident()]


async def test_a_thread_sees_the_callers_context_variables(outcome_of):
    name = contextvars.ContextVar("name", default="nobody")
    name.set("caller")

    def who() -> str:
        return name.get()

    assert (await outcome_of(who)).value == "caller"


# --- what it is given -----------------------------------------------------------------------------


async def test_marked_parameters_receive_their_values(outcome_of):
    async def all_of_it(
        case_id: Annotated[str, "The case."],
        ctx: Context,
        password: Annotated[str, Secret("smtp_password")],
        region: Annotated[str, Config("region")],
        seen: Annotated[list[int], State("seen")],
    ) -> list[str]:
        return [case_id, ctx.tenant, password, region, str(seen)]

    outcome = await outcome_of(all_of_it, {"case_id": "c1"}, {"smtp_password": "password"})
    assert outcome.value == ["c1", "acme", "password", "eu", "[1, 2]"]


async def test_secrets_can_be_resolved_for_the_tenant(outcome_of):
    asked = []

    def resolve(tenant, name):
        asked.append((tenant, name))
        return f"{tenant}-{name}"

    async def show(password: Annotated[str, Secret("smtp")]) -> str:
        return password

    assert (await outcome_of(show, secrets=resolve)).value == "acme-smtp"
    assert asked == [("acme", "smtp")]


async def test_a_secret_that_is_missing_stops_the_tool_before_it_starts(outcome_of):
    called = []

    async def use(password: Annotated[str, Secret("smtp")]) -> str:
        called.append(password)
        return "sent"

    outcome = await outcome_of(use, secrets={"other": "xxxxxxxx"})
    assert outcome.code is Code.DEPENDENCY_UNAVAILABLE
    assert called == []


async def test_an_argument_can_not_take_an_injected_place(outcome_of):
    async def use(password: Annotated[str, Secret("smtp")]) -> str:
        return password

    # The schema gate refuses such a call; the executor does not rely on it.
    outcome = await outcome_of(use, {"password": "from the model"}, {"smtp": "real secret"})
    assert outcome.value != "from the model"


# --- what it raises -------------------------------------------------------------------------------

CODES = [
    (TimeoutError(), Code.TIMEOUT),
    (TimeoutError(), Code.TIMEOUT),
    (ConnectionError(), Code.DEPENDENCY_UNAVAILABLE),
    (ConnectionResetError(), Code.DEPENDENCY_UNAVAILABLE),
    (OSError(), Code.DEPENDENCY_UNAVAILABLE),
    (FileNotFoundError(), Code.UNKNOWN_ERROR),
    (ToolFailedError("t"), Code.SEMANTIC_INVALIDITY),
    (CountersealError(), Code.UNKNOWN_ERROR),
    (ValueError(), Code.UNKNOWN_ERROR),
    (KeyError(), Code.UNKNOWN_ERROR),
    (RecursionError(), Code.UNKNOWN_ERROR),
    (MemoryError(), Code.UNKNOWN_ERROR),
    (ExceptionGroup("g", [TimeoutError()]), Code.TIMEOUT),
]


@pytest.mark.parametrize(("error", "code"), CODES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("kind", ["async", "async later", "thread", "inline"])
async def test_an_exception_becomes_a_code_wherever_the_tool_runs(outcome_of, error, code, kind):
    def fail() -> str:
        raise error

    async def fail_now() -> str:
        raise error

    async def fail_later() -> str:
        await asyncio.sleep(0)
        raise error

    made = {"async": fail_now, "async later": fail_later}.get(kind, fail)
    more = {"isolation": "inline"} if kind == "inline" else {}
    outcome = await outcome_of(made, **more)
    assert outcome.code is code
    assert type(error).__name__ in outcome.trace
    assert outcome.value is None


class Stop(BaseException):
    pass


@pytest.mark.parametrize("kind", [asyncio.CancelledError, KeyboardInterrupt, SystemExit, Stop])
@pytest.mark.parametrize("later", [False, True])
def test_only_the_keyboard_gets_past_the_boundary(outcome_of, kind, later):
    async def stop() -> str:
        if later:
            await asyncio.sleep(0)
        raise kind

    async def run():
        return (await outcome_of(stop)).code

    if kind is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(run())
    else:
        assert asyncio.run(run()) is Code.UNKNOWN_ERROR


async def test_a_tool_that_can_not_be_bound_fails_by_a_code(outcome_of):
    async def count(number: int) -> int:
        return number

    assert (await outcome_of(count, {"number": "not one"})).code is Code.UNKNOWN_ERROR
    assert (await outcome_of(count, {})).code is Code.UNKNOWN_ERROR


async def test_nothing_that_a_tool_returns_is_taken_for_a_failure(outcome_of):
    async def answer() -> dict[str, str]:
        return {"error": "all wrong"}

    outcome = await outcome_of(answer)
    assert (outcome.code, outcome.value, outcome.fault) == (
        Code.SUCCESS,
        {"error": "all wrong"},
        None,
    )


# --- a tool that waits ----------------------------------------------------------------------------


@pytest.mark.parametrize("waits", [0, 1, 2, 50])
async def test_a_tool_that_waits_goes_on_where_it_was(outcome_of, waits):
    async def count() -> int:
        done = 0
        for _ in range(waits):
            await asyncio.sleep(0)
            done += 1
        return done

    assert (await outcome_of(count)).value == waits


async def test_what_a_tool_waits_for_reaches_it(outcome_of):
    loop = asyncio.get_running_loop()
    answer, failure = loop.create_future(), loop.create_future()

    async def wait() -> str:
        first = await answer
        try:
            await failure
        except ConnectionError as error:
            return f"{first}, then {error}"
        return "never"

    running = asyncio.create_task(outcome_of(wait))
    await asyncio.sleep(0)
    answer.set_result("first")
    await asyncio.sleep(0)
    failure.set_exception(ConnectionError("second"))
    assert (await running).value == "first, then second"


async def test_a_future_that_is_ready_is_not_waited_for(outcome_of):
    ready = asyncio.get_running_loop().create_future()
    ready.set_result(7)

    async def wait() -> int:
        return await ready

    assert (await outcome_of(wait)).value == 7


async def test_context_variables_stay_as_they_are_across_a_wait(outcome_of):
    name = contextvars.ContextVar("name", default="nobody")

    async def remember() -> list[str]:
        seen = [name.get()]
        token = name.set("tool")
        await asyncio.sleep(0)
        seen.append(name.get())
        name.reset(token)
        await asyncio.sleep(0)
        return [*seen, name.get()]

    name.set("caller")
    assert (await outcome_of(remember)).value == ["caller", "tool", "caller"]
    assert name.get() == "caller"


@pytest.mark.parametrize("first_waits", [False, True])
async def test_a_timeout_of_the_tools_own_is_its_own(outcome_of, first_waits):
    async def patient() -> str:
        if first_waits:
            await asyncio.sleep(0)
        try:
            async with asyncio.timeout(0.005):
                await asyncio.Event().wait()
        except TimeoutError:
            await asyncio.sleep(0)
            return "gave up in time"
        return "never"

    outcome = await outcome_of(patient)
    assert (outcome.code, outcome.value) == (Code.SUCCESS, "gave up in time")
    assert asyncio.current_task().cancelling() == 0


async def test_a_timeout_that_the_tool_does_not_catch_is_a_timeout(outcome_of):
    async def impatient() -> str:
        async with asyncio.timeout(0.005):
            await asyncio.Event().wait()
        return "never"

    assert (await outcome_of(impatient)).code is Code.TIMEOUT


async def test_generators_and_context_managers_of_a_tool_are_closed(outcome_of):
    closed = []

    async def numbers():
        try:
            for number in range(10):
                await asyncio.sleep(0)
                yield number
        finally:
            await asyncio.sleep(0)
            closed.append("numbers")

    async def first_three() -> list[int]:
        stream, found = numbers(), []
        try:
            async for number in stream:
                found.append(number)
                if number == 2:
                    break
        finally:
            await stream.aclose()
        return found

    assert (await outcome_of(first_three)).value == [0, 1, 2]
    assert closed == ["numbers"]


@pytest.mark.parametrize("kind", ["anyio", "asyncio"])
async def test_a_tool_may_do_several_things_at_once(outcome_of, kind):
    async def together() -> list[int]:
        found = []

        async def find(number):
            await asyncio.sleep(0)
            found.append(number)

        if kind == "anyio":
            async with anyio.create_task_group() as group:
                for number in range(3):
                    group.start_soon(find, number)
        else:
            async with asyncio.TaskGroup() as group:
                for number in range(3):
                    group.create_task(find(number))
        return sorted(found)

    assert (await outcome_of(together)).value == [0, 1, 2]


@pytest.mark.parametrize("kind", ["anyio", "asyncio"])
async def test_one_of_several_things_that_fails_fails_the_tool_alone(outcome_of, kind):
    async def together() -> str:
        async def fail():
            await asyncio.sleep(0)
            raise ValueError("one of them")

        if kind == "anyio":
            async with anyio.create_task_group() as group:
                group.start_soon(fail)
                await anyio.sleep_forever()
        else:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
                await asyncio.Event().wait()
        return "never"

    outcome = await outcome_of(together)
    assert outcome.code is Code.UNKNOWN_ERROR
    assert "ExceptionGroup" in outcome.trace
    assert asyncio.current_task().cancelling() == 0
    await asyncio.sleep(0)


async def test_a_scope_that_a_tool_cancels_is_its_own(outcome_of):
    async def moved_on() -> str:
        with anyio.move_on_after(0.005) as scope:
            await anyio.sleep_forever()
        return "moved on" if scope.cancelled_caught else "never"

    assert (await outcome_of(moved_on)).value == "moved on"


# --- deadlines and cancellation -------------------------------------------------------------------


async def test_a_tool_that_waits_too_long_is_stopped_and_may_clean_up(outcome_of):
    seen = []

    async def hang() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("stopped")
            raise
        finally:
            await asyncio.sleep(0)
            seen.append("cleaned up")
        return "never"

    outcome = await outcome_of(hang, timeout_ms=10)
    assert outcome.code is Code.TIMEOUT
    assert seen == ["stopped", "cleaned up"]
    assert asyncio.current_task().cancelling() == 0


async def test_a_tool_that_answers_when_it_is_stopped_is_heard(outcome_of):
    async def finishes() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "rolled back"
        return "never"

    # It is known what happened, so nothing is unknown about it.
    assert (await outcome_of(finishes, timeout_ms=10)).value == "rolled back"


async def test_a_thread_that_outlives_its_deadline_is_a_timeout(outcome_of):
    release, ended = threading.Event(), threading.Event()

    def slow() -> str:
        release.wait(10)
        ended.set()
        return "too late"

    outcome = await outcome_of(slow, timeout_ms=10)
    assert outcome.code is Code.TIMEOUT
    assert not ended.is_set(), "nobody waits for it"
    release.set()
    assert await asyncio.to_thread(ended.wait, 10)


async def test_a_caller_who_gives_up_stops_the_tool(outcome_of):
    seen = []

    async def hang() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("stopped")
            raise
        return "never"

    running = asyncio.create_task(outcome_of(hang))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    running.cancel()
    assert (await running).interrupted, "the call is settled before the caller is let go"
    assert seen == ["stopped"]


async def test_a_coroutine_that_is_thrown_away_is_closed(outcome_of):
    seen = []

    async def hang() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("closed")
        return "never"

    async def outer():
        return await outcome_of(hang)

    running = outer()
    running.send(None)
    await asyncio.sleep(0)
    running.close()
    for _ in range(3):
        await asyncio.sleep(0)
    assert seen == ["closed"]


# --- with nothing to wait for ---------------------------------------------------------------------


async def test_a_context_variable_that_a_tool_sets_stays_with_it(outcome_of):
    name = contextvars.ContextVar("name", default="nobody")

    async def leak() -> str:
        name.set("tool")
        return name.get()

    assert (await outcome_of(leak)).value == "tool"
    assert name.get() == "nobody"


@pytest.mark.parametrize("kind", [GeneratorExit, asyncio.CancelledError, SystemExit])
@pytest.mark.parametrize("how", ["async", "waits", "inline"])
async def test_an_exception_of_a_tool_is_never_taken_for_one_of_the_runtime(outcome_of, kind, how):
    async def at_once() -> str:
        raise kind

    async def later() -> str:
        await asyncio.sleep(0)
        raise kind

    def sync() -> str:
        raise kind

    made = {"async": at_once, "waits": later, "inline": sync}[how]
    more = {"isolation": "inline"} if how == "inline" else {}
    outcome = await outcome_of(made, **more)
    assert (outcome.code, outcome.interrupted) == (Code.UNKNOWN_ERROR, False)


async def test_an_async_tool_in_a_thread_is_cancelled_there(outcome_of):
    seen = threading.Event()

    async def hang() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.set()
            raise
        return "never"

    outcome = await outcome_of(hang, isolation="thread", timeout_ms=50)
    assert outcome.code in (Code.TIMEOUT, Code.UNKNOWN_ERROR)
    assert await asyncio.to_thread(seen.wait, 10)


async def test_the_deadline_covers_the_search_for_a_secret(outcome_of):
    async def never(tenant, name):
        await asyncio.Event().wait()

    async def use(password: Annotated[str, Secret("smtp")]) -> str:
        return password

    outcome = await outcome_of(use, secrets=never, timeout_ms=50)
    assert (outcome.code, outcome.began) == (Code.TIMEOUT, False)
