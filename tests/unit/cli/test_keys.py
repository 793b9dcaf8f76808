"""`counterseal keys`: made, listed and exported, in the folder that the project names."""

import json
import re

import pytest


@pytest.fixture
def project(write):
    write("counterseal.toml", '[keys]\npath = "keys"\n')


def test_new_key_is_named_and_lies_beside_the_configuration(run, project, folder):
    result = run("keys", "new", "audit")
    assert result.exit_code == 0
    (file,) = folder.glob("keys/audit-*.pem")
    assert result.stdout == f"{result.stdout[:16]}  {file}\n"
    assert re.fullmatch("[0-9a-f]{16}", result.stdout[:16])
    assert "Keep it out of" in result.stderr


def test_list_says_which_key_is_in_use(run, project):
    old = json.loads(run("keys", "new", "audit", "--json").stdout)
    new = json.loads(run("keys", "new", "audit", "--json").stdout)
    vault = json.loads(run("keys", "new", "vault", "--json").stdout)
    lines = run("keys", "list").stdout.splitlines()
    assert [line.split()[:1] + line.split()[3:4] for line in lines[1:]] == [
        [old["key_id"], "verifies"],
        [new["key_id"], "signs"],
        [vault["key_id"], "seals"],
    ]
    assert max(map(len, lines)) <= 80
    listed = json.loads(run("keys", "list", "--json").stdout)["keys"]
    assert [(key["key_id"], key["signs"]) for key in listed] == [
        (old["key_id"], False),
        (new["key_id"], True),
        (vault["key_id"], True),
    ]


def test_export_prints_the_public_half_only(run, project, folder):
    run("keys", "new", "audit")
    result = run("keys", "export", "audit")
    assert result.stdout.startswith("-----BEGIN PUBLIC KEY-----\n")
    assert "PRIVATE" not in result.stdout
    other = folder / "auditor"
    other.mkdir()
    (other / "audit-1.pem").write_text(result.stdout)
    (key,) = json.loads(run("keys", "list", "--json", "--keys", "auditor").stdout)["keys"]
    assert (key["private"], key["signs"], key["use"]) == (False, False, "verifies")


def test_export_takes_the_id_of_an_older_key(run, project):
    old = json.loads(run("keys", "new", "approval", "--json").stdout)
    run("keys", "new", "approval")
    shown = json.loads(run("keys", "export", "approval", "--key", old["key_id"], "--json").stdout)
    assert (shown["key_id"], shown["signs"]) == (old["key_id"], False)
    assert shown["pem"] != run("keys", "export", "approval").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["new", "signing"], "Allowed: audit, approval, vault, session."),
        (["export", "vault"], "has no public key"),
        (["export", "audit"], "the folder does not exist"),
        (["list"], "create it with `counterseal keys new audit`"),
    ],
)
def test_wrong_use_says_what_to_do(run, project, arguments, message):
    result = run("keys", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


def test_unknown_key_is_not_exported(run, project):
    run("keys", "new", "audit")
    result = run("keys", "export", "audit", "--key", "0000")
    assert result.exit_code == 2
    assert "There is no audit key '0000'." in result.stderr


def test_project_without_a_folder_of_keys_is_told_the_setting(run, write):
    write("counterseal.toml", "")
    result = run("keys", "new", "audit")
    assert result.exit_code == 2
    assert '[keys] path = "keys"' in result.stderr


def test_no_command_prints_a_secret(run, project, folder):
    printed = ""
    for purpose in ("audit", "approval", "vault"):
        printed += run("keys", "new", purpose, "--json").stdout
    printed += run("keys", "list", "--json").stdout + run("keys", "export", "audit").stdout
    secrets = [
        line
        for file in folder.glob("keys/*-*")
        for line in file.read_text().splitlines()
        if not line.startswith("-----")
    ]
    assert len(secrets) == 3
    assert not any(line in printed for line in secrets)
