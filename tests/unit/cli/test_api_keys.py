"""`counterseal keys issue`, `revoke`, `issued`: a key is printed once, and listed without it."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from counterseal.registry.identities import IssuedKey

HOLDER = ("--tenant", "acme", "--agent", "bot")
WHY = ("--reason", "the desk", "--by", "u_1")


@pytest.fixture
def keys(run, write):
    write("counterseal.toml", '[store]\nurl = "sqlite:///calls.db"\n')

    def keys(*arguments):
        return run("keys", *arguments)

    return keys


def issued(keys, *arguments):
    return json.loads(keys("issued", "--json", *arguments).stdout)["keys"]


def test_key_is_printed_alone_on_stdout(keys):
    result = keys("issue", *HOLDER, *WHY)
    assert result.exit_code == 0
    key = IssuedKey.read(result.stdout.removesuffix("\n"))
    assert key is not None
    assert "shown only this once" in result.stderr
    assert f"keys revoke {key.key_id}" in result.stderr
    assert key.secret not in result.stderr


def test_key_that_would_see_no_tools_says_why(run, write):
    write("tools.py", "raise SystemExit('the code of the project is not needed')")
    grant = '[[grants]]\nagent = "bot"\ntool = "find_order"\n'
    project = f'[tools]\npaths = ["tools.py"]\n[store]\nurl = "sqlite:///calls.db"\n{grant}'
    write("counterseal.toml", project)
    result = run("keys", "issue", *HOLDER, *WHY)
    assert result.exit_code == 0
    assert "The key has no scopes, so it does not see tools that need some." in result.stderr
    result = run("keys", "issue", *HOLDER, "--scope", "order:read", *WHY)
    assert "does not see" not in result.stderr
    result = run("keys", "issue", "--tenant", "acme", "--agent", "bott", *WHY)
    assert "The agent bott has no grants yet, so it sees no tools." in result.stderr


def test_key_is_issued_for_whom_it_was_asked(keys):
    more = ("--user", "u_7", "--role", "desk", "--scope", "b", "--scope", "a", "--expires", "30")
    made = json.loads(keys("issue", *HOLDER, *more, *WHY, "--json").stdout)
    secret = made.pop("key")
    assert IssuedKey.read(secret).key_id == made["key_id"]
    (listed,) = issued(keys)
    assert listed == {**made, "expired": False}
    assert {name: listed[name] for name in ("tenant", "agent", "user", "roles", "scopes")} == {
        "tenant": "acme",
        "agent": "bot",
        "user": "u_7",
        "roles": ["desk"],
        "scopes": ["a", "b"],
    }
    assert (listed["by"], listed["reason"]) == ("u_1", "the desk")
    ends = datetime.fromisoformat(listed["expires_at"])
    days = timedelta(days=30)
    assert abs(ends - datetime.now(UTC) - days) < timedelta(hours=1)


def test_day_of_expiry_begins_at_midnight_utc(keys):
    made = keys("issue", *HOLDER, *WHY, "--expires", "2999-01-31", "--json")
    assert json.loads(made.stdout)["expires_at"] == "2999-01-31T00:00:00+00:00"


def test_listing_never_holds_a_secret(keys):
    secrets = [IssuedKey.read(keys("issue", *HOLDER, *WHY).stdout.strip()).secret for _ in range(2)]
    keys("issue", "--tenant", "globex", "--agent", "bot", *WHY)
    shown = keys("issued").stdout
    assert "the desk (u_1)" in shown
    assert len(issued(keys)) == 3
    assert len(issued(keys, "--tenant", "acme")) == 2
    assert issued(keys, "--tenant", "nobody") == []
    assert not [one for one in secrets if one in shown + keys("issued", "--json").stdout]


def test_whole_id_stands_on_one_line_however_much_there_is_to_say(keys):
    long = "a-very-long-name-of-somebody-or-something"
    holder = ("--tenant", long, "--agent", long, "--user", long, "--scope", long, "--role", long)
    text = keys("issue", *holder, "--reason", f"{long} " * 3, "--expires", "9").stdout.strip()
    assert IssuedKey.read(text).key_id in keys("issued").stdout


def test_revoked_key_is_listed_no_more(keys):
    key = IssuedKey.read(keys("issue", *HOLDER, *WHY).stdout.strip())
    result = keys("revoke", key.key_id, "--reason", "it leaked")
    assert (result.exit_code, result.stdout) == (0, f"{key.key_id} is revoked.\n")
    assert issued(keys) == []
    assert "No API key is in force." in keys("issued").stderr
    again = keys("revoke", key.key_id, "--reason", "again")
    assert again.exit_code == 2
    assert "not in force" in again.stderr


def test_leaked_key_can_be_revoked_by_its_own_text_which_is_not_repeated(keys):
    text = keys("issue", *HOLDER, *WHY).stdout.strip()
    result = keys("revoke", text, "--reason", "it leaked", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["key_id"] == IssuedKey.read(text).key_id
    assert IssuedKey.read(text).secret not in result.output


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("--tenant", "*"), "stands for all"),
        (("--agent", "counterseal.compensation"), "reserved"),
        (("--agent", " "), "agent must not be empty"),
        (("--expires", "2001-01-01"), "in the past"),
        (("--expires", "soon"), "must be a number of days"),
        (("--expires", "0"), "must be a number of days"),
        (("--expires", "9999999999"), "must be a number of days"),
    ],
)
def test_what_makes_no_sense_is_refused_and_no_key_is_made(keys, wrong, said):
    result = keys("issue", *HOLDER, *WHY, *wrong)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert issued(keys) == []


def test_keys_need_a_store_that_workers_share(run, write):
    write("counterseal.toml", "")
    result = run("keys", "issue", *HOLDER, *WHY)
    assert result.exit_code == 2
    assert "no store that workers share" in result.stderr
