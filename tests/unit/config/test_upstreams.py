"""`[upstreams.NAME]` and `[gateway]`: what they hold, and what they refuse with key and fix."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from counterseal.config import ConfigError, load_settings
from counterseal.config.gateway import ALGORITHMS, OAuthTable
from counterseal.config.upstreams import UpstreamTable, is_loopback


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
        ('[upstreams.Git]\ncommand = ["x"]\n', "upstreams.Git: a server's name is made of small"),
        ('[upstreams."a b"]\ncommand = ["x"]\n', "upstreams.a b: a server's name is made of"),
        ("[upstreams.a]\n", "upstreams.a.command: is missing; give one of command, url, python"),
        (
            REACHED + 'url = "https://a.example"\n',
            "upstreams.a.command: command and url contradict each other; give one of",
        ),
        (
            '[upstreams.a]\ncommand = "npx server"\n',
            'upstreams.a.command: takes the program and its arguments as one list: ["program"',
        ),
        ("[upstreams.a]\ncommand = []\n", "upstreams.a.command: names no program"),
        ('[upstreams.a]\ncommand = [" "]\n', "upstreams.a.command: names no program"),
        (
            '[upstreams.a]\ncommand = ["x", "--key={secret:k}"]\n',
            "upstreams.a.command: everybody on the machine can see a command's arguments; put",
        ),
        (REACHED + 'args = ["y"]\n', "upstreams.a.args is not a setting; [upstreams.a] takes com"),
        (
            REACHED + 'headers = { A = "b" }\n',
            "upstreams.a.headers: is for an upstream with url, and this one has command",
        ),
        (
            '[upstreams.a]\nurl = "https://a.example"\ncwd = "."\n',
            "upstreams.a.cwd: is for an upstream with command, and this one has url",
        ),
        (
            '[upstreams.a]\npython = "a:b"\nenv = { A = "b" }\n',
            "upstreams.a.env: is for an upstream with command, and this one has python",
        ),
        ('[upstreams.a]\npython = "a.b"\n', "upstreams.a.python: 'a.b' is not of the form pack"),
        (REACHED + 'env = { "A=B" = "c" }\n', "upstreams.a.env: 'A=B' can't be a name there"),
        (REACHED + 'env = { A = "a\\nb" }\n', "upstreams.a.env.A: holds a line break"),
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
        (
            REACHED + 'env = { A = "{" }\n',
            "upstreams.a.env.A: a single {; write {{ for a plain",
        ),
        ('[upstreams.a]\nurl = "ftp://a.example"\n', "upstreams.a.url: 'ftp://a.example' is no"),
        ('[upstreams.a]\nurl = "https://"\n', "upstreams.a.url: 'https://' is no http or https"),
        ('[upstreams.a]\nurl = "https://a:b/"\n', "upstreams.a.url: 'https://a:b/' is no http"),
        (
            '[upstreams.a]\nurl = "https://u:p@a.example"\n',
            "upstreams.a.url: holds a user or a password",
        ),
        ('[upstreams.a]\nurl = "https://a.example#x"\n', "upstreams.a.url: 'https://a.example#x'"),
        (
            '[upstreams.a]\nurl = "https://a.example/?k={secret:k}"\n',
            "upstreams.a.url: takes no placeholders, because addresses are logged; put secrets",
        ),
        (
            '[upstreams.a]\nurl = "http://a.example/mcp"\n',
            "upstreams.a.url: 'http://a.example/mcp' would be spoken to in the open; write https",
        ),
        (REACHED + "insecure = true\n", "upstreams.a.insecure: is for an upstream with url"),
        (REACHED + 'prefix = "a/"\n', "upstreams.a.prefix: 'a/' is not made of at most 32"),
        (REACHED + f'prefix = "{"a" * 33}"\n', "upstreams.a.prefix: "),
        (REACHED + 'relay = ["prompts"]\n', "upstreams.a.relay.0: input should be 'elicitation',"),
        (REACHED + 'unlisted = "shown"\n', "upstreams.a.unlisted: input should be 'hidden' or"),
        (REACHED + "connections = 0\n", "upstreams.a.connections: input should be greater"),
        (REACHED + "tenants = []\n", "upstreams.a.tenants: "),
        (REACHED + 'resources = "yes"\n', "upstreams.a.resources: input should be a valid boolean"),
        ("[gateway]\nport = 65536\n", "gateway.port: input should be less than or equal to 65535"),
        ("[gateway]\nport = true\n", "gateway.port: input should be a valid integer"),
        ('[gateway]\nhost = "a:80"\n', "gateway.host: 'a:80' is no host; write a name or an addr"),
        ('[gateway]\nhost = "http://a"\n', "gateway.host: 'http://a' is no host"),
        ('[gateway]\npublic_url = "tools"\n', "gateway.public_url: 'tools' is no http or https"),
        (
            '[gateway]\npublic_url = "https://a.example?x=1"\n',
            "gateway.public_url: 'https://a.example?x=1' holds a query",
        ),
        (
            '[gateway]\nallowed_hosts = ["https://a.example"]\n',
            "gateway.allowed_hosts: 'https://a.example' is not of the form host",
        ),
        (
            '[gateway]\nallowed_origins = ["a.example"]\n',
            "gateway.allowed_origins: 'a.example' is not of the form https://host",
        ),
        (
            '[gateway]\nallowed_origins = ["https://a.example/"]\n',
            "gateway.allowed_origins: 'https://a.example/' is not of the form https://host",
        ),
        (
            '[gateway]\ntrusted_proxies = ["proxy.example"]\n',
            "gateway.trusted_proxies: 'proxy.example' is no address and no network",
        ),
        ("[gateway]\napproval_wait_seconds = 301\n", "gateway.approval_wait_seconds: "),
        ("[gateway]\nprot = 1\n", "gateway.prot is not a setting; [gateway] takes host, port,"),
        ("[gateway.oauth]\n", "gateway.oauth.issuer: field required"),
        (
            '[gateway.oauth]\nissuer = "http://a.example"\n',
            "gateway.oauth.issuer: 'http://a.example' would be asked in the open",
        ),
        (
            '[gateway.oauth]\nissuer = "https://a.example?x"\n',
            "gateway.oauth.issuer: 'https://a.example?x' holds a query",
        ),
        (
            '[gateway.oauth]\nissuer = "https://a.example"\njwks_url = "keys"\n',
            "gateway.oauth.jwks_url: 'keys' is no http or https address",
        ),
        (
            '[gateway.oauth]\nissuer = "https://a.example"\nclaims = { team = "x" }\n',
            "gateway.oauth.claims.team is not a setting; [gateway.oauth.claims] takes tenant,",
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
    assert text.startswith(f"upstreams.{name}.args is not a setting; [upstreams.{name}] takes comm")


@pytest.mark.parametrize("name", ["HS256", "HS512", "none", "None", "RS256 ", ""])
def test_tokens_signed_with_a_shared_secret_or_nothing_are_never_believed(name):
    with pytest.raises(ValidationError, match="is none of RS256"):
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
    with pytest.raises(ValidationError, match="in the open"):
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
    with pytest.raises(ConfigError, match=r"upstreams\.b\.overlay: there is no 'b\.yaml' beside"):
        settings.overlay_path("b")
    with pytest.raises(ConfigError, match=r"upstreams\.b\.cwd: there is no 'work' beside"):
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
