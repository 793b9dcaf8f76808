"""Calls past the library over TLS: to who is who they say, and to nobody else."""

import asyncio
import contextlib
import datetime as dt
import ipaddress
import ssl

import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from counterseal.upstream.posting import Posting

from .test_at_once import ANSWER, MOST, RESULT, Server, sent, whole


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Of 127.0.0.1, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "upstream")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    now = dt.datetime.now(dt.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "certificate.pem"
    plain = serialization.NoEncryption()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain
    )
    path.write_bytes(private + signed.public_bytes(serialization.Encoding.PEM))
    return path


@contextlib.asynccontextmanager
async def securely(server, certificate):
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(certificate)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=own)
    url = f"https://127.0.0.1:{listening.sockets[0].getsockname()[1]}/mcp"
    async with listening, httpx2.AsyncClient(trust_env=False) as http:
        made = Posting(http, url, MOST, 5.0)
        try:
            yield made
        finally:
            made.close()
            if server.tasks:
                await asyncio.wait(server.tasks)


async def test_a_call_over_tls_is_answered_and_its_connection_kept(certificate):
    server = Server(whole(ANSWER), whole(ANSWER))
    async with securely(server, certificate) as made:
        made._wires._tls = ssl.create_default_context(cafile=certificate)
        assert (await sent(made))[0] == RESULT
        assert (await sent(made))[0] == RESULT
    assert server.connections == 1


async def test_nothing_is_sent_to_a_server_whose_certificate_nobody_signed(certificate):
    server = Server(whole(ANSWER))
    async with securely(server, certificate) as made:
        found, exchange = await sent(made)
        assert found is None
        assert not exchange.sent
        assert isinstance(exchange.came, httpx2.ConnectError)
        assert "certificate" in str(exchange.came).lower()
    assert not server.requests
