"""`counterseal users`: who can sign in, without any password or hash being shown."""

import json

import pytest
from typer.testing import CliRunner

from counterseal.registry.identities import read_person_key

PASSWORD = "correct horse battery"
WHY = ("--reason", "the desk", "--by", "root")


@pytest.fixture
def users(folder, write):
    from counterseal.cli.app import app

    write("counterseal.toml", '[store]\nurl = "sqlite:///calls.db"\n')

    def users(*arguments, stdin=""):
        result = CliRunner().invoke(app, ["users", *arguments], input=stdin)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return users


@pytest.fixture
def ada(users):
    result = add(users, "ada", "--tenant", "acme", "--role", "approver")
    assert result.exit_code == 0
    return result


def add(users, *arguments, password=PASSWORD):
    return users("add", *arguments, "--password-stdin", *WHY, stdin=f"{password}\n")


def listed(users, *arguments):
    return json.loads(users("list", "--json", *arguments).stdout)["users"]


def test_user_is_added_and_listed_with_roles(users, ada):
    assert ada.stdout == "ada can sign in.\n"
    add(users, "bob", "--tenant", "*", "--role", "admin", "--role", "compliance")
    (first, second) = listed(users)
    assert first == {
        "name": "ada",
        "tenants": {"acme": ["approver"]},
        "active": True,
        "keys": [],
        "by": "root",
        "at": first["at"],
        "reason": "the desk",
    }
    assert second["tenants"] == {"*": ["admin", "compliance"]}
    shown = users("list").stdout
    assert "acme: approver" in shown
    assert "the desk (root)" in shown
    assert [one["name"] for one in listed(users, "--tenant", "acme")] == ["ada", "bob"]
    assert [one["name"] for one in listed(users, "--tenant", "globex")] == ["bob"]


def test_neither_password_nor_hash_is_ever_shown(users, run, ada):
    users("set-password", "ada", "--password-stdin", *WHY, stdin="another password")
    key = users("key", "ada", *WHY).stdout.strip()
    outputs = [
        users("list").output,
        users("list", "--json").output,
        run("registry", "log").output,
        run("registry", "log", "--json").output,
    ]
    shown = "".join(outputs)
    assert "user ada: added" in shown
    assert not [
        secret
        for secret in (PASSWORD, "another password", "argon2", read_person_key(key).secret)
        if secret in shown
    ]


@pytest.mark.parametrize(
    ("arguments", "password", "said"),
    [
        (("ada", "--tenant", "acme", "--role", "admin"), "short", "at least 12 characters"),
        (("ada", "--tenant", "acme", "--role", "admin"), "x" * 5000, "at most 1,024 bytes"),
        (("a b", "--tenant", "acme", "--role", "admin"), PASSWORD, "name: must be 1 to"),
        (("counterseal", "--tenant", "acme", "--role", "admin"), PASSWORD, "reserved"),
        (("ada", "--tenant", "acme", "--role", " "), PASSWORD, "must not contain an empty string"),
        (("ada", "--tenant", "", "--role", "admin"), PASSWORD, "must not contain an empty string"),
        (("ada", "--tenant", "acme"), PASSWORD, "--role R"),
    ],
)
def test_user_who_makes_no_sense_is_refused(users, arguments, password, said):
    result = add(users, *arguments, password=password)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert listed(users) == []


def test_a_name_can_not_be_added_twice_whatever_its_case(users, ada):
    result = add(users, "ADA", "--tenant", "globex", "--role", "viewer")
    assert result.exit_code == 2
    assert "ada already exists" in result.stderr


def test_password_is_asked_for_only_on_a_terminal(users):
    arguments = ("add", "ada", "--tenant", "acme", "--role", "viewer")
    result = users(*arguments, *WHY, stdin=f"{PASSWORD}\n{PASSWORD}\n")
    assert result.exit_code == 2
    assert "--password-stdin" in result.stderr
    result = users(*arguments, "--password-stdin", stdin=PASSWORD)
    assert result.exit_code == 2
    assert "--reason" in result.stderr
    assert listed(users) == []


def test_password_is_asked_for_twice_at_a_terminal_and_not_shown(users, monkeypatch):
    monkeypatch.setattr("counterseal.cli.users._is_interactive", lambda: True)
    typed = f"{PASSWORD}\nanother password\n{PASSWORD}\n{PASSWORD}\n"
    arguments = ("add", "ada", "--tenant", "acme", "--role", "viewer")
    result = users(*arguments, *WHY, stdin=typed)
    assert result.exit_code == 0
    assert "do not match" in result.stderr
    assert PASSWORD not in result.output
    assert [one["name"] for one in listed(users)] == ["ada"]


def test_roles_that_do_not_let_their_user_look_cause_a_warning(users):
    result = add(users, "ada", "--tenant", "acme", "--role", "compliance")
    assert result.exit_code == 0
    assert "Add one of viewer, approver, operator, admin" in result.stderr


def test_roles_are_set_and_taken_in_one_tenant(users, ada):
    users("roles", "ada", "--tenant", "globex", "--role", "viewer", *WHY)
    assert listed(users)[0]["tenants"] == {"acme": ["approver"], "globex": ["viewer"]}
    result = users("roles", "ada", "--tenant", "acme", "--none", *WHY, "--json")
    assert json.loads(result.stdout)["tenants"] == {"globex": ["viewer"]}
    last = users("roles", "ada", "--tenant", "globex", "--none", *WHY)
    assert last.exit_code == 2
    assert "at least one tenant" in last.stderr
    for unclear in ((), ("--none", "--role", "viewer")):
        assert users("roles", "ada", "--tenant", "acme", *unclear, *WHY).exit_code == 2


def test_user_is_disabled_enabled_and_signed_out(users, ada):
    assert users("disable", "ada", *WHY).stdout == "ada is disabled.\n"
    assert listed(users)[0]["active"] is False
    assert "disabled" in users("list").stdout
    assert users("enable", "ada", *WHY).stdout == "ada is enabled.\n"
    assert listed(users)[0]["active"] is True
    assert users("sign-out", "ada", *WHY).stdout == "ada is signed out everywhere.\n"


def test_removed_user_is_listed_no_more(users, run, ada):
    assert users("remove", "Ada", *WHY).stdout == "ada is removed.\n"
    assert listed(users) == []
    assert "There are no users." in users("list").stderr
    assert "remove user ada" in run("registry", "log").stdout
    again = users("remove", "ada", *WHY, "--json")
    assert again.exit_code == 2
    assert "no user 'ada'" in again.stderr


def test_key_is_printed_alone_and_revoked_by_its_id(users, ada):
    result = users("key", "ada", "--expires", "30", *WHY)
    key = read_person_key(result.stdout.removesuffix("\n"))
    assert key is not None
    assert key.secret not in result.stderr
    assert f"revoke-key {key.key_id}" in result.stderr
    (held,) = listed(users)[0]["keys"]
    assert (held["key_id"], held["tenant"]) == (key.key_id, "acme")
    assert key.key_id in users("list").stdout
    assert users("revoke-key", key.key_id, *WHY).exit_code == 0
    assert listed(users)[0]["keys"] == []
    assert users("revoke-key", key.key_id, *WHY).exit_code == 2


def test_key_needs_a_tenant_where_there_are_several(users, ada):
    users("roles", "ada", "--tenant", "globex", "--role", "viewer", *WHY)
    assert users("key", "ada", *WHY).exit_code == 2
    made = json.loads(users("key", "ada", "--tenant", "globex", *WHY, "--json").stdout)
    assert made["tenant"] == "globex"
    assert read_person_key(made["key"]).key_id == made["key_id"]


def test_users_need_a_store_that_workers_share(users, write):
    write("counterseal.toml", "")
    result = add(users, "ada", "--tenant", "acme", "--role", "viewer")
    assert result.exit_code == 2
    assert "no store that workers share" in result.stderr
