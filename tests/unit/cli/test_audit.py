"""`counterseal audit`: the record of a real store, as a list, a story, a file, and a verdict."""

import asyncio
import csv
import io
import json
import os
import re
import shutil
import sqlite3
import stat
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from counterseal import Grant, Proposal, Runtime
from counterseal.testing import fake_tool, someone

CONFIG = '[keys]\npath = "keys"\n'
CASE = '{"case_id": "case_1001"}'


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A project with two calls on record: one that succeeded, and one that was refused."""
    from counterseal.cli.app import app

    folder, runner, calls = tmp_path_factory.mktemp("project"), CliRunner(), []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        runner.invoke(app, ["init"])
        file = folder / "counterseal.toml"
        file.write_text(f"{file.read_text(encoding='utf-8')}\n{CONFIG}", encoding="utf-8")
        (folder / "keys").mkdir()
        for arguments in (CASE, '{"case_id": 7}'):
            call = ["call", "get_case_summary", arguments, "--as", "intake-agent", "--json"]
            told = json.loads(runner.invoke(app, call).stdout)
            calls.append(told["tool_identity"]["call_id"])
    return folder, calls


@pytest.fixture
def project(made, folder):
    """A copy of it, and the ids of its calls."""
    there, calls = made
    shutil.copytree(there, folder, dirs_exist_ok=True)
    return calls


def lines(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


# list --------------------------------------------------------------------------------------------


def test_list_shows_the_newest_first_under_their_calls(run, project):
    done, refused = project
    result = run("audit", "list")
    assert result.exit_code == 0
    shown = result.stdout.splitlines()
    assert shown[0].split() == [refused, "get_case_summary", "intake-agent"]
    assert [line.split()[2] for line in shown[1:4]] == [
        "path.repair",
        "tool.denied",
        "gate.schema.refused",
    ]
    assert shown[3].split()[3:] == ["deny", "TYPE_MISMATCH"]
    assert shown[4].split()[0] == done
    assert shown[5].split()[2:] == ["tool.succeeded", "SUCCESS"]
    assert max(map(len, shown)) <= 80


def test_dates_and_types_are_whole_beside_long_codes(run, folder):
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    tool = fake_tool("read_case", {"wrong": "shape"}, output_schema=schema).tool

    async def call():
        async with Runtime.open("sqlite:///counterseal.db") as runtime:
            runtime.register(tool, grants=[Grant(agent="intake-agent", tool="read_case")])
            caller = someone(agent="intake-agent")
            return await runtime.submit(Proposal(tool="read_case", arguments={}), caller)

    assert asyncio.run(call()).code == "OBSERVATION_NORMALIZATION_FAIL"
    listing = ("audit", "list", "--store", "sqlite:///counterseal.db")
    types = [event["type"] for event in lines(run(*listing, "--json"))]
    dated = re.findall(
        r"^  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d  (\S+)", run(*listing).stdout, re.MULTILINE
    )
    assert dated == types


def test_list_as_json_is_one_record_a_line(run, project):
    records = lines(run("audit", "list", "--json"))
    assert [record["type"] for record in records] == [
        "path.repair",
        "tool.denied",
        "gate.schema.refused",
        "tool.succeeded",
    ]
    assert {record["tenant"] for record in records} == {"acme"}


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (["--limit", "2"], 2),
        (["--tool", "get_case_summary"], 4),
        (["--tool", "other"], 0),
        (["--type", "tool.denied"], 1),
        (["--type", "tool.denied", "--type", "tool.succeeded"], 2),
        (["--since", "1h"], 4),
        (["--until", "1h"], 0),
        (["--since", "2020-01-01", "--until", "2020-01-02T00:00"], 0),
        (["--since", "2020-01-01T00:00+02:00"], 4),
        (["--run", "run_nobody"], 0),
        (["--tenant", "zeta"], 0),
    ],
)
def test_filters_narrow_down(run, project, options, count):
    assert len(lines(run("audit", "list", "--json", *options))) == count
    exported = run("audit", "export", *[one for one in options if one not in ("--limit", "2")])
    assert len(lines(exported)) == (4 if "--limit" in options else count)


def test_filter_by_call_and_by_run(run, project):
    done, refused = project
    (record,) = lines(run("audit", "list", "--json", "--call", done))
    assert record["call_id"] == done
    of_run = lines(run("audit", "list", "--json", "--run", record["run_id"]))
    assert {record["call_id"] for record in of_run} == {done, refused}


def test_list_goes_on_behind_a_page(run, project, monkeypatch):
    monkeypatch.setattr("counterseal.cli.audit.PAGE", 1)
    assert len(lines(run("audit", "list", "--json", "--limit", "3"))) == 3
    assert len(lines(run("audit", "export"))) == 4


def test_list_of_nothing_says_so(run, project):
    result = run("audit", "list", "--tool", "other")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "No matching events.\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--since", "yesterday"], "--since must be a time, got 'yesterday'."),
        (["--until", "12:00"], "or an age such as 30m, 2h, 7d"),
        (["--type", "tool.deny"], "Did you mean tool.denied"),
        (["--limit", "0"], "Invalid value for '--limit'"),
    ],
)
def test_wrong_filters_are_explained(run, project, options, message):
    result = run("audit", "list", *options)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_moment_is_utc_unless_it_says_otherwise():
    from counterseal.cli.options import moment

    noon = datetime(2026, 7, 31, 12, tzinfo=UTC).timestamp()
    assert moment("--since", "2026-07-31T12:00", 0.0) == noon
    assert moment("--since", "2026-07-31T14:00+02:00", 0.0) == noon
    assert moment("--since", "90m", noon) == noon - timedelta(minutes=90).total_seconds()
    assert moment("--since", "1.5d", noon) == noon - 129_600


# show --------------------------------------------------------------------------------------------


def test_show_tells_a_call_in_its_order(run, project):
    _, refused = project
    text = run("audit", "show", refused).stdout
    shown = text.splitlines()
    assert shown[0] == "get_case_summary 1.0.0  as intake-agent (tenant acme, user u_1)"
    assert shown[1].startswith(f"{refused} in run run_")
    told = [text.index(kind) for kind in ("gate.schema.refused", "tool.denied", "path.repair")]
    assert told == sorted(told)
    assert "TYPE_MISMATCH" in text
    assert "/case_id" in text
    assert max(map(len, shown)) <= 80
    told = json.loads(run("audit", "show", refused, "--json").stdout)
    assert [event["type"] for event in told["events"]] == [
        "gate.schema.refused",
        "tool.denied",
        "path.repair",
    ]


def test_show_tells_what_was_proposed_and_records_who_looked(run, project):
    _, refused = project
    assert "arguments" not in json.loads(run("audit", "show", refused, "--json").stdout)
    shown = run("audit", "show", refused, "--arguments", "--by", "vic")
    assert shown.exit_code == 0, shown.stderr
    assert shown.stdout.endswith('\nArguments\n{\n  "case_id": 7\n}\n')
    told = json.loads(run("audit", "show", refused, "--arguments", "--by", "ann", "--json").stdout)
    assert told["arguments"]["arguments"] == {"case_id": 7}
    assert told["arguments"]["principal"]["agent"] == "intake-agent"
    looks = [event for event in told["events"] if event["type"] == "arguments.read"]
    assert [event["user"] for event in looks] == ["vic", "ann"]


def test_show_tells_who_approved_it(run, project, folder):
    file = folder / "counterseal.toml"
    file.write_text(f"{file.read_text()}\n[approvers.desk]\n")
    notice = '{"draft_id": "drf_0001", "recipient": "a@example.org"}'
    send = ("call", "send_approved_notice", notice, "--as", "notice-agent", "--json")
    held = json.loads(run(*send).stdout)
    asked = json.loads(run("approvals", "list", "--json").stdout)
    decided = run("approvals", "approve", asked[0]["approval_id"], "--as", "desk", "--yes")
    assert decided.exit_code == 0, decided.stderr
    sent = json.loads(run(*send).stdout)["tool_identity"]["call_id"]
    assert sent != held["tool_identity"]["call_id"]
    text = run("audit", "show", sent).stdout
    told = [text.index(kind) for kind in ("approval.required", "approval.granted", "tool.started")]
    assert told == sorted(told)
    assert "desk" in text
    assert "{'" not in text


def test_show_of_an_unknown_call_exits_2(run, project):
    result = run("audit", "show", "call_nobody")
    assert result.exit_code == 2
    assert "There is no call 'call_nobody' in the audit log." in result.stderr


# which store and whose ---------------------------------------------------------------------------


def test_several_tenants_have_to_be_named(run, project):
    run("call", "get_case_summary", CASE, "--as", "intake-agent", "--tenant", "zeta")
    result = run("audit", "list")
    assert result.exit_code == 2
    assert "Tenants: acme, zeta." in result.stderr
    assert len(lines(run("audit", "list", "--json", "--tenant", "acme"))) == 4
    exported = lines(run("audit", "export"))
    assert {record["tenant"] for record in exported} == {"acme", "zeta"}


def test_store_can_be_named_without_a_project(run, project, folder, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    url = f"sqlite:///{folder}/counterseal.db"
    assert len(lines(run("audit", "list", "--json", "--store", url))) == 4
    monkeypatch.setenv("COUNTERSEAL_STORE", url)
    assert len(lines(run("audit", "list", "--json"))) == 4


@pytest.mark.parametrize("command", ["list", "export", "verify"])
def test_project_without_a_store_is_told_the_setting(run, write, command):
    write("counterseal.toml", "")
    result = run("audit", command)
    assert result.exit_code == 2
    assert "No store is configured.\n" in result.stderr
    assert '[store] url = "sqlite:///counterseal.db"' in result.stderr


def test_looking_makes_no_store(run, folder):
    result = run("audit", "verify", "--store", "sqlite:///typo.db")
    assert result.exit_code == 2
    assert "There is no store at" in result.stderr
    assert list(folder.iterdir()) == []


def test_a_store_in_memory_has_nothing_to_look_at(run):
    result = run("audit", "list", "--store", "memory:")
    assert result.exit_code == 2
    assert "A store in memory belongs to one process" in result.stderr


# export ------------------------------------------------------------------------------------------


def test_export_is_oldest_first_and_the_same_in_a_file(run, project, folder):
    listed = lines(run("audit", "list", "--json"))
    exported = run("audit", "export")
    assert lines(exported) == listed[::-1]
    result = run("audit", "export", "--output", "record.jsonl")
    assert (folder / "record.jsonl").read_text() == exported.stdout
    assert result.stdout == ""
    assert "4 events written to record.jsonl." in result.stderr
    assert not list(folder.glob("*.part"))


@pytest.mark.skipif(os.name != "posix", reason="only there has a file such a mode")
def test_exported_file_is_for_its_owner_only(run, project, folder):
    before = os.umask(0)
    try:
        (folder / "record.csv").write_text("an older export")
        (folder / "record.csv.part").write_text("half of one")
        assert run("audit", "export", "--format", "csv", "--output", "record.csv").exit_code == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE((folder / "record.csv").stat().st_mode) == 0o600
    assert not (folder / "record.csv.part").exists()


def test_export_as_csv_has_the_same_fields(run, project):
    records = lines(run("audit", "export"))
    rows = list(csv.DictReader(io.StringIO(run("audit", "export", "--format", "csv").stdout)))
    assert [row["event_id"] for row in rows] == [record["event_id"] for record in records]
    for row, record in zip(rows, records, strict=True):
        assert json.loads(row.pop("body") or "{}") == record.pop("body")
        assert row == {name: value or "" for name, value in record.items()}


def test_export_refuses_two_formats_at_once(run, project):
    result = run("audit", "export", "--format", "csv", "--json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--json and --format csv contradict each other." in result.stderr


# seal and verify ---------------------------------------------------------------------------------


def test_a_long_verification_says_how_far_it_is_beside_its_json(run, project, slowly):
    result = run("audit", "verify", "--json")
    (tenant,) = json.loads(result.stdout)["tenants"]
    assert f"{tenant['events']} of {tenant['events']} events" in result.stderr


def test_verify_says_what_is_sealed_and_what_is_not(run, project):
    result = run("audit", "verify")
    assert result.exit_code == 0
    assert result.stdout == "acme: 4 events in 2 segments: intact; 4 unsealed\n"
    assert "nothing is sealed" in result.stderr
    run("keys", "new", "audit")
    sealed = run("audit", "seal")
    assert sealed.stdout.startswith("acme: checkpoint 1 seals 2 segments, ")
    run("call", "get_case_summary", CASE, "--as", "intake-agent", "--run", "run_2")
    result = run("audit", "verify")
    told = "acme: 5 events in 3 segments: intact; 4 sealed by 1 checkpoint, 1 unsealed\n"
    assert (result.exit_code, result.stdout, result.stderr) == (0, told, "")


def test_seal_of_nothing_new_says_so(run, project):
    run("keys", "new", "audit")
    run("audit", "seal")
    result = run("audit", "seal")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "acme: no events since the last checkpoint.\n"
    (receipt,) = lines(run("audit", "seal", "--json"))
    assert (receipt["tenant"], receipt["number"]) == ("acme", 1), "whoever made it, there is one"


def test_seal_without_a_key_names_the_command(run, project):
    result = run("audit", "seal")
    assert result.exit_code == 2
    assert "Create one: `counterseal keys new audit`." in result.stderr


def test_change_is_found_and_exits_1(run, project, folder):
    run("keys", "new", "audit")
    run("audit", "seal")
    with closing(sqlite3.connect(folder / "counterseal.db")) as db, db:
        db.execute("UPDATE events SET decision = 'allow' WHERE type = 'tool.denied'")
    db.close()
    result = run("audit", "verify")
    assert result.exit_code == 1
    first, second = result.stdout.splitlines()
    assert first == (
        "acme: 4 events in 2 segments: 1 finding; 4 sealed by 1 checkpoint, 0 unsealed"
    )
    event = next(one for one in lines(run("audit", "export")) if one["type"] == "tool.denied")
    assert second.startswith(f"  changed: {event['event_id']} (segment ")
    assert second.endswith(", place 2): does not say what was recorded")
    told = json.loads(run("audit", "verify", "--json").stdout)
    assert told["ok"] is False
    (finding,) = told["tenants"][0]["findings"]
    assert (finding["kind"], finding["event_id"]) == ("changed", event["event_id"])


def test_receipts_prove_that_a_checkpoint_was_made(run, project, folder):
    run("keys", "new", "audit")
    (receipt,) = lines(run("audit", "seal", "--json"))
    (folder / "receipts.jsonl").write_text(json.dumps(receipt) + "\n")
    assert run("audit", "verify", "--receipts", "receipts.jsonl").exit_code == 0
    with closing(sqlite3.connect(folder / "counterseal.db")) as db, db:
        db.execute("DELETE FROM checkpoints")
        db.execute("DELETE FROM events")
    db.close()
    result = run("audit", "verify", "--receipts", "receipts.jsonl")
    assert result.exit_code == 1
    assert "checkpoint 1 is missing, of which there is a receipt" in result.stdout


@pytest.mark.parametrize("content", ["nonsense\n", '{"tenant": "acme"}\n', "[]\n"])
def test_receipts_of_another_form_are_refused(run, project, write, content):
    write("receipts.jsonl", content)
    result = run("audit", "verify", "--receipts", "receipts.jsonl")
    assert result.exit_code == 2
    assert "receipts.jsonl:1: not a receipt" in result.stderr


def test_auditor_with_the_public_key_can_check_and_not_seal(run, project, folder):
    run("keys", "new", "audit")
    run("audit", "seal")
    (folder / "auditor").mkdir()
    (folder / "auditor" / "audit-1.pem").write_text(run("keys", "export", "audit").stdout)
    assert run("audit", "verify", "--keys", "auditor").exit_code == 0
    assert run("audit", "seal", "--keys", "auditor").exit_code == 2
    (folder / "stranger").mkdir()
    result = run("audit", "verify", "--keys", "stranger")
    assert result.exit_code == 1
    assert "  unknown_key: checkpoint 1 was signed with the key" in result.stdout


def test_nothing_on_record_is_in_order(run, write):
    write("counterseal.toml", '[store]\nurl = "sqlite:///counterseal.db"\n' + CONFIG)
    run("keys", "new", "audit")
    import asyncio

    from counterseal.storage import open_store

    async def made():
        store = open_store("sqlite:///counterseal.db")
        await store.ready()
        await store.close()

    asyncio.run(made())
    result = run("audit", "verify")
    assert (result.exit_code, result.stdout) == (0, "")
    assert run("audit", "list").exit_code == 1


def test_help_fits_into_80_columns(run):
    for command in ("list", "show", "export", "seal", "verify"):
        assert max(map(len, run("audit", command, "--help").stdout.splitlines())) <= 80


# the callers' own ids ----------------------------------------------------------------------------


@pytest.fixture
def two_calls(tmp_path):
    """A store with calls of two runs, which both say call_0: its URL, and the calls' own ids."""
    url = f"sqlite:///{tmp_path}/calls.db"

    async def make():
        made = []
        async with Runtime.open(url) as runtime:
            save = fake_tool("save", effect="draft").tool
            runtime.register(save, grants=[Grant(agent="agent", tool="save")])
            for run in ("run_1", "run_2"):
                own = {"call_id": "call_0", "run_id": run, "session_id": f"session_of_{run}"}
                seen = await runtime.submit(Proposal(tool="save", arguments={}, **own), someone())
                made.append(seen.call_id)
        return made

    return url, asyncio.run(make())


def test_an_ambiguous_id_is_refused_with_the_choices_by_show_list_export_and_forget(run, two_calls):
    url, calls = two_calls
    for command in (
        ("show", "call_0"),
        ("list", "--call", "call_0"),
        ("export", "--call", "call_0"),
        ("forget", "call_0", "--reason", "x", "--by", "ann"),
    ):
        refused = run("audit", *command, "--store", url)
        assert refused.exit_code == 2, command
        assert "2 calls have the id 'call_0'" in refused.stderr
        for call, place in zip(calls, ("run_1", "run_2"), strict=True):
            assert f"{call} (save in run {place}" in refused.stderr
    shown = json.loads(run("audit", "show", calls[1], "--store", url, "--json").stdout)
    assert {event["run_id"] for event in shown["events"]} == {"run_2"}
    assert {event["caller_call_id"] for event in shown["events"]} == {"call_0"}


def test_calls_are_listed_by_session_version_and_the_callers_id(run, two_calls):
    url, (first, second) = two_calls

    def found(*options):
        listed = lines(run("audit", "calls", "--store", url, "--json", *options))
        return [row["call_id"] for row in listed]

    assert found("--session", "session_of_run_1") == [first]
    assert found("--caller-call", "call_0") == [second, first]
    assert found("--tool", "save", "--version", "1.0.0") == [second, first]
    assert found("--version", "2.0.0") == []
    assert found("--workflow", "wf") == []
    text = run("audit", "calls", "--store", url, "--session", "session_of_run_2").stdout
    assert second in text
    assert first not in text
