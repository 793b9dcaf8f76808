"""Who may approve, and who is told that somebody is asked, as `counterseal.toml` says it."""

import pytest

from counterseal.config import ConfigError, load_settings, open_runtime

HOOK = """\
[notifications]
webhook = "https://hooks.example/approvals"
secret = "hook"
console = "https://desk.example/approvals"
"""
GOOD = "a secret of some length"


@pytest.fixture
def settings(tmp_path):
    def settings(text):
        file = tmp_path / "counterseal.toml"
        file.write_text(f'[tools]\npaths = ["tools"]\n{text}')
        (tmp_path / "tools").mkdir(exist_ok=True)
        return load_settings(file)

    return settings


def test_an_approver_has_roles_and_the_tenants_that_are_named(settings):
    people = settings(
        '[approvers.ada]\nroles = ["cfo"]\ntenants = ["acme"]\n[approvers.ben]\n'
    ).approvers
    assert people["ada"].roles == ("cfo",)
    assert people["ada"].sees("acme")
    assert not people["ada"].sees("globex")
    assert people["ben"].roles == ()
    assert people["ben"].sees("globex"), "who names no tenants decides for all of them"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[approvers.ada]\nrole = "cfo"\n', "allowed in [approvers.ada]: roles, tenants"),
        ('[approvers.ada]\nroles = "cfo"\n', "approvers.ada.roles: "),
        ('[approvers.ada]\nroles = [" "]\n', "approvers.ada.roles.0: "),
        ("[approvers.ada]\ntenants = []\n", "approvers.ada.tenants: "),
        ('[approvers." "]\n', "approvers. "),
        ("[approvers.ada]\n[approvers.Ada]\n", "approvers: 'ada' and 'Ada' differ only in case"),
        ('[approvers.ada]\ntenants = ["a b"]\n', "approvers.ada.tenants.0: a tenant's name must"),
        (
            '[notifications]\nurl = "https://a.example"\n',
            "notifications]: webhook, secret, con",
        ),
        ('[notifications]\nwebhook = "https://a.example"\n', "notifications.secret: a webhook is"),
        ('[notifications]\nsecret = "hook"\n', "notifications.webhook: missing; without it no"),
        (
            HOOK.replace("https://hooks", "ftp://hooks"),
            "URL, got 'ftp:",
        ),
        (
            HOOK.replace("https://hooks.example", "https:"),
            "URL, got 'https:",
        ),
        (
            HOOK.replace("https://desk", "javascript:desk"),
            "URL, got 'java",
        ),
        ('[tenants.acme.budgets]\nask = "yes"\n', "tenants.acme.budgets.ask: "),
    ],
)
def test_what_is_wrong_is_named_with_its_key(settings, text, message):
    with pytest.raises(ConfigError) as caught:
        settings(text)
    assert message in str(caught.value)


async def test_the_runtime_tells_the_webhook_and_signs_with_the_secret(settings, monkeypatch):
    monkeypatch.setenv("COUNTERSEAL_SECRET_HOOK", GOOD)
    async with open_runtime(settings(HOOK)) as runtime:
        assert runtime.webhook.url == "https://hooks.example/approvals"
        assert runtime.webhook.secret == GOOD
        assert runtime.webhook.link("appr_1") == "https://desk.example/approvals/appr_1"
        assert GOOD not in repr(runtime.webhook)
    async with open_runtime(settings("")) as runtime:
        assert runtime.webhook is None


async def test_the_secret_comes_from_where_all_secrets_do(settings, tmp_path):
    async with open_runtime(settings(HOOK), secrets={"hook": GOOD}) as runtime:
        assert runtime.webhook.secret == GOOD
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "hook").write_text(f"{GOOD}\n")
    async with open_runtime(settings(f'{HOOK}[secrets]\npath = "secrets"\n')) as runtime:
        assert runtime.webhook.secret == GOOD


async def answers_later(_tenant, _name):
    return GOOD


@pytest.mark.parametrize(
    ("secrets", "message"),
    [
        (None, "notifications.secret: the secret hook is not available; set COUNTERSEAL_SECRET_"),
        ({}, "notifications.secret: the secret hook is not available; add it to secrets="),
        ({"hook": {"hook": GOOD}}, "notifications.secret: the secret hook is not available"),
        ({"hook": "short"}, "notifications.secret: expected at least 16 characters"),
        (answers_later, "notifications.secret: the secret hook is not available; the source must"),
    ],
)
def test_a_secret_that_can_not_be_had_names_the_setting_and_the_fix(settings, secrets, message):
    with pytest.raises(ConfigError) as caught:
        open_runtime(settings(HOOK), secrets=secrets)
    assert message in str(caught.value)
    assert "short" not in str(caught.value)


def test_a_secret_that_is_in_no_file_names_the_file(settings, tmp_path):
    (tmp_path / "secrets").mkdir()
    with pytest.raises(ConfigError, match=r"notifications\.secret: .* put it into .*secrets/hook"):
        open_runtime(settings(f'{HOOK}[secrets]\npath = "secrets"\n'))


async def test_a_tenant_whose_budget_is_spent_may_ask(settings):
    async with open_runtime(settings("[tenants.acme.budgets]\nreads = 1\nask = true\n")) as runtime:
        assert runtime.tenants["acme"].budgets.ask
