"""An upstream that dies, hangs or writes nonsense: its callers learn it, other callers go on."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from counterseal.errors import AnswerLostError, NotSentError, ResponseTooLargeError
from counterseal.upstream import Upstreams, UpstreamSettings
from tests.waiting import until

from .conftest import LONG, SERVER, call_context, connected, program, text_of

MIB = 1024 * 1024


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")  # a zombie, whose parent has not waited for it, still has one
    return not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


async def echo(upstream, text="still here"):
    return await upstream.call("echo", {"text": text}, context=call_context())


async def test_a_program_that_dies_in_a_call_loses_the_answers_and_is_started_again(tmp_path):
    async with connected(program()) as upstream:
        flag = tmp_path / "flag"
        pid = (await echo(upstream))["structuredContent"]["pid"]
        other = asyncio.ensure_future(
            upstream.call("wait", {"flag": str(flag)}, context=call_context())
        )
        await until((tmp_path / "flag.started").exists)

        with pytest.raises(AnswerLostError):
            await upstream.call("die", {}, context=call_context())
        with pytest.raises(AnswerLostError):
            await other

        await until(lambda: upstream.ready)
        again = (await echo(upstream))["structuredContent"]["pid"]
        assert again != pid


async def test_a_program_that_is_killed_from_outside_is_noticed_without_a_call():
    async with connected(program()) as upstream:
        told = []
        upstream.on_change = told.append
        first = (await echo(upstream))["structuredContent"]["pid"]
        os.kill(first, signal.SIGKILL)
        await until(lambda: told)
        assert told[0] == "tools"
        assert (await echo(upstream))["structuredContent"]["pid"] != first


async def test_a_call_to_an_upstream_that_is_down_fails_at_once_and_was_not_sent():
    crash = (sys.executable, "-c", "import sys; sys.exit('no license file')")
    settings = UpstreamSettings(name="up", command=crash)
    async with connected(settings) as upstream:
        assert not upstream.ready
        assert upstream.trouble == "the program ended with code 1: no license file"
        with pytest.raises(NotSentError, match="no license file"):
            await echo(upstream)


async def test_a_command_that_does_not_exist_is_trouble_and_no_failure_of_the_opening():
    settings = UpstreamSettings(name="up", command=("/no/such/program",))
    async with connected(settings, program(name="other")) as upstream:
        assert not upstream.ready
        assert upstream.trouble == "/no/such/program: command not found"


async def test_a_first_connection_is_waited_for():
    async with Upstreams([program()]) as upstreams:
        assert not upstreams["up"].ready
        assert text_of(await echo(upstreams["up"], "first")) == "first"


async def test_an_upstream_that_never_answers_the_handshake_delays_no_other():
    mute = (sys.executable, "-c", "import time; time.sleep(1000)")
    settings = UpstreamSettings(name="mute", command=mute, connect_timeout=LONG)
    async with Upstreams([settings, program()]) as upstreams:
        waiting = asyncio.ensure_future(echo(upstreams["mute"]))
        assert text_of(await echo(upstreams["up"])) == "still here"
        assert not waiting.done()
        waiting.cancel()


async def test_a_call_that_hangs_does_not_hold_up_another(tmp_path):
    async with connected(program()) as upstream:
        flag = tmp_path / "flag"
        hanging = asyncio.ensure_future(
            upstream.call("wait", {"flag": str(flag)}, context=call_context())
        )
        await until((tmp_path / "flag.started").exists)
        assert text_of(await echo(upstream)) == "still here"
        flag.touch()
        assert text_of(await hanging) == "waited"


@pytest.mark.parametrize("options", [(), ("--legacy",)])
async def test_cancelling_a_call_reaches_the_upstream_and_leaves_the_connection(tmp_path, options):
    async with connected(program(*options)) as upstream:
        pid = (await echo(upstream))["structuredContent"]["pid"]
        call = asyncio.ensure_future(
            upstream.call("wait", {"flag": str(tmp_path / "flag")}, context=call_context())
        )
        await until((tmp_path / "flag.started").exists)
        call.cancel()
        await until((tmp_path / "flag.cancelled").exists)
        assert (await echo(upstream))["structuredContent"]["pid"] == pid


async def test_garbage_on_its_output_ends_the_connection_and_the_calls_on_it():
    async with connected(program("--banner", "Welcome!")) as upstream:
        assert upstream.ready, "a greeting before the first message is let pass"
        with pytest.raises(AnswerLostError):
            await upstream.call("garbage", {}, context=call_context())
        await until(lambda: upstream.ready)
        assert text_of(await echo(upstream)) == "still here"


@pytest.mark.slow
async def test_an_answer_is_read_up_to_its_limit_and_refused_beyond_it():
    async with connected(program()) as upstream:
        result = await upstream.call("big", {"bytes": 10_000_000}, context=call_context())
        assert len(text_of(result)) == 10_000_000
    async with connected(program(max_bytes=MIB)) as upstream:
        with pytest.raises(ResponseTooLargeError):
            await upstream.call("big", {"bytes": 2 * MIB}, context=call_context())
        assert text_of(await echo(upstream)) == "still here"


@pytest.mark.slow
async def test_a_line_without_end_is_not_read_to_its_end():
    settings = program(max_bytes=MIB, hard_limit=2 * MIB)
    async with connected(settings) as upstream:
        with pytest.raises(AnswerLostError):
            await upstream.call("endless", {}, context=call_context())
        await until(lambda: upstream.ready)
        assert text_of(await echo(upstream)) == "still here"


@pytest.mark.slow
async def test_closing_ends_the_program_and_all_that_it_started(tmp_path):
    # A shell that does not end with its input, and a child that ignores a request to end.
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"
    script = tmp_path / "server.sh"
    pids = tmp_path / "pids"
    script.write_text(
        f"{sys.executable} -c '{deaf}' & echo $! > {pids}\n"
        f"{sys.executable} {SERVER} --stdio\nsleep 1000\n"
    )
    async with connected(UpstreamSettings(name="up", command=("/bin/sh", str(script)))) as upstream:
        assert upstream.ready, upstream.trouble
        child = int(pids.read_text())
        assert alive(child)
    await until(lambda: not alive(child))


async def test_what_a_program_writes_to_its_standard_error_is_logged_without_secrets(caplog):
    noisy = "import os, sys; print('token is', os.environ['TOKEN'], file=sys.stderr)"
    settings = UpstreamSettings(
        name="noisy", command=(sys.executable, "-c", noisy), env={"TOKEN": "{secret:token}"}
    )
    with caplog.at_level("INFO", logger="counterseal.upstream.noisy"):
        async with connected(settings, secrets={"token": "s3cret-value"}) as upstream:
            assert "s3cret-value" not in upstream.trouble
            assert "token is [secret.token]" in upstream.trouble
    assert "token is [secret.token]" in caplog.text
    assert "s3cret-value" not in caplog.text
