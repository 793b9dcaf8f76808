"""Which tenant's connections and credentials a call uses."""

import asyncio
from hashlib import sha256

import pytest

from counterseal.errors import NotSentError
from counterseal.upstream import upstreams as module
from tests.waiting import until

from .conftest import call_context, connected, program, text_of

SECRETS = {
    "token": "t0ken-of-all",
    "acme": {"token": "t0ken-of-acme"},
    "globex": {"token": "t0ken-of-globex"},
}


async def variable(upstream, name, tenant):
    return await upstream.call("env", {"name": name}, context=call_context(tenant))


def is_told(result, value):
    """Whether the program has this value, which it is asked for the hash of."""
    return result["structuredContent"]["hash"] == sha256(value.encode()).hexdigest()


@pytest.mark.slow
async def test_each_tenant_has_connections_with_its_own_credentials():
    settings = program(env={"TOKEN": "Bearer {secret:token}"})
    async with connected(settings, secrets=SECRETS) as upstream:
        acme, globex, other = await asyncio.gather(
            *(variable(upstream, "TOKEN", tenant) for tenant in ("acme", "globex", "other"))
        )
        assert is_told(acme, "Bearer t0ken-of-acme")
        assert is_told(globex, "Bearer t0ken-of-globex")
        assert is_told(other, "Bearer t0ken-of-all")
        # The program knows it; who calls its tools does not learn it from it.
        assert text_of(acme) == "Bearer [secret.token]"
        pids = {one["structuredContent"]["pid"] for one in (acme, globex, other)}
        assert len(pids) == 3
        again = await variable(upstream, "TOKEN", "acme")
        assert again["structuredContent"]["pid"] == acme["structuredContent"]["pid"]


async def test_tenants_share_a_connection_that_needs_no_credentials(monkeypatch):
    monkeypatch.setenv("COUNTERSEAL_SECRET_TOKEN", "not for everybody")
    async with connected(program(env={"PLAIN": "{{value}}"}), secrets=SECRETS) as upstream:
        acme = await variable(upstream, "PLAIN", "acme")
        globex = await variable(upstream, "COUNTERSEAL_SECRET_TOKEN", "globex")
        assert text_of(acme) == "{value}"
        assert text_of(globex) == "<unset>"
        assert acme["structuredContent"]["pid"] == globex["structuredContent"]["pid"]


async def test_a_secret_that_is_not_there_is_trouble_and_nothing_is_sent():
    settings = program(env={"TOKEN": "{secret:token}"})
    async with connected(settings, secrets={"acme": {"token": "t0ken-of-acme"}}) as upstream:
        assert "the secret token is not configured" in upstream.trouble
        with pytest.raises(NotSentError):
            await variable(upstream, "TOKEN", "globex")
        assert is_told(await variable(upstream, "TOKEN", "acme"), "t0ken-of-acme")


async def test_tools_are_listed_with_the_first_tenants_credentials():
    settings = program(env={"TOKEN": "{secret:token}"}, tenants=("acme",))
    async with connected(settings, secrets={"acme": {"token": "t0ken-of-acme"}}) as upstream:
        assert upstream.ready, upstream.trouble
        assert await upstream.definitions()


@pytest.mark.slow
async def test_a_tenants_own_connections_are_closed_when_unused(monkeypatch):
    monkeypatch.setattr(module, "_SWEEP", 0.01)
    monkeypatch.setattr(module, "_IDLE", 0.0)
    settings = program(env={"TOKEN": "{secret:token}"})
    async with connected(settings, secrets=SECRETS) as upstream:
        first = await variable(upstream, "TOKEN", "acme")
        await until(lambda: list(upstream._pools) == ["*"])
        second = await variable(upstream, "TOKEN", "acme")
        assert text_of(second) == text_of(first)
        assert second["structuredContent"]["pid"] != first["structuredContent"]["pid"]


async def test_a_credential_that_is_refused_is_asked_for_anew(website):
    tokens = ["t0ken-that-was", "t0ken-that-is"]
    settings = website("--token", tokens[1]).settings(
        headers={"Authorization": "Bearer {secret:t}"}
    )

    def resolve(tenant, name):
        return tokens.pop(0) if len(tokens) > 1 else tokens[0]

    async with connected(settings, secrets=resolve) as upstream:
        assert "401" in upstream.trouble
        await until(lambda: upstream.ready)


async def test_nothing_is_sent_to_an_upstream_that_was_closed():
    settings = program(env={"TOKEN": "{secret:token}"})
    async with connected(settings, secrets=SECRETS) as upstream:
        pass
    for tenant in ("acme", "globex"):
        with pytest.raises(NotSentError):
            await variable(upstream, "TOKEN", tenant)
