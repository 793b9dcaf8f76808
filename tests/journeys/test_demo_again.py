"""The demo is stopped in the middle, or killed, and started again: it goes on where it was."""

import json
import os
import re
import signal
from pathlib import Path

import pytest

from tests.journeys.demo_runs import (
    NOTICES,
    STATUSES,
    finished,
    mails,
    notices,
    running,
    statuses,
)

pytestmark = pytest.mark.slow


def started(home: Path) -> list[int]:
    """The processes that the demo has started, by what it wrote down itself."""
    file = home / "processes.json"
    return [int(pid) for pid in json.loads(file.read_text())] if file.exists() else []


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def came_to_its_end(home: Path) -> None:
    """As if nothing had happened in between."""
    now = statuses(home)
    assert {case: now[case] for case in STATUSES} == STATUSES
    assert {(one["case_id"], one["template"]) for one in notices(home)} == NOTICES
    assert len(mails(home)) == len(NOTICES)


def test_one_that_was_stopped_goes_on_and_says_when_it_is_done(tmp_path):
    home = tmp_path / "home"
    with running(home) as demo:
        demo.until("mended: reason")  # a change is made, and the case's other steps are not
        begun = started(home)
        assert len(begun) == 2  # the mail server and the gateway
        second = finished(home, "--auto")
        assert second.code == 2
        (first,) = re.findall(r"\(process (\d+)\)", second.story)  # one at a time
        assert alive(int(first))
        assert demo.end(signal.SIGINT) == 130
    assert not any(map(alive, [int(first), *begun]))

    done = finished(home, "--auto")
    assert done.code == 0, done.story
    assert "mended: reason" not in done.story  # what was done is not done again
    came_to_its_end(home)

    again = finished(home, "--auto")
    assert again.code == 0, again.story
    assert "All of this home's work is done" in again.story
    came_to_its_end(home)

    with running(home, "--fresh") as demo:
        demo.until("waits for a person")
        assert mails(home) == []


def test_one_that_was_killed_leaves_programs_running_and_the_next_ends_them(tmp_path):
    home = tmp_path / "home"
    # After a change, and after a sending whose answer nobody got.
    for moment in ("mended: reason", "the answer is lost"):
        with running(home, "--auto") as demo:
            demo.until(moment)
            begun = started(home)
            demo.end(signal.SIGKILL)
        assert all(map(alive, begun))  # nobody was there to end them

    done = finished(home, "--auto")
    assert done.code == 0, done.story
    assert "Ended 2 programs that an earlier demo had left running." in done.story
    assert not any(map(alive, begun))
    came_to_its_end(home)
