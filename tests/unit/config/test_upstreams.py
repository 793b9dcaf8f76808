"""`[upstreams.NAME]` and `[gateway]`: what they hold, and what they refuse with key and fix."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from counterseal.config import ConfigError, load_settings
from counterseal.config.tables import ALGORITHMS, OAuthTable, UpstreamTable, is_loopback


@pytest.fixture
def load(tmp_path):
    file = tmp_path / "counterseal.toml"

    def load(text):
        file.write_text(text)
        return load_settings(file)

    return load


@pytest.fixture
def refusal(load, tmp_path):
    def refusal(text):
        with pytest.raises(ConfigError) as caught:
            load(text)
        return str(caught.value).removeprefix(f"{tmp_path}/counterseal.toml: ")

    return refusal


def test_upstream_says_how_it_is_reached_and_what_it_may(load):
    settings = load(
        """
        [upstreams.git]
        command = ["mcp-server-git", "--repository", "."]
        env = { GIT_TOKEN = "{secret:git_token}" }
        relay = ["elicitation"]
        connections = 2
        tenants = ["acme"]
        resources = true
        unlisted = "gated"
        prefix = "git_"
        [upstreams.crm-2]
        url = "https://crm.example.org/mcp?region=eu"
        headers = { Authorization = "Bearer {secret:crm.token}", X-Plain = "{{as it is}}" }
        [upstreams.own]
        python = "shop.tools:server"
        """
    )
    git, crm, own = settings.upstreams.values()
    assert git.command == ("mcp-server-git", "--repository", ".")
    assert (git.relay, git.connections, git.tenants) == (("elicitation",), 2, ("acme",))
    assert (git.resources, git.prompts, git.unlisted, git.prefix) == (True, False, "gated", "git_")
    assert git.secrets == {"git_token"}
    assert crm.secrets == {"crm.token"}
    assert (crm.unlisted, crm.relay, crm.tenants, crm.connections) == ("hidden", (), None, 4)
    assert (own.python, own.secrets) == ("shop.tools:server", frozenset())


REACHED = '[upstreams.a]\ncommand = ["x"]\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[upstreams.Git]\ncommand = ["x"]\n', "upstreams.Git: the name of an upstream must be 1"),
        ('[upstreams."a b"]\ncommand = ["x"]\n', "upstreams.a b: the name of an upstream must"),
        ("[upstreams.a]\n", "upstreams.a.command: missing; give one of command, url, python"),
        (
            REACHED + 'url = "https://a.example"\n',
            "upstreams.a.command: command and url contradict each other; give one of",
        ),
        (
            '[upstreams.a]\ncommand = "npx server"\n',
            'upstreams.a.command: must be one list of program and arguments: ["program"',
        ),
        ("[upstreams.a]\ncommand = []\n", "upstreams.a.command: must name a program"),
        ('[upstreams.a]\ncommand = [" "]\n', "upstreams.a.command: must name a program"),
        (
            '[upstreams.a]\ncommand = ["x", "--key={secret:k}"]\n',
            "upstreams.a.command: every user of the machine can see arguments; put secrets",
        ),
        (REACHED + 'args = ["y"]\n', "upstreams.a.args: unknown setting; allowed in [upstreams.a"),
        (
            REACHED + 'headers = { A = "b" }\n',
            "upstreams.a.headers: only for an upstream with url; this one has command",
        ),
        (
            '[upstreams.a]\nurl = "https://a.example"\ncwd = "."\n',
            "upstreams.a.cwd: only for an upstream with command; this one has url",
        ),
        (
            '[upstreams.a]\npython = "a:b"\nenv = { A = "b" }\n',
            "upstreams.a.env: only for an upstream with command; this one has python",
        ),
        ('[upstreams.a]\npython = "a.b"\n', "upstreams.a.python: must have the form package.m"),
        (REACHED + 'env = { "A=B" = "c" }\n', "upstreams.a.env: invalid name 'A=B'"),
        (REACHED + 'env = { A = "a\\nb" }\n', "upstreams.a.env.A: must not contain a "),
        (
            REACHED + 'env = { A = "{secret:}" }\n',
            "upstreams.a.env.A: {secret:} has no name",
        ),
        (
            REACHED + 'env = { A = "{secret:a b}" }\n',
            "upstreams.a.env.A: {secret:a b} is no secret; write {secret:name}, or {{ for {",
        ),
        (REACHED + 'env = { A = "{token}" }\n', "upstreams.a.env.A: {token} is no secret; write"),
        (REACHED + 'env = { A = "{call:key}" }\n', "upstreams.a.env.A: {call:key} is no secret"),
        (REACHED + 'env = { A = "{" }\n', "upstreams.a.env.A: a single {; write {{ for a"),
        ('[upstreams.a]\nurl = "ftp://a.example"\n', "upstreams.a.url: must be an http or http"),
        ('[upstreams.a]\nurl = "https://"\n', "upstreams.a.url: must be an http or https URL"),
        ('[upstreams.a]\nurl = "https://a:b/"\n', "upstreams.a.url: must be an http or https"),
        (
            '[upstreams.a]\nurl = "https://u:p@a.example"\n',
            "upstreams.a.url: must not contain a user or",
        ),
        ('[upstreams.a]\nurl = "https://a.example#x"\n', "upstreams.a.url: must not contain a f"),
        (
            '[upstreams.a]\nurl = "https://a.example/?k={secret:k}"\n',
            "upstreams.a.url: must not have placeholders, because URLs are logged; put secrets",
        ),
        (
            '[upstreams.a]\nurl = "http://a.example/mcp"\n',
            "upstreams.a.url: 'http://a.example/mcp' is not encrypted; write https",
        ),
        (REACHED + "insecure = true\n", "upstreams.a.insecure: only for an upstream with u"),
        (REACHED + 'prefix = "a/"\n', "upstreams.a.prefix: must be at most 32 letters"),
        (REACHED + f'prefix = "{"a" * 33}"\n', "upstreams.a.prefix: "),
        (REACHED + 'relay = ["prompts"]\n', "upstreams.a.relay.0: input should be 'elicitation',"),
        (REACHED + 'unlisted = "shown"\n', "upstreams.a.unlisted: input should be 'hidden' or"),
        (REACHED + "connections = 0\n", "upstreams.a.connections: input should be greater"),
        (REACHED + "tenants = []\n", "upstreams.a.tenants: "),
        (REACHED + 'resources = "yes"\n', "upstreams.a.resources: input should be a valid boolean"),
        ("[gateway]\nport = 65536\n", "gateway.port: input should be less than or equal to 65535"),
        ("[gateway]\nport = true\n", "gateway.port: input should be a valid integer"),
        ('[gateway]\nhost = "a:80"\n', "gateway.host: must be a name or an address without a por"),
        ('[gateway]\nhost = "http://a"\n', "gateway.host: must be a name"),
        ('[gateway]\npublic_url = "tools"\n', "gateway.public_url: must be an http or https"),
        (
            '[gateway]\npublic_url = "https://a.example?x=1"\n',
            "gateway.public_url: must not have a query, got 'https://a.example?x=1'",
        ),
        (
            '[gateway]\nallowed_hosts = ["https://a.example"]\n',
            "gateway.allowed_hosts: must have the form host, host:port or host:*, got 'https:",
        ),
        (
            '[gateway]\nallowed_origins = ["a.example"]\n',
            "gateway.allowed_origins: must have the form https://host[:port], got 'a.example'",
        ),
        (
            '[gateway]\nallowed_origins = ["https://a.example/"]\n',
            "gateway.allowed_origins: must have the form https://host[:port], got 'https://a.example/'",
        ),
        (
            '[gateway]\ntrusted_proxies = ["proxy.example"]\n',
            "gateway.trusted_proxies: must be an address or a network such as 10.0.0.0/8, got",
        ),
        ("[gateway]\napproval_wait_seconds = 301\n", "gateway.approval_wait_seconds: "),
        ("[gateway]\nprot = 1\n", "gateway.prot: unknown setting; allowed in [gateway]: host,"),
        ("[gateway.oauth]\n", "gateway.oauth.issuer: field required"),
        (
            '[gateway.oauth]\nissuer = "http://a.example"\n',
            "gateway.oauth.issuer: must be an https URL, because keys are fetched, got",
        ),
        (
            '[gateway.oauth]\nissuer = "https://a.example?x"\n',
            "gateway.oauth.issuer: must not have a query, got 'https://a.example?x'",
        ),
        (
            '[gateway.oauth]\nissuer = "https://a.example"\njwks_url = "keys"\n',
            "gateway.oauth.jwks_url: must be an http or https URL, got 'keys'",
        ),
        (
            '[gateway.oauth]\nissuer = "https://a.example"\nclaims = { team = "x" }\n',
            "gateway.oauth.claims.team: unknown setting; allowed in [gateway.oauth.claims]: tenan",
        ),
        (
            '[gateway.oauth]\nissuer = "https://a.example"\nalgorithms = []\n',
            "gateway.oauth.algorithms: ",
        ),
    ],
)
def test_wrong_value_is_refused_with_its_key_and_the_fix(refusal, text, message):
    assert refusal(text).startswith(message)


@pytest.mark.parametrize("name", ["command", "env", "budgets", "relay"])
def test_server_that_is_called_like_a_setting_is_told_its_settings(refusal, name):
    text = refusal(f'[upstreams.{name}]\ncommand = ["x"]\nargs = []\n')
    allowed = f"allowed in [upstreams.{name}]: comm"
    assert text.startswith(f"upstreams.{name}.args: unknown setting; {allowed}")


@pytest.mark.parametrize("name", ["HS256", "HS512", "none", "None", "RS256 ", ""])
def test_tokens_signed_with_a_shared_secret_or_nothing_are_never_believed(name):
    with pytest.raises(ValidationError, match="allowed: RS256"):
        OAuthTable(issuer="https://a.example", algorithms=("RS256", name))
    assert not any(known.startswith("HS") for known in ALGORITHMS)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9/mcp",
        "http://localhost/mcp",
        "http://[::1]:8000/mcp",
        "http://127.1/mcp",
        "https://a.example/mcp",
    ],
)
def test_plain_http_is_for_this_machine(url):
    assert UpstreamTable(url=url).url == url


@pytest.mark.parametrize("host", ["10.0.0.1", "crm", "localhost.example.org", "[fe80::1]"])
def test_plain_http_elsewhere_has_to_be_meant(host):
    url = f"http://{host}/mcp"
    assert not is_loopback(url)
    with pytest.raises(ValidationError, match="is not encrypted"):
        UpstreamTable(url=url)
    assert UpstreamTable(url=url, insecure=True).url == url


@given(st.text(max_size=40))
def test_no_text_is_taken_for_an_address_by_mistake(text):
    try:
        url = UpstreamTable(url=text).url
    except ValidationError:
        return
    assert url.startswith("https://") or is_loopback(url)


def test_gateway_has_defaults_for_one_machine(load):
    gateway = load("").gateway
    assert (gateway.host, gateway.port, gateway.public_url) == ("127.0.0.1", 8787, None)
    assert (gateway.approval_wait_seconds, gateway.oauth) == (20, None)


def test_gateway_takes_what_a_deployment_needs(load):
    gateway = load(
        """
        [gateway]
        host = "::"
        port = 0
        public_url = "https://tools.example.org/agents"
        allowed_hosts = ["tools", "tools:8787", "tools:*", "[::1]:80"]
        allowed_origins = ["https://a.example", "http://localhost:3000"]
        [gateway.oauth]
        issuer = "http://127.0.0.1:9000/realm"
        algorithms = ["PS384"]
        required_scopes = ["tools"]
        claims = { tenant = "org" }
        """
    ).gateway
    assert gateway.oauth is not None
    assert gateway.oauth.algorithms == ("PS384",)
    claims = gateway.oauth.claims
    assert (claims.tenant, claims.agent, claims.user) == ("org", "client_id", "sub")


# Files that they name -----------------------------------------------------------------------------


def test_files_of_upstreams_are_seen_from_the_configuration(load, tmp_path):
    settings = load(
        '[upstreams.a]\ncommand = ["x"]\n'
        '[upstreams.b]\ncommand = ["x"]\noverlay = "b.yaml"\ncwd = "work"\n'
        '[gateway]\nlock = "locks/tools.lock"\n'
    )
    assert settings.lock_path() == tmp_path / "locks/tools.lock"
    assert settings.overlay_path("a") is None
    with pytest.raises(ConfigError, match=r"upstreams\.b\.overlay: 'b\.yaml' does not exist"):
        settings.overlay_path("b")
    with pytest.raises(ConfigError, match=r"upstreams\.b\.cwd: 'work' does not exist"):
        settings.cwd_path("b")
    (tmp_path / "overlays").mkdir()
    (tmp_path / "work").mkdir()
    for name in ("overlays/a.yaml", "b.yaml"):
        (tmp_path / name).touch()
    assert settings.overlay_paths() == {
        "a": tmp_path / "overlays/a.yaml",
        "b": tmp_path / "b.yaml",
    }
    assert (settings.cwd_path("a"), settings.cwd_path("b")) == (tmp_path, tmp_path / "work")
