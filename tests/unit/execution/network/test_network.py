"""`ctx.http`: real clients against a real server on loopback.

Nothing here leaves loopback: names are looked up in a dict, and a connector records what it is
asked for and refuses all but the server's address. Should the guard ever lose them, sockets refuse.
"""

import asyncio
import datetime as dt
import socket
import ssl
import threading

import httpcore
import httpx
import pytest

from counterseal.contract.egress import Egress
from counterseal.contract.model import EgressPolicy
from counterseal.errors import EgressError, ResponseTooLargeError, TooLateError
from counterseal.execution.network import Clients, Guard, Network, resolve

PUBLIC = "93.184.216.34"
METADATA = "169.254.169.254"


@pytest.fixture(autouse=True)
def nothing_leaves_loopback(monkeypatch):
    """The second lock: for the day when a client does not use the network that it was given."""
    connect, getaddrinfo = socket.socket.connect, socket.getaddrinfo

    def only_loopback(self, address):
        assert address[0] == "127.0.0.1", f"a test wanted to connect to {address}"
        return connect(self, address)

    def only_numbers(host, *more, **options):
        assert host == "127.0.0.1", f"a test wanted to look up {host}"
        return getaddrinfo(host, *more, **options)

    monkeypatch.setattr(socket.socket, "connect", only_loopback)
    monkeypatch.setattr(socket, "getaddrinfo", only_numbers)


class World:
    """What names lead to, what was looked up, and what was dialled. Only loopback is reached."""

    def __init__(self, **names):
        self.names = {name.replace("_", "."): answers for name, answers in names.items()}
        self.looked_up = []
        self.dialled = []

    def resolve(self, host, port):
        self.looked_up.append(host)
        answers = self.names.get(host.removesuffix("."))
        if answers is None:
            raise OSError(f"no such name: {host}")
        return next(answers) if hasattr(answers, "__next__") else answers

    def dial(self, address, port):
        self.dialled.append(address)
        if address != "127.0.0.1":
            raise httpcore.ConnectError("refused by the test")

    @property
    def network(self):
        world = self

        class Connect(httpcore.AnyIOBackend):
            async def connect_tcp(self, host, port, *more, **options):
                world.dial(host, port)
                return await super().connect_tcp(host, port, *more, **options)

        async def resolve(host, port):
            return self.resolve(host, port)

        return Network(resolve, Connect())


class Lent:
    """The clients of one kind, asked in one way: a sync client works in a thread."""

    def __init__(self, kind, clients, egress):
        self.is_async = kind == "async"
        self.clients = clients
        self.egress = egress

    async def get(self, *urls, method="GET", seconds=30, egress=None, too_late=str, **options):
        """The last response of one call that asks for these URLs in turn."""
        egress = egress or self.egress
        if self.is_async:
            async with self.clients.client(egress, too_late, seconds=seconds) as client:
                return [await client.request(method, url, **options) for url in urls][-1]
        return await asyncio.to_thread(self._get, urls, method, seconds, egress, too_late, options)

    def _get(self, urls, method, seconds, egress, too_late, options):
        with self.clients.sync_client(egress, too_late, seconds=seconds) as client:
            return [client.request(method, url, **options) for url in urls][-1]


@pytest.fixture(params=["async", "sync"])
def kind(request):
    return request.param


@pytest.fixture
def world():
    return World(api_example_org=["127.0.0.1"], other_example_org=["127.0.0.1"])


@pytest.fixture(scope="module")
def tls():
    """Made once: it loads every authority that is trusted."""
    return httpx.create_ssl_context()


@pytest.fixture
async def clients(world, tls):
    clients = Clients(world.network, max_bytes=100_000, tls=tls)
    yield clients
    await clients.aclose()


@pytest.fixture
def egress(server):
    return allowlisted(f"api.example.org:{server.port}", f"127.0.0.1:{server.port}")


@pytest.fixture
def lent(kind, clients, egress):
    return Lent(kind, clients, egress)


def allowlisted(*entries):
    return Egress(EgressPolicy.ALLOWLISTED_DOMAINS, entries)


# --- where ----------------------------------------------------------------------------------------


async def test_a_declared_place_is_reached_by_name_and_by_address(lent, server, world):
    assert (await lent.get(server.url("/ok"))).text == "ok"
    assert (await lent.get(server.url("/ok", "api.example.org"))).text == "ok"
    assert (await lent.get(server.url("/ok", "API.example.org."))).text == "ok"
    assert (await lent.get(server.url("/ok", "0x7f.1"))).text == "ok"
    assert set(world.dialled) == {"127.0.0.1"}
    assert "0x7f.1" not in world.looked_up
    assert "127.0.0.1" not in world.looked_up


@pytest.mark.parametrize(
    "url",
    [
        "https://other.example.org/",
        "http://api.example.org/",
        "http://127.0.0.1/",
        "http://[::1]/",
        "http://2130706433/",
        "http://10.0.0.1/",
        f"http://{METADATA}/latest/",
        f"http://{PUBLIC}/",
        "http://metadata.google.internal/",
        "ws://api.example.org/",
        "ftp://api.example.org/",
    ],
)
async def test_any_other_place_is_refused_before_anything_is_looked_up(lent, world, url):
    with pytest.raises(EgressError):
        await lent.get(url)
    assert world.looked_up == world.dialled == []


@pytest.mark.parametrize(
    "answers",
    [
        ["127.0.0.1"],
        ["10.0.0.1"],
        [METADATA],
        ["::1"],
        ["::ffff:10.0.0.1"],
        [PUBLIC, "10.0.0.1"],
        ["10.0.0.1", PUBLIC],
        [PUBLIC, "nonsense"],
    ],
    ids=str,
)
async def test_a_name_is_refused_when_any_of_its_addresses_is(lent, world, answers):
    world.names["rebound.example.org"] = answers
    with pytest.raises(EgressError, match=r"rebound\.example\.org:443"):
        await lent.get("https://rebound.example.org/", egress=allowlisted("rebound.example.org"))
    assert world.dialled == []


async def test_a_name_that_changes_its_mind_is_looked_up_once_and_refused_the_next_time(
    lent, world
):
    world.names["rebound.example.org"] = iter([[PUBLIC], ["127.0.0.1"], [METADATA]])
    rebound = allowlisted("rebound.example.org")
    with pytest.raises(httpx.ConnectError, match="refused by the test"):
        await lent.get("https://rebound.example.org/", egress=rebound)
    assert world.looked_up == ["rebound.example.org"]
    assert world.dialled == [PUBLIC], "the address that was judged"
    for _ in range(2):
        with pytest.raises(EgressError):
            await lent.get("https://rebound.example.org/", egress=rebound)
    assert world.dialled == [PUBLIC]


async def test_the_next_address_is_tried_when_one_is_dead(lent, server, world):
    world.names["api.example.org"] = [PUBLIC, PUBLIC, "127.0.0.1"]
    assert (await lent.get(server.url("/ok", "api.example.org"))).text == "ok"
    assert world.dialled == [PUBLIC, "127.0.0.1"]


async def test_a_name_without_an_address_is_a_failed_connection(lent, server, world):
    world.names["api.example.org"] = []
    with pytest.raises(httpx.ConnectError, match="has no address"):
        await lent.get(server.url("/ok", "api.example.org"))
    del world.names["api.example.org"]
    with pytest.raises(httpx.ConnectError, match="can't be resolved: no such name"):
        await lent.get(server.url("/ok", "api.example.org"))


async def test_a_lookup_that_hangs_is_a_connection_that_timed_out(kind, server, world, egress):
    async def hang(host, port):
        await asyncio.Event().wait()

    clients = Clients(world.network._replace(resolve=hang))
    url = server.url("/ok", "api.example.org")
    with pytest.raises(httpx.TimeoutException):
        await Lent(kind, clients, egress).get(url, seconds=0.05)
    assert world.dialled == []
    await clients.aclose()


async def test_a_sync_tool_may_send_a_body_piece_by_piece(clients, server, egress):
    def send():
        with clients.sync_client(egress, seconds=30) as client:
            pieces, length = iter([b"a", b"b"]), {"Content-Length": "2"}
            return client.post(server.url("/echo"), content=pieces, headers=length).json()["body"]

    assert await asyncio.to_thread(send) == "ab"


async def test_the_systems_own_lookup_gives_addresses():
    assert await resolve("127.0.0.1", 80) == ["127.0.0.1"]


async def test_a_host_header_is_judged_like_a_url(lent, server, egress):
    for other in ("other.example.org", "10.0.0.1", "api.example.org:x", "a, b", ""):
        with pytest.raises(EgressError):
            await lent.get(server.url("/echo"), headers={"Host": other})
    assert server.requests == []
    host = f"api.example.org:{server.port}"
    echoed = await lent.get(server.url("/echo"), headers={"Host": host})
    assert echoed.json()["headers"]["host"] == host


async def test_no_unix_socket_is_connected_to(world):
    anywhere = Egress(EgressPolicy.UNRESTRICTED_WITH_APPROVAL)
    with pytest.raises(NotImplementedError):
        await Guard(anywhere, world.network).connect_unix_socket("/run/docker.sock")


async def test_proxies_of_the_environment_are_not_used(lent, server, world, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert (await lent.get(server.url("/ok"))).text == "ok"
    assert world.dialled == ["127.0.0.1"]


# --- redirects ------------------------------------------------------------------------------------


async def test_a_redirect_is_not_followed_unless_the_tool_says_so(lent, server):
    response = await lent.get(server.url("/redirect?to=/ok"))
    assert (response.status_code, response.headers["Location"]) == (302, "/ok")


async def test_a_redirect_to_a_declared_place_is_followed(lent, server):
    away = server.url("/ok", "api.example.org")
    response = await lent.get(server.url(f"/redirect?to={away}"), follow_redirects=True)
    assert (response.text, str(response.url)) == ("ok", away)


@pytest.mark.parametrize(
    "to",
    [
        "https://evil.example.net/",
        f"http://{METADATA}/latest/meta-data/",
        "http://10.0.0.1/",
        "http://[::1]/",
        "http://2130706433/",
        "http://127.0.0.1:1/",
        "ftp://api.example.org/",
    ],
)
async def test_a_redirect_to_any_other_place_is_refused(lent, server, world, to):
    with pytest.raises(EgressError):
        await lent.get(server.url(f"/redirect?to={to}"), follow_redirects=True)
    assert world.looked_up == []
    assert world.dialled == ["127.0.0.1"], "for the first request"


async def test_a_redirect_to_a_declared_name_that_leads_elsewhere_is_refused(lent, server, world):
    world.names["api.example.org"] = iter([["127.0.0.1"], [METADATA]])
    path = f"/redirect?to={server.url('/ok', 'api.example.org')}"
    # The connection that was judged is kept for its own name only, so the name is asked again.
    server.redirect = lambda writer, asked: redirect_and_close(server, writer, asked)
    with pytest.raises(EgressError, match="metadata"):
        await lent.get(server.url(path, "api.example.org"), follow_redirects=True)
    assert world.looked_up == ["api.example.org"] * 2
    assert world.dialled == ["127.0.0.1"]


async def redirect_and_close(server, writer, asked):
    await server._send(writer, b"", "302 Found", Location=asked["to"], Connection="close")
    return False


# --- what servers do ------------------------------------------------------------------------------


async def test_a_server_that_hangs_is_a_timeout(lent, server):
    with pytest.raises(httpx.ReadTimeout):
        await lent.get(server.url("/hang"), seconds=0.1)
    assert (await lent.get(server.url("/ok"))).text == "ok"


async def test_a_server_that_is_late_is_waited_for_as_long_as_the_call_may_last(lent, server):
    with pytest.raises(httpx.ReadTimeout):
        await lent.get(server.url("/late"), seconds=0.1)
    asked = asyncio.create_task(lent.get(server.url("/late")))
    server.reached.clear()
    await server.reached.wait()
    server.go.set()
    assert (await asked).text == "late"


@pytest.mark.parametrize("path", ["/drop", "/drop-body", "/reset"])
async def test_a_connection_that_is_lost_is_an_error_of_httpx(lent, server, path):
    with pytest.raises(httpx.TransportError) as raised:
        await lent.get(server.url(path))
    assert not isinstance(raised.value, httpx.TimeoutException)
    assert not isinstance(raised.value, httpx.ConnectError), "the request had been sent"
    assert len(server.requests) == 1, "and is not sent again"


@pytest.mark.parametrize("path", ["/slow-headers", "/slow-body"])
async def test_a_thread_is_not_held_by_a_server_that_sends_a_byte_now_and_then(
    clients, server, egress, path
):
    lent = Lent("sync", clients, egress)
    with pytest.raises(httpx.ReadTimeout):
        await lent.get(server.url(path), seconds=0.3, timeout=None)
    await server.left.wait()
    assert (await lent.get(server.url("/ok"))).text == "ok"


@pytest.mark.parametrize("path", ["/slow-headers", "/slow-body", "/hang"])
async def test_a_task_that_is_cancelled_leaves_the_connections_usable(
    clients, server, egress, path
):
    async with clients.client(egress, seconds=30) as client:
        asked = asyncio.create_task(client.get(server.url(path)))
        await server.reached.wait()
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert (await client.get(server.url("/ok"))).text == "ok"


# --- how much -------------------------------------------------------------------------------------


async def test_an_endless_body_is_cut_off(lent, server):
    with pytest.raises(ResponseTooLargeError, match="larger than 100000 bytes"):
        await lent.get(server.url("/endless"))
    await server.left.wait()
    assert (await lent.get(server.url("/ok"))).text == "ok"


async def test_a_small_body_that_unpacks_to_a_large_one_is_cut_off(lent, server):
    with pytest.raises(ResponseTooLargeError):
        await lent.get(server.url("/bomb"))
    assert (await lent.get(server.url("/ok"))).text == "ok"


async def test_a_large_body_is_cut_off_on_its_way_through_a_redirect_too(lent, server):
    async def large(writer, asked):
        await server._send(writer, bytes(200_000), "302 Found", Location="/ok")

    server.redirect = large
    with pytest.raises(ResponseTooLargeError):
        await lent.get(server.url("/redirect"), follow_redirects=True)


@pytest.mark.parametrize("packed", ["", "&packed=1"])
async def test_a_body_of_just_the_limit_is_read(lent, server, packed):
    response = await lent.get(server.url(f"/size?bytes=100000{packed}"))
    assert len(response.content) == 100_000
    with pytest.raises(ResponseTooLargeError):
        await lent.get(server.url(f"/size?bytes=100001{packed}"))


async def test_a_streamed_body_is_bounded_like_any_other(clients, server, egress):
    seen = bytearray()

    async def read(response):
        async for piece in response.aiter_bytes():
            seen.extend(piece)

    async with clients.client(egress, seconds=30) as client:
        async with client.stream("GET", server.url("/endless")) as response:
            with pytest.raises(ResponseTooLargeError):
                await read(response)
        assert 0 < len(seen) <= 100_000
        async with client.stream("GET", server.url("/endless")) as response:
            await anext(response.aiter_bytes())
        assert (await client.get(server.url("/ok"))).text == "ok"


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_a_packed_body_is_unpacked_and_says_nothing_of_it(lent, server, content, coding):
    response = await lent.get(server.url(f"/packed?as={coding}"))
    assert response.content == content
    assert "Content-Encoding" not in response.headers
    assert "Content-Length" not in response.headers


async def test_an_encoding_that_was_not_asked_for_is_refused(lent, server):
    with pytest.raises(httpx.DecodingError, match="the content coding br; expected gzip, deflate"):
        await lent.get(server.url("/packed?as=br"))
    assert (await lent.get(server.url("/ok"))).text == "ok"


async def test_a_packed_body_that_is_not_whole_is_refused(lent, server):
    with pytest.raises(httpx.DecodingError, match="in the middle"):
        await lent.get(server.url("/half-packed"))


async def test_a_head_of_a_packed_body_keeps_what_it_says(lent, server):
    for coding in ("gzip", "br"):
        response = await lent.get(server.url(f"/packed?as={coding}"), method="HEAD")
        assert int(response.headers["Content-Length"]) > 0
        assert response.content == b""


@pytest.mark.parametrize(
    ("wanted", "asked"),
    [(None, "gzip, deflate"), ("br, zstd", "gzip, deflate"), ("identity", "identity")],
)
async def test_only_what_can_be_bounded_is_asked_for(lent, server, wanted, asked):
    headers = {"Accept-Encoding": wanted} if wanted else {}
    echoed = await lent.get(server.url("/echo"), headers=headers)
    assert echoed.json()["headers"]["accept-encoding"] == asked


# --- between calls --------------------------------------------------------------------------------


async def test_a_connection_is_kept_for_the_next_call(lent, server):
    for _ in range(3):
        assert (await lent.get(server.url("/ok"))).text == "ok"
    assert server.connections == 1


async def test_a_connection_is_not_shared_with_another_egress(lent, server):
    await lent.get(server.url("/ok"))
    await lent.get(server.url("/ok"), egress=allowlisted(f"127.0.0.1:{server.port}"))
    assert server.connections == 2


async def test_a_body_that_is_sent_arrives(lent, server):
    echoed = await lent.get(server.url("/echo"), method="POST", json={"case": "c1"})
    assert echoed.json()["body"] == '{"case":"c1"}'


async def test_cookies_do_not_travel_between_calls(lent, server):
    first = await lent.get(server.url("/cookie"), server.url("/echo"))
    assert first.json()["headers"]["cookie"] == "who=me", "within a call they do"
    second = await lent.get(server.url("/echo"))
    assert "cookie" not in second.json()["headers"]


async def test_a_call_that_ends_does_not_end_another(clients, server, egress):
    first = clients.client(egress, seconds=30)
    second = clients.client(egress, seconds=30)
    waiting = asyncio.create_task(second.get(server.url("/late")))
    await server.reached.wait()
    await first.get(server.url("/ok"))
    await first.aclose()
    await first.aclose()
    server.go.set()
    assert (await waiting).text == "late"
    with pytest.raises(RuntimeError, match="closed"):
        await first.get(server.url("/ok"))
    await second.aclose()


async def test_the_longest_unused_connections_are_given_up(kind, world, server):
    clients = Clients(world.network, keep=2)
    places = [allowlisted(f"127.0.0.1:{server.port}", f"n{n}.example.org") for n in range(3)]
    lent = Lent(kind, clients, places[0])
    for number in (0, 1, 0, 2, 0, 2):
        await lent.get(server.url("/ok"), egress=places[number])
    assert server.connections == 3, "those that are used are kept"
    await lent.get(server.url("/ok"), egress=places[1])
    assert server.connections == 4, "the one that was not used is not"
    await clients.aclose()


async def test_connections_in_use_are_never_given_up(world, server):
    clients = Clients(world.network, keep=1)
    places = [allowlisted(f"127.0.0.1:{server.port}", f"n{n}.example.org") for n in range(3)]
    held = clients.client(places[0], seconds=30)
    waiting = asyncio.create_task(held.get(server.url("/late")))
    await server.reached.wait()
    lent = Lent("async", clients, places[1])
    for place in (*places[1:], *places[1:]):
        await lent.get(server.url("/ok"), egress=place)
    server.go.set()
    assert (await waiting).text == "late"
    await held.aclose()
    await clients.aclose()


async def test_closing_ends_the_connections(lent, clients, server):
    await lent.get(server.url("/ok"))
    await (clients.aclose() if lent.is_async else asyncio.to_thread(clients.close))
    await server.ended.wait()
    await lent.get(server.url("/ok"))
    assert server.connections == 2


async def test_threads_share_sync_clients_without_harm(clients, server, egress):
    start = threading.Barrier(4)

    def ask(number):
        start.wait(30)
        with clients.sync_client(egress, seconds=30) as client:
            return client.post(server.url("/echo"), content=str(number)).json()["body"]

    answers = await asyncio.gather(*(asyncio.to_thread(ask, number) for number in range(4)))
    assert answers == [str(number) for number in range(4)]


async def test_the_connection_itself_is_not_handed_out(lent, server):
    assert "network_stream" not in (await lent.get(server.url("/ok"))).extensions


# --- certificates ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Of api.example.org, signed by itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "api.example.org")])
    now = dt.datetime.now(dt.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("api.example.org")]), False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "certificate.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path.write_bytes(private + signed.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.fixture
async def secure(server, certificate):
    """The same server, spoken to over TLS."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    async with type(server)().running(tls) as running:
        yield running


@pytest.fixture
def anywhere(secure):
    names = ("api.example.org", "other.example.org", "127.0.0.1")
    return allowlisted(*(f"{name}:{secure.port}" for name in names))


@pytest.fixture
async def trusting(kind, world, certificate, anywhere):
    """Clients that trust who signed the certificate."""
    clients = Clients(world.network, tls=ssl.create_default_context(cafile=certificate))
    yield Lent(kind, clients, anywhere)
    await clients.aclose()


async def test_a_certificate_is_checked_against_the_name_not_the_address(trusting, secure, world):
    assert (await trusting.get(secure.url("/ok", "api.example.org", "https"))).text == "ok"
    assert world.dialled == ["127.0.0.1"]
    for host in ("other.example.org", "127.0.0.1"):
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await trusting.get(secure.url("/ok", host, "https"))


async def test_a_certificate_is_not_checked_against_a_name_that_a_request_makes_up(
    trusting, secure
):
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        await trusting.get(
            secure.url("/ok", "other.example.org", "https"),
            extensions={"sni_hostname": "api.example.org"},
        )


async def test_a_certificate_of_an_unknown_authority_is_refused(kind, clients, anywhere, secure):
    lent = Lent(kind, clients, anywhere)
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        await lent.get(secure.url("/ok", "api.example.org", "https"))
    assert secure.requests == []


# --- right before the first byte ------------------------------------------------------------------


async def test_a_call_that_became_too_late_while_it_connected_sends_nothing(lent, server, world):
    def too_late():
        return "the lease is over" if world.dialled else ""

    with pytest.raises(TooLateError, match="the lease is over, so the request was not sent"):
        await lent.get(server.url("/ok"), method="POST", content=b"x" * 200_000, too_late=too_late)
    assert world.dialled == ["127.0.0.1"]
    assert server.requests == []


async def test_a_call_that_became_too_late_during_the_handshake_sends_nothing(
    trusting, secure, world
):
    url = secure.url("/ok", "api.example.org", "https")
    with pytest.raises(TooLateError):
        await trusting.get(url, too_late=lambda: "late" if world.dialled else "")
    assert secure.requests == []
    assert (await trusting.get(url)).text == "ok"


async def test_a_connection_that_is_kept_open_is_not_used_too_late(lent, server):
    reasons = iter(["", "late"])
    with pytest.raises(TooLateError):
        await lent.get(*[server.url("/ok")] * 2, too_late=lambda: next(reasons))
    assert (len(server.requests), server.connections) == (1, 1)


async def test_a_redirect_is_not_followed_too_late(kind, clients, egress, server):
    reasons = iter(["", "late"])
    lent = Lent(kind, clients, egress)
    with pytest.raises(TooLateError):
        await lent.get(
            server.url(f"/redirect?to={server.url('/ok')}"),
            follow_redirects=True,
            too_late=lambda: next(reasons),
        )
    assert len(server.requests) == 1


async def test_a_request_that_has_begun_is_sent_to_its_end(lent, server):
    reasons = iter([""])
    body = b"x" * 1_000_000
    echoed = await lent.get(
        server.url("/ok"), method="POST", content=body, too_late=lambda: next(reasons)
    )
    assert echoed.text == "ok"
    assert server.requests[0]["headers"]["content-length"] == "1000000"


def test_the_tls_context_is_made_before_the_first_request_and_shared(monkeypatch):
    made = []
    monkeypatch.setattr(
        httpx, "create_ssl_context", lambda: made.append(1) or ssl.create_default_context()
    )
    monkeypatch.setenv("SSL_CERT_FILE", "one of this test")
    Clients()
    Clients()
    assert made == [1]
