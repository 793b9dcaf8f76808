"""`counterseal.toml`: found from below, read strictly, wrong with a place."""

from pathlib import Path

import pytest

from counterseal.config import ConfigError, Settings, find_config, load_settings


def refusal(folder, content):
    file = folder / "counterseal.toml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError) as caught:
        load_settings(file)
    return str(caught.value).replace(str(folder), ".")


def test_paths_are_seen_from_the_file(tmp_path):
    file = tmp_path / "counterseal.toml"
    file.write_text('[tools]\npaths = ["tools.py", "contracts"]\n')
    (tmp_path / "tools.py").touch()
    (tmp_path / "contracts").mkdir()
    settings = load_settings(file)
    assert settings.tool_paths() == (tmp_path / "tools.py", tmp_path / "contracts")


def test_empty_file_names_no_tools(tmp_path):
    file = tmp_path / "counterseal.toml"
    file.touch()
    settings = load_settings(file)
    assert settings.model_dump() == Settings().model_dump()
    assert settings.file == file
    assert settings.tool_paths() == ()


def test_nearest_file_above_is_found(tmp_path):
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert find_config(below) is None
    (tmp_path / "counterseal.toml").touch()
    assert find_config(below) == tmp_path / "counterseal.toml"
    (tmp_path / "a" / "counterseal.toml").touch()
    assert find_config(below) == tmp_path / "a" / "counterseal.toml"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[tools]\npaths = oops\n", "./counterseal.toml:2:9: invalid TOML: invalid value"),
        ("[tools\n", "./counterseal.toml:1:7: invalid TOML: "),
        ('[tools]\npaths = ["a"', "./counterseal.toml:2:13: invalid TOML: "),
        ("[tool]\n", "./counterseal.toml: tool: unknown setting; allowed tables: tools"),
        (
            '[tools]\npath = "a"\n',
            "./counterseal.toml: tools.path: unknown setting; allowed in",
        ),
        (
            '[tools]\npaths = "a"\n',
            "./counterseal.toml: tools.paths: input should be a valid tuple",
        ),
        (
            "[tools]\npaths = [1]\n",
            "./counterseal.toml: tools.paths.0: input should be a valid string",
        ),
        (
            "[[grants]]\nagent = 'a'\ntool = 't'\nversions = '1'\n",
            "./counterseal.toml: grants.0.versions: unknown setting; allowed in [[grants]]: agent",
        ),
        ("[[grants]]\nagent = 'a'\n", "./counterseal.toml: grants.0.tool: field required"),
        (
            "[[grants]]\nagent = 'a'\ntool = 't'\nversion = 'new'\n",
            "./counterseal.toml: grants.0.version: must be a range like",
        ),
        (
            "[[grants]]\nagent = 'a'\ntool = 't'\nmode = 'all'\n",
            "./counterseal.toml: grants.0.mode: must be one of read, draft, execute, got 'all'",
        ),
        (
            "[[grants]]\nagent = 'a'\ntool = 't'\nmax_calls_per_run = true\n",
            "./counterseal.toml: grants.0.max_calls_per_run: input should be a valid integer",
        ),
        (
            "[[grants]]\nagent = 'a'\ntool = 't'\nexpires_at = 2026-01-01T00:00:00\n",
            "./counterseal.toml: grants.0.expires_at: must be a datetime with a time zone",
        ),
        (
            "[agents.bot]\nscope = ['a']\n",
            "./counterseal.toml: agents.bot.scope: unknown setting; allowed in [agents.bot]: ten",
        ),
        ("[agents.bot]\ntenant = ''\n", "./counterseal.toml: agents.bot.tenant: "),
        (
            "[agents.bot]\ntenant = 'acme corp'\n",
            "./counterseal.toml: agents.bot.tenant: a tenant's name must not contain a space",
        ),
        (
            '[tenants."ac\u200bme"]\n',
            "./counterseal.toml: tenants.ac\u200bme: a tenant's name must not contain the inv",
        ),
        (
            "[[grants]]\nagent = 'a'\ntool = 't'\ntenant = 'acme '\n",
            "./counterseal.toml: grants.0.tenant: a tenant's name must not contain a space",
        ),
        (
            "[tenants.acme.budgets]\nseconds = 3\n",
            "./counterseal.toml: tenants.acme.budgets.seconds: unknown setting; allowed in [ten",
        ),
        (
            "[tenants.acme.budgets]\nreads = -1\n",
            "./counterseal.toml: tenants.acme.budgets.reads: input should be greater than or equal",
        ),
        ("[policy]\nfile = 'a'\n", "./counterseal.toml: policy.file: unknown setting; allowed"),
        (b"\xff", "./counterseal.toml: byte 1 is not UTF-8"),
        ("a = " + "[" * 5000, "./counterseal.toml"),
    ],
)
def test_wrong_file_is_refused_with_file_key_and_place(tmp_path, content, message):
    assert refusal(tmp_path, content).startswith(message)


def test_everything_that_is_wrong_is_said_at_once(tmp_path):
    text = refusal(tmp_path, "[tools]\npaths = 3\nmore = 1\n[other]\n")
    assert len(text.splitlines()) == 3


def test_path_that_is_not_there_is_named_with_its_key():
    settings = Settings.model_validate({"tools": {"paths": ["gone.py"]}})
    with pytest.raises(ConfigError, match=r"tools\.paths: 'gone.py' does not exist"):
        settings.tool_paths()
    settings = Settings.model_validate({"policy": {"paths": ["gone.yaml"]}})
    with pytest.raises(ConfigError, match=r"policy\.paths: 'gone.yaml' does not exist"):
        settings.policy_paths()


def test_file_that_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(ConfigError, match="can't be read"):
        load_settings(Path(tmp_path))
