"""Sixty-four submissions of one key, from four processes at once: one of them is executed."""

import json
import subprocess
from collections import Counter
from contextlib import ExitStack, contextmanager

import pytest

from tests.postgres_server import borrowed_database
from tests.warm import warm

PROCESSES = 4


@contextmanager
def sqlite(folder):
    yield f"sqlite:///{folder}/store.db"


@contextmanager
def postgres(_folder):
    with borrowed_database() as url:
        yield url


def crowd(url, file, wait):
    """What all of them were told."""
    command = warm("-m", "tests.journeys.crowd_worker", url, file, str(wait))
    with ExitStack() as stack:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        workers = [
            stack.enter_context(subprocess.Popen(command, **pipes)) for _ in range(PROCESSES)
        ]
        for worker in workers:
            assert worker.stdout.readline() == "ready\n"
        for worker in workers:
            worker.stdin.write("go\n")
            worker.stdin.flush()
        return [one for worker in workers for one in json.loads(worker.communicate(timeout=120)[0])]


@pytest.mark.parametrize("back_end", [sqlite, postgres])
@pytest.mark.slow
def test_one_is_executed_and_the_others_are_told_that_it_is_under_way(back_end, tmp_path):
    file = tmp_path / "books.txt"
    with back_end(tmp_path) as url:
        told = Counter((code, hit) for code, hit, _ in crowd(url, file, wait=0))
    assert len(file.read_text().splitlines()) == 1
    assert told["SUCCESS", False] == 1
    assert told["IDEMPOTENCY_CONFLICT", False] + told["SUCCESS", True] == 63


@pytest.mark.parametrize("back_end", [sqlite, postgres])
@pytest.mark.slow
def test_who_waits_gets_the_one_answer(back_end, tmp_path):
    file = tmp_path / "books.txt"
    with back_end(tmp_path) as url:
        told = crowd(url, file, wait=60)
    assert len(file.read_text().splitlines()) == 1
    assert Counter(hit for _, hit, _ in told) == {False: 1, True: 63}
    assert {(code, data["charge"]) for code, _, data in told} == {("SUCCESS", "ch_1")}
