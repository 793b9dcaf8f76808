"""The store and the keys that `counterseal.toml` names: found beside it, and used by it."""

from datetime import UTC, datetime

import pytest

from counterseal.config import ConfigError, load_settings, open_runtime
from counterseal.config.build import key_ring
from counterseal.keys import Purpose, new_key


@pytest.fixture
def settings(tmp_path):
    def settings(text):
        file = tmp_path / "counterseal.toml"
        file.write_text(f'[tools]\npaths = ["tools"]\n{text}')
        (tmp_path / "tools").mkdir(exist_ok=True)
        return load_settings(file)

    return settings


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///counterseal.db", "sqlite:///{folder}/counterseal.db"),
        ("sqlite:///data/record.db", "sqlite:///{folder}/data/record.db"),
        ("sqlite:////var/record.db", "sqlite:////var/record.db"),
        ("memory:", "memory:"),
        ("postgresql://localhost/record", "postgresql://localhost/record"),
    ],
)
def test_a_relative_store_lies_beside_the_file(settings, tmp_path, url, shown):
    assert settings(f'[store]\nurl = "{url}"\n').store_url() == shown.format(folder=tmp_path)


def test_without_a_table_there_is_no_store_and_no_key(settings):
    plain = settings("")
    assert (plain.store_url(), plain.keys_path(), key_ring(plain)) == (None, None, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[store]\nurl = ""\n', "store.url: "),
        ("[store]\nlease_seconds = 0\n", "store.lease_seconds: "),
        ('[store]\npath = "a.db"\n', "allowed in [store]: url, lease_seconds"),
        ('[keys]\nfolder = "a"\n', "allowed in [keys]: path"),
        (
            '[observations]\nkeep_reads = "some"\n',
            "observations.keep_reads: input should be 'none', 'redacted' or 'all'",
        ),
        (
            "[observations]\nkeep_reads = true\n",
            "observations.keep_reads: input should be 'none', 'redacted' or 'all'",
        ),
        (
            "[observations]\nkeep_reads_bytes = 10\n",
            "observations.keep_reads_bytes: input should be greater than or equal to 1024",
        ),
        (
            '[observations]\nkeep_reads_bytes = "16 KiB"\n',
            "observations.keep_reads_bytes: input should be a valid integer",
        ),
        (
            "[observations]\nkeep = true\n",
            "observations.keep: unknown setting; allowed in [observations]: keep_reads, keep_",
        ),
    ],
)
def test_wrong_tables_are_refused(settings, text, message):
    with pytest.raises(ConfigError) as caught:
        settings(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("", ("redacted", 16_384)),
        ('[observations]\nkeep_reads = "none"\n', ("none", 16_384)),
        ('[observations]\nkeep_reads = "all"\nkeep_reads_bytes = 2048\n', ("all", 2048)),
    ],
)
def test_which_reads_are_kept_is_the_runtimes_to_know(settings, text, kept):
    table = settings(text).observations
    assert (table.keep_reads, table.keep_reads_bytes) == kept


async def test_the_runtime_uses_the_store_and_the_keys(settings, tmp_path):
    made = new_key(tmp_path / "keys", Purpose.VAULT, datetime(2026, 7, 31, tzinfo=UTC))
    there = settings('[store]\nurl = "sqlite:///own.db"\n[keys]\npath = "keys"\n')
    async with open_runtime(there) as runtime:
        assert (tmp_path / "own.db").is_file()
        assert runtime.vault.key_id == made.key_id
    async with open_runtime(there, f"sqlite:///{tmp_path}/other.db"):
        assert (tmp_path / "other.db").is_file()


def test_keys_that_can_not_be_used_name_the_setting(settings):
    with pytest.raises(ConfigError, match=r"keys\.path: .*the folder does not exist"):
        open_runtime(settings('[keys]\npath = "keys"\n'))
