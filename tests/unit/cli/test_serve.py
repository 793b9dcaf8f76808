"""`counterseal serve` and `counterseal mcp`: what they refuse before anything is served."""

import json
import sys

import pytest

from counterseal.cli.render import warn
from counterseal.web import server as gateway
from counterseal.web.server import Running

SETTINGS = """\
[agents.shop-agent]
tenant = "acme"
scopes = ["orders"]

[agents.nobody]
user = "u_1"
"""


@pytest.fixture
def project(write):
    write("counterseal.toml", SETTINGS)
    return write


@pytest.fixture
def served(monkeypatch):
    """What the gateway was asked for; it is ready at once, and ends."""
    seen = {}

    async def serve(settings, *, ready, tell, **options):
        seen.update(options, file=settings.file)
        tell("store: memory:")
        url = f"http://{options['host']}:{options['port']}"
        ready(
            Running(
                url=url,
                mcp_url=f"{url}/mcp",
                health_url=f"{url}/health",
                upstreams=[{"name": "git", "ready": True}],
                credentials=seen.get("keys", 0),
            )
        )

    monkeypatch.setattr(gateway, "serve", serve)
    return seen


def client_in(stdout):
    return json.loads(stdout[stdout.index("{") :])["mcpServers"]["counterseal"]


# Serve --------------------------------------------------------------------------------------------


def test_serve_prints_where_it_is_and_what_a_client_needs(run, project, served):
    result = run("serve")
    assert result.exit_code == 0
    assert result.stdout.startswith(
        "Console  http://127.0.0.1:8787/\nMCP      http://127.0.0.1:8787/mcp\n"
        "API      http://127.0.0.1:8787/v1/openapi.json\n"
        "Health   http://127.0.0.1:8787/health\n"
    )
    assert client_in(result.stdout) == {
        "type": "http",
        "url": "http://127.0.0.1:8787/mcp",
        "headers": {"Authorization": "Bearer ${COUNTERSEAL_KEY}"},
    }
    assert "store: memory:\n" in result.stderr
    assert max(map(len, (result.stdout + result.stderr).splitlines())) <= 100


def test_serve_warns_when_there_is_no_user_and_says_how_to_add_one(run, project, served):
    result = run("serve")
    assert "No client can sign in yet" in result.stderr
    assert "counterseal keys issue --tenant T --agent A\n" in result.stderr
    served["keys"] = 1
    assert "No client can sign in" not in run("serve").stderr
    served["keys"] = 0
    project("counterseal.toml", '[gateway.oauth]\nissuer = "https://login.example.org"\n')
    assert "No client can sign in" not in run("serve").stderr


def test_serve_listens_as_configured_unless_told_otherwise(run, project, served):
    project("counterseal.toml", '[gateway]\nhost = "0.0.0.0"\nport = 80\n')
    run("serve")
    assert (served["host"], served["port"], served["anonymous"]) == ("0.0.0.0", 80, None)
    run("serve", "--host", "::1", "--port", "0", "--store", "sqlite:///a.db")
    assert (served["host"], served["port"], served["store"]) == ("::1", 0, "sqlite:///a.db")


# Encryption ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "tools.example.org"])
def test_plain_http_that_others_can_reach_is_warned_of(run, project, served, host):
    for options in ((), ("--json",)):
        result = run("serve", "--host", host, *options)
        assert result.exit_code == 0
        assert f"WARNING: no encryption on {host}" in result.stderr
        for way_out in ("--tls-cert FILE --tls-key FILE", "public_url", "behind_proxy = true"):
            assert way_out in result.stderr
        assert "WARNING" not in result.stdout
        assert max(map(len, result.stderr.splitlines())) <= 80


def test_warning_is_loud_on_a_terminal(capsys, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    warn("WARNING: one", "two \x1b[0m")
    assert capsys.readouterr().err == "\x1b[1;31mWARNING: one\ntwo \\x1b[0m\x1b[0m\n"


@pytest.mark.parametrize(
    ("gateway", "options"),
    [
        ("", ["--host", "127.0.0.1"]),
        ("", ["--host", "::1"]),
        ("", ["--host", "localhost"]),
        ('public_url = "https://tools.example.org"', ["--host", "0.0.0.0"]),
        ("behind_proxy = true", ["--host", "0.0.0.0"]),
        ("", ["--host", "0.0.0.0", "--tls-cert", "c.pem", "--tls-key", "k.pem"]),
        ('tls_cert = "c.pem"\ntls_key = "k.pem"', ["--host", "0.0.0.0"]),
    ],
)
def test_encryption_or_who_sees_to_it_silences_the_warning(
    run, project, served, gateway, options, folder
):
    for name in ("c.pem", "k.pem"):
        project(name, "")
    project("counterseal.toml", f"[gateway]\n{gateway}\n")
    assert "WARNING" not in run("serve", *options).stderr
    files = None if "c.pem" not in f"{gateway}{options}" else ("c.pem", "k.pem")
    assert (served["tls"] and tuple(path.name for path in served["tls"])) == files


def test_public_url_without_https_does_not_silence_the_warning(run, project, served):
    project("counterseal.toml", '[gateway]\npublic_url = "http://tools.example.org"\n')
    assert "WARNING" in run("serve", "--host", "0.0.0.0").stderr
    assert "WARNING" not in run("serve").stderr


def test_certificate_and_key_belong_together(run, project, served):
    result = run("serve", "--tls-cert", "c.pem")
    assert (result.exit_code, served) == (2, {})
    assert "--tls-cert and --tls-key belong together." in result.stderr
    project("counterseal.toml", '[gateway]\ntls_key = "k.pem"\n')
    result = run("serve")
    assert (result.exit_code, served) == (2, {})
    assert "gateway.tls_cert: missing; tls_key needs it" in result.stderr
    project("counterseal.toml", '[gateway]\ntls_key = "k.pem"\ntls_cert = "c.pem"\n')
    assert "gateway.tls_cert: 'c.pem' does not exist" in run("serve").stderr


def test_serve_as_json_is_one_object(run, project, served):
    told = json.loads(run("serve", "--json").stdout)
    assert told["mcp_url"] == "http://127.0.0.1:8787/mcp"
    assert told["health_url"] == "http://127.0.0.1:8787/health"
    assert told["upstreams"] == [{"name": "git", "ready": True}]
    assert told["client"]["mcpServers"]["counterseal"]["url"] == told["mcp_url"]


def test_anonymous_clients_are_the_declared_agent_and_need_no_key(run, project, served):
    result = run("serve", "--anonymous-as", "shop-agent", "--host", "localhost")
    assert result.exit_code == 0
    assert (served["anonymous"].tenant, served["anonymous"].agent) == ("acme", "shop-agent")
    assert served["anonymous"].scopes == {"orders"}
    assert "headers" not in client_in(result.stdout)
    assert "No client can sign in" not in result.stderr


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "192.168.1.2", "tools.example.org", "127.0.0.1.x"]
)
def test_anonymous_clients_are_refused_where_others_can_come_from(run, project, served, host):
    result = run("serve", "--anonymous-as", "shop-agent", "--host", host)
    assert (result.exit_code, result.stdout, served) == (2, "", {})
    assert "for this machine only" in result.stderr
    assert "Listen on 127.0.0.1" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "message", "fix"),
    [
        (
            ["serve", "--anonymous-as", "ghost"],
            "There is no agent 'ghost' in counterseal.toml",
            "Agents in it: nobody, shop-agent.",
        ),
        (
            ["serve", "--anonymous-as", "nobody"],
            "The agent 'nobody' has no tenant",
            "[agents.nobody]",
        ),
        (["mcp", "--as", "shop-agnt"], "no agent 'shop-agnt'", "Did you mean shop-agent?"),
        (["mcp"], "The client's agent is missing", "nobody, shop-agent"),
    ],
)
def test_agent_that_is_not_declared_is_refused(start, project, command, message, fix):
    result = start(*command)
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr
    assert fix in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", [["serve"], ["mcp", "--as", "shop-agent"]])
def test_project_that_cannot_be_used_is_not_served(start, project, command):
    project("counterseal.toml", SETTINGS + '[policy]\npaths = ["rules.yaml"]\n')
    project("rules.yaml", "rules:\n  - {id: a}\n")
    result = start(*command)
    assert (result.returncode, result.stdout) == (2, "")
    assert "rules.yaml:2" in result.stderr
    assert "nothing is served" in result.stderr
    project("counterseal.toml", "[gateway]\nprot = 1\n")
    result = start(*command)
    assert (result.returncode, result.stdout) == (2, "")
    assert "gateway.prot: unknown setting" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", [["serve"], ["mcp", "--as", "shop-agent"], ["diff"]])
def test_missing_libraries_are_named_with_how_to_get_them(start, project, command):
    result = start(*command, without="mcp")
    assert (result.returncode, result.stdout) == (2, "")
    assert "Error: mcp is not installed." in result.stderr
    assert "pip install 'counterseal[gateway]'" in result.stderr


def test_help_fits_into_80_columns(run, folder):
    for command in ("serve", "mcp", "diff", "import"):
        assert max(map(len, run(command, "--help").stdout.splitlines())) <= 80


@pytest.fixture
def start(folder):
    """The command as a process of its own; `without` hides a library from it."""
    import subprocess

    def start(*arguments, without=None):
        code = "import sys; from importlib import util; import counterseal.cli as cli\n"
        if without:
            code += (
                f"real = util.find_spec\nutil.find_spec = lambda n, *a: None if n == {without!r}"
            )
            code += " else real(n, *a)\n"
        code += f"sys.argv = ['counterseal', *{list(arguments)!r}]\ncli.main()"
        return subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=120,
        )

    return start
