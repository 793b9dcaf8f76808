"""The runner of the docs examples fails where it should, and says where."""

import os
import re
import sys
from pathlib import Path

import pytest

from .runner import ExampleError, read_blocks, run_page


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()

    def run(text, stand_ins=None):
        page = tmp_path / "page.md"
        page.write_text(text, encoding="utf-8")
        run_page(page, folder, stand_ins)
        return folder

    return run


def fails_at(line, problem):
    return pytest.raises(ExampleError, match=rf"page\.md:{line}: (?s:.)*{re.escape(problem)}")


def test_raising_python_block_fails_at_its_line(run):
    with fails_at(5, "ZeroDivisionError"):
        run("# Page\n\n```python\nx = 0\n1 / x\n```\n")


def test_error_inside_a_library_points_at_the_page(run):
    with fails_at(3, "JSONDecodeError"):
        run("```python\nimport json\njson.loads('{')\n```\n")


def test_python_block_that_does_not_parse_fails_at_its_line(run):
    with fails_at(3, "SyntaxError"):
        run("```python\nx = 0\nx = = 1\n```\n")


def test_python_block_that_exits_fails(run):
    with fails_at(2, "SystemExit"):
        run("```python\nraise SystemExit(0)\n```\n")


def test_python_blocks_share_names_and_the_event_loop(run):
    run(
        "```python\nimport asyncio\n"
        "loop = asyncio.get_running_loop()\nawait asyncio.sleep(0)\n```\n"
        "Later:\n"
        "```python\nassert asyncio.get_running_loop() is loop\nawait asyncio.sleep(0)\n```\n"
    )


def test_forward_references_resolve_on_a_page(run):
    run(
        "```python\nfrom __future__ import annotations\nimport typing\n"
        "class Box:\n    inner: Box\n"
        "assert typing.get_type_hints(Box) == {'inner': Box}\n```\n"
    )


def test_wrong_expected_output_fails_at_the_command(run):
    with fails_at(4, "-two\n+2"):
        run("```console\n$ echo 1\n1\n$ echo 2\ntwo\n```\n")


def test_command_goes_on_after_a_backslash(run):
    run("```console\n$ echo 1 \\\n    2\n1 2\n$ echo 3\n3\n```\n")


def test_output_that_the_page_does_not_show_fails(run):
    with fails_at(2, "+1"):
        run("```console\n$ echo 1\n```\n")


def test_ellipsis_stands_for_any_number_of_lines(run):
    run("```console\n$ printf '1\\n2\\n3\\n4\\n'\n1\n...\n4\n...\n```\n")
    with fails_at(2, "printed something else"):
        run("```console\n$ printf '1\\n2\\n3\\n'\n...\n2\n```\n")


def test_one_character_stands_for_a_part_of_a_line(run):
    run("```console\n$ echo call_81f2 took 7 µs\ncall_… took … µs\n```\n")
    with fails_at(2, "printed something else"):
        run("```console\n$ printf 'call_1\\nc'\ncall_…c\n```\n")


def test_failing_command_fails_the_page_unless_its_message_is_shown(run):
    run("```console\n$ echo no; exit 3\nno\n```\n")
    with fails_at(2, "exited with 3"):
        run("```console\n$ echo no; exit 3\n...\n```\n")


def test_commands_run_beside_this_interpreter_without_colour(run, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    here = Path(sys.executable).parent
    run(
        f"```console\n$ echo $NO_COLOR $COLUMNS ${{FORCE_COLOR-none}}\n1 80 none\n"
        f"$ echo $PATH | cut -d: -f1\n{here}\n```\n"
    )


def test_titled_block_becomes_a_file_and_is_not_run(run):
    folder = run(
        '```python title="tools/broken.py"\nraise SystemExit\n```\n'
        '```yaml title="a.yaml"\nname: a\n```\n'
        "```console\n$ cat a.yaml\nname: a\n$ cd tools\n$ ls\nbroken.py\n```\n"
    )
    assert (folder / "tools" / "broken.py").read_text() == "raise SystemExit\n"


def test_working_directory_is_restored_after_a_page(run):
    before = Path.cwd()
    run("```console\n$ mkdir deeper\n$ cd deeper\n```\n")
    assert Path.cwd() == before


def test_missing_folder_fails_at_the_command(run):
    with fails_at(2, "nowhere"):
        run("```console\n$ cd nowhere\n```\n")


def test_no_run_block_is_left_alone_and_its_reason_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- no-run: needs a server -->\n```python no-run\n1 / 0\n```\n"
        "```console no-run\n$ false\n```\n"
    )
    run_page(page, tmp_path)
    assert [block.has_reason for block in read_blocks(page)] == [True, False]


def test_indented_block_is_read_without_its_indent(run):
    run("1. Step\n\n   ```python\n   if True:\n       x = 1\n   ```\n")


def test_block_inside_a_longer_fence_is_text(run):
    run("````text\n```python\n1 / 0\n```\n````\n")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("```python\nx = 1\n", "never closed"),
        ("```python norun\n1 / 0\n```\n", "cannot read the block's info"),
        ("```py\n1 / 0\n```\n", "call it python"),
        ("```bash\nfalse\n```\n", "call it console"),
    ],
)
def test_block_that_would_silently_not_run_is_refused(run, text, problem):
    with fails_at(1, problem):
        run(text)


def test_console_block_without_a_command_is_refused(run):
    with fails_at(2, "starts with a `$ ` line"):
        run("```console\nfalse\n```\n")


def test_command_in_the_background_is_waited_for_until_it_says_what_the_page_shows(run):
    folder = run(
        "```console\n$ sleep 0.2; touch up; echo ready; sleep 100 &\nready\n...\n$ ls\nup\n```\n"
    )
    assert (folder / "up").exists()


def test_command_in_the_background_that_ends_without_a_word_fails(run):
    with fails_at(2, "-ready"):
        run("```console\n$ echo no &\nready\n```\n")


def test_nothing_goes_on_after_its_page(run):
    folder = run("```console\n$ echo $$; exec sleep 100 &\n…\n$ cat .job-* > pid\n```\n")
    pid = int((folder / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_page_can_end_what_it_has_in_the_background(run):
    run(
        "```console\n$ trap 'touch ended; exit' TERM; echo up; while :; do sleep 0.1; done &\nup\n"
        "$ kill %1\n$ until test -e ended; do sleep 0.1; done\n```\n"
    )


def test_exported_variable_is_there_for_later_commands_and_blocks_of_the_page(run, monkeypatch):
    monkeypatch.delenv("SEEN", raising=False)
    run(
        '```console\n$ export SEEN="$(echo a b)"\n$ echo $SEEN\na b\n```\n'
        "```python\nimport os\nassert os.environ['SEEN'] == 'a b'\n```\n"
    )
    assert "SEEN" not in os.environ


def test_what_stands_in_is_used_in_files_commands_and_output(run):
    folder = run(
        '```text title="a.txt"\nport 8787\n```\n```console\n$ cat a.txt\nport 8787\n```\n',
        lambda text: {"8787": "9"},
    )
    assert (folder / "a.txt").read_text() == "port 9\n"


# --- servers in the foreground --------------------------------------------------------------------

PROJECT = """\
```toml title="counterseal.toml"
[agents.desk]
tenant = "acme"
```
"""


@pytest.mark.slow
def test_server_is_waited_for_and_stopped(run):
    shown = "...\nConsole  http://127.0.0.1:…\n...\n"
    folder = run(
        f"{PROJECT}```console\n$ counterseal serve --port 0 --anonymous-as desk\n{shown}"
        "$ echo afterwards\nafterwards\n```\n"
    )
    (output,) = folder.glob(".job-*")
    assert "stopped" in output.read_text()


@pytest.mark.slow
def test_server_that_does_not_start_fails_at_its_command(run):
    with fails_at(6, "There is no agent 'ghost'"):
        run(f"{PROJECT}```console\n$ counterseal serve --anonymous-as ghost\n...\n```\n")


@pytest.mark.slow
def test_server_that_prints_something_else_fails_at_its_command(run, monkeypatch):
    monkeypatch.setattr("tests.docs.session.HANGS_AFTER_SECONDS", 5)
    with fails_at(6, "it has not printed this so far"):
        run(
            f"{PROJECT}```console\n$ counterseal serve --port 0 --anonymous-as desk\n"
            "...\nConsole  https://elsewhere\n...\n```\n"
        )
