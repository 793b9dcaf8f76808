"""`counterseal init`: the project that it writes works, and nothing is ever overwritten."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from counterseal.cli.init import targets_of
from tests.docs.runner import run_page
from tests.warm import programs

TARGETS = targets_of("cases")
FILES = [".gitignore", "README.md", "contracts/search_policy.yaml", "counterseal.toml", "tools.py"]
TOOLS = ["create_notice_draft", "get_case_summary", "search_policy", "send_approved_notice"]


def written(folder):
    skipped = "__pycache__"
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and skipped not in path.parts
    )


@pytest.mark.slow
def test_project_is_written_and_lints_clean_in_a_process_of_its_own(tmp_path):
    def counterseal(*arguments, cwd):
        command = [sys.executable, "-m", "counterseal", *arguments]
        return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)

    made = counterseal("init", "assistant", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert "counterseal lint" in made.stdout
    assert written(tmp_path / "assistant") == FILES
    linted = counterseal("lint", "--strict", cwd=tmp_path / "assistant")
    assert (linted.returncode, linted.stdout) == (0, "4 contracts, no problems\n")
    case = ["get_case_summary", '{"case_id": "case_1001"}', "--as", "intake-agent"]
    called = counterseal("call", *case, cwd=tmp_path / "assistant")
    assert called.returncode == 0, called.stderr
    notice = '{"draft_id": "drf_0001", "recipient": "a@example.org"}'
    asked = ["send_approved_notice", notice, "--as", "notice-agent", "--plan"]
    planned = counterseal("call", *asked, cwd=tmp_path / "assistant")
    assert planned.returncode == 3
    assert "would be held for approval by 1 person" in planned.stdout


@pytest.mark.slow
def test_readme_of_the_project_can_be_followed_to_its_end(run, folder):
    """The request that its own tool makes is approved and executed, in the folder as written."""
    assert run("init").exit_code == 0
    run_page(folder / "README.md", folder, programs=programs())


def test_every_tool_of_the_project_can_be_shown(run):
    run("init")
    assert sorted(row["name"] for row in json.loads(run("show", "--json").stdout)["tools"]) == TOOLS
    for tool in TOOLS:
        assert run("show", tool).exit_code == 0


def test_what_was_written_can_be_had_as_json(run, folder):
    result = json.loads(run("init", "a/b", "--json").stdout)
    assert sorted(result["created"]) == sorted(str(Path("a", "b", name)) for name in TARGETS)
    assert result["next"][0] == "cd a/b"
    assert written(folder / "a/b") == FILES


@pytest.mark.parametrize("name", list(TARGETS))
def test_existing_file_is_kept_and_nothing_is_written_beside_it(run, write, folder, name):
    write(name, "mine")
    result = run("init")
    assert result.exit_code == 2
    assert name in result.stderr
    assert written(folder) == [name]
    assert (folder / name).read_text() == "mine"


def test_link_that_leads_nowhere_counts_as_existing(run, folder):
    (folder / "tools.py").symlink_to("nowhere.py")
    result = run("init")
    assert result.exit_code == 2
    assert "tools.py already exists" in result.stderr
    assert not (folder / "nowhere.py").exists()


def test_folder_that_is_a_file_is_named(run, write):
    write("taken", "x")
    result = run("init", "taken")
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: Can't write taken")


def test_failure_half_way_leaves_nothing_behind(run, write, folder):
    write("new/contracts", "a file where a folder should be")
    result = run("init", "new")
    assert result.exit_code == 2
    assert "Nothing was written." in result.stderr
    assert written(folder) == ["new/contracts"]


async def test_tools_of_the_project_do_what_they_say(run, folder):
    from counterseal.config import discover

    run("init")
    tools = {item.name: item.tool for item in discover([folder / "tools.py"])}
    summary = await tools["get_case_summary"](case_id="case_1001")
    assert summary.status == "open"
    draft = await tools["create_notice_draft"](case_id="case_1001", text="Hello")
    sent = await tools["send_approved_notice"](
        draft_id=draft.draft_id, recipient="a@example.org", smtp_password="secret"
    )
    assert sent.status == "sent"
    assert "smtp_password" not in str(tools["send_approved_notice"].contract.affordance)
