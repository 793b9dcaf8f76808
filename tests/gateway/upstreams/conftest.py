"""Upstreams over every transport: a program, a server on loopback, a server in this process."""

import asyncio
import contextlib
import dataclasses
import subprocess
import threading
from pathlib import Path

import pytest

from counterseal.contract.tool_context import CLIENT, Context, RefusedError
from counterseal.testing import someone
from counterseal.upstream import Upstreams, UpstreamSettings
from tests.warm import warm

SERVER = Path(__file__).with_name("server.py")
LONG = 60.0
"""Seconds that nothing here takes on any machine."""


def program(*options, name="up", **settings):
    command = tuple(warm(SERVER, "--stdio", *options))
    return UpstreamSettings(name=name, command=command, **settings)


class Website:
    """The server over HTTP, in a process of its own that can be ended and started again."""

    def __init__(self, *options):
        self._options = options
        self.port = 0
        self.url = ""
        self._process = None
        self.start()

    def start(self):
        command = warm(SERVER, "--port", str(self.port), *self._options)
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.url = self._process.stdout.readline().strip()
        assert self.url, "the server did not start"
        self.port = int(self.url.split(":")[2].split("/")[0])

    def kill(self):
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()

    def settings(self, name="up", **settings):
        return UpstreamSettings(name=name, url=self.url, **settings)


@pytest.fixture
def website():
    """Makes a server over HTTP, with options."""
    with contextlib.ExitStack() as stack:

        def make(*options):
            site = Website(*options)
            stack.callback(lambda: site._process.poll() is None and site.kill())
            return site

        yield make


@pytest.fixture(scope="session")
def standing():
    """A server over HTTP for tests that do it no harm, by whether it is of an earlier revision."""
    with contextlib.ExitStack() as stack:
        made = {}
        lock = threading.Lock()

        def get(*options):
            with lock:
                if options not in made:
                    made[options] = Website(*options)
                    stack.callback(made[options].kill)
                return made[options]

        yield get


@contextlib.asynccontextmanager
async def connected(*settings, **how):
    """The first of these upstreams, when all of them are ready or have failed."""
    async with Upstreams(settings, **how) as upstreams:
        async with asyncio.timeout(LONG):
            await upstreams.settle()
        yield upstreams[settings[0].name]


def call_context(tenant="acme", *, told=None, **fields):
    """What a call of this tenant's is given; progress goes into the list `told`."""
    services = None if told is None else Services(told)
    principal = dataclasses.replace(someone(), tenant=tenant)
    return Context(
        principal=principal, run_id="run_1", call_id="call_1", services=services, **fields
    )


class Services:
    cancelled = False

    def __init__(self, told):
        self._told = told

    def progress(self, done, total, message):
        self._told.append((done, total, message))


class ClientInFront:
    """A client in front, that answers as it is told and remembers what it was asked."""

    def __init__(self, *can, traceparent=None, protocol_version="2026-07-28", **answers):
        self._can = can
        self._answers = answers
        self.traceparent = traceparent
        self.protocol_version = protocol_version
        self.asked = []
        self.logged = []
        self.waiting = asyncio.Event()

    def can(self, capability):
        return capability in self._can

    async def ask(self, method, params, *, name=""):
        self.asked.append((method, dict(params), name))
        self.waiting.set()
        answer = self._answers[method.partition("/")[0]]
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, RefusedError):
            raise answer
        return answer

    async def log(self, level, data, logger=None):
        self.logged.append((level, data))


@contextlib.contextmanager
def in_front(client):
    token = CLIENT.set(client)
    try:
        yield client
    finally:
        CLIENT.reset(token)


def text_of(result):
    return result["content"][0]["text"]
