"""The benchmark house at work: real workers, turns, environments. No times are asserted."""

import asyncio
import json
import os
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))  # they are no part of the package

from benchmarks._house import command as house_command
from benchmarks._house import environments
from benchmarks._house.command import BEGIN, END, main
from benchmarks._house.environments import Unavailable, python_of, stamp, wanted
from benchmarks._house.house import House, Party
from benchmarks._house.results import Results
from benchmarks._house.rows import Row, Turn
from benchmarks._house.workers import together, worker

TINY = """
import sys
from benchmarks._house.served import at_once, one_by_one, serve

made = 0

async def call():
    global made
    made += 1
    if made == {dies_at}:
        sys.exit("I have had enough.")

async def prepare():
    print("what a library prints goes elsewhere")
    return await ({run})

serve(prepare, ["pytest"])
"""
ALONE, CROWD = "one_by_one(call, warm=3)", "at_once([call] * 4)"
ROW = Row(key="x/y", what="ours beside theirs", ours="ours", theirs="theirs")


@pytest.fixture
def tiny(tmp_path):
    def write(run=ALONE, dies_at=-1):
        path = tmp_path / f"tiny_{abs(hash(run))}_{dies_at}.py"
        path.write_text(TINY.format(run=run, dies_at=dies_at), encoding="utf-8")
        return path

    return write


def turns(*values):
    """A party that takes so long, turn after turn, and says when it had its turn."""
    each = iter(values)

    async def block():
        return Turn(next(each), (), 1)

    return block


# --- workers --------------------------------------------------------------------------------------


async def test_a_worker_makes_the_calls_that_it_is_told_to(tiny):
    async with worker(tiny()) as one:
        turn = await one.run(5)
        assert one.versions["pytest"]
        assert (turn.calls, len(turn.samples)) == (5, 5)
        assert turn.value > 0
        assert "rss_mib" in one.told


async def test_callers_at_once_share_the_calls(tiny):
    async with worker(tiny(CROWD)) as one:
        turn = await one.run(8)
        assert len(turn.samples) == 8


async def test_several_workers_are_timed_together(tiny):
    async with worker(tiny()) as one, worker(tiny()) as other:
        turn = await together([one, other], 5)
        assert turn.calls == 10
        assert len(turn.samples) == 10


async def test_a_worker_that_cannot_start_says_why(tiny):
    with pytest.raises(Unavailable, match="I have had enough"):
        async with worker(tiny(dies_at=2)):
            pass


async def test_a_worker_that_ends_in_its_turn_is_named_with_its_last_words(tiny):
    async with worker(tiny(dies_at=6)) as one:
        with pytest.raises(Unavailable, match="I have had enough"):
            await one.run(10)


async def test_a_worker_ends_with_its_block(tiny):
    async with worker(tiny()) as one:
        pid = one.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


# --- turns ----------------------------------------------------------------------------------------


async def test_parties_take_turns_and_the_first_is_last_in_the_next_round():
    said = []

    def party(name):
        async def block():
            said.append(name)
            return Turn(1.0)

        return block

    house = House(Results())
    await house.compare("x", {"a": party("a"), "b": party("b")}, [], rounds=2)
    assert said == ["a", "b", "b", "a", "a", "b"]  # one round to warm up


async def test_a_comparison_leaves_its_row():
    house = House(Results())
    parties = {"ours": turns(9, 1, 2, 1), "theirs": turns(9, 4, 8, 5)}
    await house.compare("x", parties, [ROW], rounds=3)
    row = house.results.rows["x/y"]
    assert (row.ratio, row.low, row.high, row.rounds) == (4.0, 4.0, 4.5, 3)


async def test_who_cannot_be_started_is_written_down_and_the_others_go_on(tiny):
    house = House(Results())
    async with AsyncExitStack() as stack:
        parties = Party("ours", tiny()), Party("theirs", tiny(dies_at=1))
        started = await house.start(stack, *parties)
        assert list(started) == ["ours"]
        assert house.results.missed["theirs"].why == "I have had enough."
        assert house.versions["ours"]["pytest"]


async def test_who_fails_in_the_middle_has_no_row_and_the_others_have():
    async def fails():
        raise Unavailable("refused")

    house = House(Results())
    third = Row(key="x/z", what="", ours="ours", theirs="third")
    parties = {"ours": turns(*[1] * 4), "third": fails, "theirs": turns(*[2] * 4)}
    await house.compare("x", parties, [ROW, third], rounds=3)
    assert list(house.results.rows) == ["x/y"]
    assert house.results.missed["third"].why == "refused"


async def test_rounds_that_were_finished_are_kept_when_a_run_is_broken_off(tmp_path):
    stands_still = asyncio.Event()
    values = iter([1.0, 1.0, 1.0])

    async def ours():
        value = next(values, None)
        if value is None:
            stands_still.set()
            await asyncio.sleep(3600)
        return Turn(value)

    house = House(Results(tmp_path / "last.json"))
    parties = {"ours": ours, "theirs": turns(*[3.0] * 5)}
    task = asyncio.create_task(house.compare("x", parties, [ROW], rounds=4))
    await stands_still.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    kept = Results.read(tmp_path / "last.json").rows["x/y"]
    assert (kept.ratio, kept.rounds) == (3.0, 2)


# --- environments ---------------------------------------------------------------------------------


@pytest.fixture
def peers(tmp_path):
    path = tmp_path / "peers.toml"
    path.write_text('[some]\nrequires = ["some==1.0"]\n', encoding="utf-8")
    return path


def test_an_environment_with_the_right_stamp_is_used_as_it_is(tmp_path, peers):
    home = tmp_path / ".bench" / "some"
    python = home / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    (home / environments.STAMP).write_text(stamp(["some==1.0"]), encoding="utf-8")
    assert python_of("some", folder=tmp_path / ".bench", peers=peers) == python


def test_the_stamp_depends_on_the_versions():
    assert stamp(["some==1.0"]) != stamp(["some==1.1"])


def test_a_peer_that_is_not_listed_cannot_be_had(peers):
    with pytest.raises(Unavailable, match=r"other is not in peers\.toml"):
        wanted("other", peers)


def test_every_listed_peer_has_its_versions_pinned():
    here = ("--editable", ".")  # this checkout, for the peer that is our own adapter
    listed = [line for peer in _peers() for line in wanted(peer) if line not in here]
    assert listed
    assert all("==" in line for line in listed)


def _peers():
    text = environments.PEERS.read_text(encoding="utf-8")
    return [line.strip("[]") for line in text.splitlines() if line.startswith("[")]


def test_what_cannot_be_installed_is_told_and_leaves_no_stamp(tmp_path, peers, monkeypatch):
    fails = "import sys; sys.exit('Trying\\nERROR: No matching distribution')"
    monkeypatch.setattr(environments, "_commands", lambda *_: [[sys.executable, "-c", fails]])
    with pytest.raises(Unavailable, match=r"^ERROR: No matching distribution$"):
        python_of("some", folder=tmp_path / ".bench", peers=peers)
    assert not (tmp_path / ".bench" / "some").exists()
    assert (tmp_path / ".bench" / ".gitignore").read_text(encoding="utf-8") == "*\n"


def test_two_runs_at_once_are_refused(tmp_path):
    with environments.alone(tmp_path):
        code = (
            "from pathlib import Path; from benchmarks._house.environments import alone\n"
            f"with alone(Path({str(tmp_path)!r})): print('both')"
        )
        said = _python(code)
    assert "Another run" in said
    assert "both" not in said


def _python(code):
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=environments.ROOT, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


# --- the command line -----------------------------------------------------------------------------


@pytest.fixture
def command(tmp_path, monkeypatch):
    """The command line with files of its own, and one benchmark whose ratio is `ratio`."""
    for name in ("LAST", "KEPT", "CHART", "PAGE", "FRONT"):
        monkeypatch.setattr(house_command, name, tmp_path / getattr(house_command, name).name)
    for page in ("performance.md", "README.md"):
        (tmp_path / page).write_text(BEGIN + END, encoding="utf-8")

    def run(*words, ratio=4.0):
        async def bench(house):
            parties = {"ours": turns(*[1.0] * 9), "theirs": turns(*[ratio] * 9)}
            await house.compare("x", parties, [ROW], rounds=8)

        return main({"x": bench}, list(words))

    return run


def test_a_kept_run_leaves_figures_chart_and_page(command, tmp_path, capsys):
    assert command("--keep") == 0
    assert "4x as fast" in capsys.readouterr().out
    assert Results.read(tmp_path / "latest.json").rows["x/y"].ratio == 4.0
    assert (tmp_path / "benchmarks.svg").read_text(encoding="utf-8").startswith("<svg")
    assert "4x as fast" in (tmp_path / "performance.md").read_text(encoding="utf-8")


def test_a_check_fails_when_a_ratio_got_worse_and_says_which(command, capsys):
    command("--keep")
    assert command("--check") == 0
    assert command("--check", ratio=2.0) == 1
    assert "Worse: x/y" in capsys.readouterr().err


def test_a_benchmark_that_fails_costs_no_other(command, tmp_path, capsys):
    async def broken(_):
        raise ValueError("what now")

    async def bench(house):
        await house.compare("x", {"ours": turns(1, 1), "theirs": turns(2, 2)}, [ROW], rounds=1)

    assert main({"broken": broken, "x": bench}, []) == 0
    said = capsys.readouterr().out
    assert "the rest of broken: ValueError: what now" in said
    assert "2x as fast" in said


def test_json_is_one_object_on_standard_output(command, capsys):
    command("--json")
    assert json.loads(capsys.readouterr().out)["rows"][0]["key"] == "x/y"
