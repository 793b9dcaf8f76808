"""From `[upstreams.NAME]` to what connects to it, and to the contracts that were accepted."""

import sys
import uuid

import pytest

from counterseal.config import ConfigError, load_settings, pinned_contracts
from counterseal.config.build import upstream_settings
from counterseal.contract.sources.mcp.definition import Definition
from counterseal.contract.sources.mcp.lock import Lock


@pytest.fixture
def load(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))

    def load(text):
        file = tmp_path / "counterseal.toml"
        file.write_text(text)
        return load_settings(file)

    return load


def test_everything_that_the_table_says_is_handed_on(load, tmp_path):
    settings = load(
        """
        [upstreams.a]
        command = ["program", "x"]
        env = { A = "{secret:a}" }
        relay = ["roots"]
        connections = 2
        tenants = ["acme"]
        [upstreams.b]
        url = "https://b.example"
        headers = { X = "y" }
        """
    )
    a, b = upstream_settings(settings)
    assert (a.name, a.command, a.cwd) == ("a", ("program", "x"), tmp_path)
    assert (a.env, a.relay, a.connections, a.tenants) == (
        {"A": "{secret:a}"},
        {"roots"},
        2,
        ("acme",),
    )
    assert (b.url, b.headers, b.cwd, b.tenants) == ("https://b.example", {"X": "y"}, None, ())
    assert [one.name for one in upstream_settings(settings, "b")] == ["b"]


def test_server_of_python_is_found_in_the_project_and_prints_to_stderr(load, tmp_path, capsys):
    name = f"own_{uuid.uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(
        "print('hello')\nclass Kept:\n    server = object()\nkept = Kept()\n"
    )
    settings = load(f'[upstreams.own]\npython = "{name}:kept.server"\n')
    (own,) = upstream_settings(settings)
    assert own.python is sys.modules[name].Kept.server
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "hello\n")


@pytest.mark.parametrize(
    ("content", "wanted", "fault"),
    [
        ("", "server", "AttributeError"),
        ("raise RuntimeError('not today')", "server", "RuntimeError: not today"),
        (None, "server", "ModuleNotFoundError"),
    ],
)
def test_server_of_python_that_cannot_be_had_is_told_with_its_key(
    load, tmp_path, content, wanted, fault
):
    name = f"own_{uuid.uuid4().hex}"
    if content is not None:
        (tmp_path / f"{name}.py").write_text(content)
    settings = load(f'[upstreams.own]\npython = "{name}:{wanted}"\n')
    with pytest.raises(ConfigError, match=rf"upstreams\.own\.python: .*{name}:{wanted}: {fault}"):
        upstream_settings(settings)


def test_accepted_tools_are_known_without_a_connection(load, tmp_path):
    settings = load(
        '[upstreams.a]\ncommand = ["no-such-program"]\nprefix = "a_"\n'
        '[upstreams.b]\ncommand = ["no-such-program"]\n'
    )
    (tmp_path / "overlays").mkdir()
    overlay = "server: a\ntools:\n  look: {effect: read_only}\n  odd: {effect: read_only}\n"
    (tmp_path / "overlays/a.yaml").write_text(overlay)
    lock = Lock()
    for server, name, hints in (
        ("a", "look", {}),
        ("a", "odd", {"destructiveHint": True}),
        ("a", "unlisted", {}),
        ("b", "look", {}),
    ):
        wire = {"name": name, "inputSchema": {"type": "object"}, "annotations": hints}
        lock = lock.accept(server, Definition.of(wire), by="jo", at="2026-01-01T00:00:00+00:00")
    Lock.update(settings.lock_path(), lambda _: lock)
    found = pinned_contracts(settings)
    assert {server: [one.name for one in items] for server, items in found.items()} == {
        "a": ["a_look", "odd"],
        "b": [],
    }
    good, bad = found["a"]
    assert good.contract.mcp.server == "a"
    assert (good.source.file.endswith("overlays/a.yaml"), good.source.line) == (True, 3)
    (problem,) = bad.problems
    assert bad.contract is None
    assert "destructiveHint" in problem.message
