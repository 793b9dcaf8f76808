"""Progress of long work: a bar for a person at a terminal, lines where there is none."""

import json
import os
import pty
import select
import subprocess
import sys
import textwrap

import pytest

from counterseal.cli.render import ProgressBar


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_short_work_shows_nothing(clock, capsys):
    with ProgressBar("event", clock=clock) as progress:
        for count in range(900):
            clock.now = count / 1000
            progress.show(count, 900)
    assert capsys.readouterr() == ("", "")


def test_without_a_terminal_there_is_a_line_now_and_then_with_the_rate(clock, capsys):
    with ProgressBar("event", clock=clock) as progress:
        for count in range(0, 50_000, 100):
            clock.now = count / 2000
            progress.show(count, 50_000)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "20,000 of 50,000 events, 2,000 a second",
        "40,000 of 50,000 events, 2,000 a second",
    ]


def test_what_was_done_by_an_earlier_run_does_not_count_for_the_rate(clock, capsys):
    progress = ProgressBar("round", clock=clock)
    progress.show(1_900, 2_000)
    clock.now = 60
    progress.show(1_902, 2_000, "no violations")
    err = capsys.readouterr().err
    assert err == "1,902 of 2,000 rounds, 2.0 a minute, no violations\n"


# --- at a terminal --------------------------------------------------------------------------------

WORK = """
    import sys
    from counterseal.cli.render import ProgressBar, print_json

    class Clock:
        now = 0.0
        def __call__(self):
            return self.now

    clock = Clock()
    with ProgressBar("event", clock=clock) as progress:
        for count in range(0, 10_001, 500):
            clock.now = count / 1000
            progress.show(count, TOTAL, "a tool with a \\x1b[31m long name " * 4)
            if count == 5_000:
                progress.print("halfway")
        assert progress._bar is not None
        progress._bar.refresh()
    print_json({"done": True})
"""


def at_a_terminal(code, columns=80):
    """Run Python code with stderr at a terminal. Return what it printed to stdout and to it."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "COLUMNS": str(columns), "LINES": "24", "TERM": "xterm-256color"}
    env.pop("NO_COLOR", None)
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=env) as process:
        os.close(theirs)
        shown = b""
        while select.select([ours], [], [], 60)[0]:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            shown += piece
        out = process.stdout.read()
    os.close(ours)
    assert process.returncode == 0, shown.decode()
    return out.decode(), shown.decode()


@pytest.mark.slow
@pytest.mark.parametrize("total", ["10_000", "None"])
def test_at_a_terminal_a_bar_shows_count_and_rate_and_goes_away(total):
    out, shown = at_a_terminal(WORK.replace("TOTAL", total))
    assert json.loads(out) == {"done": True}
    of = " of 10,000" if total != "None" else ""
    assert f"10,000{of} events, 1,000 a second" in shown
    assert "\u2501" in shown  # the bar
    assert "halfway\r\n" in shown
    assert "\x1b[31m long" not in shown  # other people's text can't command the terminal
    assert shown.endswith("\x1b[2K")  # the line is erased


@pytest.mark.slow
def test_the_bar_fits_into_80_columns():
    from rich.text import Text

    _, shown = at_a_terminal(WORK.replace("TOTAL", "10_000"))
    lines = shown.replace("\r", "\n").split("\n")
    assert max(Text.from_ansi(line).cell_len for line in lines) <= 80
