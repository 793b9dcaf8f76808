"""From an exception to its one code: real ones, groups, rude ones, and what a contract says."""

import asyncio
import concurrent.futures
import http.client
import json
import smtplib
import socket
import sqlite3
import threading
import urllib.error
from email.message import Message
from email.utils import formatdate
from http import HTTPStatus
from time import time

import asyncpg
import httpcore
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from counterseal import errors
from counterseal.codes import FAILURES, Code
from counterseal.contract.declare import tool
from counterseal.execution.failures import (
    ROWS,
    SEVERITY,
    Fault,
    code_of,
    describe,
)

UNKNOWN = Fault(("builtins.BaseException",))


def code(error, contract=None):
    return code_of(describe(error), contract)


def kinds_of(cls):
    return describe(type("Probe", (cls,), {"__init__": lambda self: None})()).kinds[1:]


def contract(**mapping):
    @tool(
        effect="read_only",
        version="1.0.0",
        owner="tests",
        observability={"error_taxonomy_mapping": mapping},
    )
    def look() -> str:
        """A tool of a test."""

    return look.contract


# --- real exceptions ------------------------------------------------------------------------------


def caught(function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked at
        return error
    raise AssertionError("nothing was raised")


@pytest.fixture
def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture
def hangs_up():
    """The port of a server that takes a connection and closes it without a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            server.accept()[0].close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        thread.join(30)


def test_nobody_listens(closed_port):
    with httpx.Client(trust_env=False) as client:
        error = caught(client.get, f"http://127.0.0.1:{closed_port}/")
    assert isinstance(error, httpx.ConnectError)
    assert code(error) is Code.DEPENDENCY_UNAVAILABLE
    assert code(error.__cause__) is Code.DEPENDENCY_UNAVAILABLE
    assert isinstance(error.__cause__, httpcore.ConnectError)
    for connect in (smtplib.SMTP, http.client.HTTPConnection("127.0.0.1", closed_port).request):
        args = ("127.0.0.1", closed_port) if connect is smtplib.SMTP else ("GET", "/")
        error = caught(connect, *args)
        assert isinstance(error, ConnectionRefusedError)
        assert code(error) is Code.DEPENDENCY_UNAVAILABLE


async def test_no_database_listens(closed_port):
    with pytest.raises(OSError) as raised:  # noqa: PT011 - its class differs by platform
        await asyncpg.connect(host="127.0.0.1", port=closed_port, user="u", database="d")
    assert code(raised.value) is Code.DEPENDENCY_UNAVAILABLE


def test_a_web_server_hangs_up(hangs_up):
    with httpx.Client(trust_env=False) as client:
        error = caught(client.get, f"http://127.0.0.1:{hangs_up}/")
    assert isinstance(error, httpx.RemoteProtocolError | httpx.ReadError)
    assert code(error) is Code.DEPENDENCY_UNAVAILABLE


def test_a_mail_server_hangs_up(hangs_up):
    error = caught(smtplib.SMTP, "127.0.0.1", hangs_up)
    assert isinstance(error, smtplib.SMTPServerDisconnected | ConnectionError)
    assert code(error) is Code.DEPENDENCY_UNAVAILABLE


def test_a_locked_sqlite_file_is_busy_and_a_mistake_in_sql_is_not(tmp_path):
    with (
        sqlite3.connect(tmp_path / "a.db", timeout=0, isolation_level=None) as one,
        sqlite3.connect(tmp_path / "a.db", timeout=0, isolation_level=None) as two,
    ):
        one.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT NOT NULL UNIQUE)")
        one.execute("BEGIN IMMEDIATE")
        locked = caught(two.execute, "BEGIN IMMEDIATE")
        one.execute("INSERT INTO t VALUES (1, 'x')")
        taken = caught(one.execute, "INSERT INTO t VALUES (1, 'y')")
        twice = caught(one.execute, "INSERT INTO t VALUES (2, 'x')")
        missing = caught(one.execute, "INSERT INTO t VALUES (2, NULL)")
        mistaken = caught(one.execute, "SELECT * FROM nowhere")
        one.execute("COMMIT")
        one.execute("PRAGMA query_only = ON")
        read_only = caught(one.execute, "DELETE FROM t")
    one.close()
    two.close()
    assert type(locked) is type(mistaken) is type(read_only) is sqlite3.OperationalError
    assert code(locked) is Code.DEPENDENCY_UNAVAILABLE
    assert code(taken) is code(twice) is Code.STALE_STATE
    assert code(missing) is Code.SEMANTIC_INVALIDITY
    assert code(mistaken) is Code.UNKNOWN_ERROR
    assert code(read_only) is Code.PERMISSION_DENIED


def test_what_a_tool_does_wrong_itself_is_unknown():
    for error in (
        caught(int, "x"),
        caught({}.__getitem__, "x"),
        caught(open, "/nowhere/at/all"),
        caught(TypeAdapter(int).validate_python, "x"),
        RecursionError(),
        MemoryError(),
        SystemExit(1),
        asyncio.CancelledError(),
        concurrent.futures.CancelledError(),
        httpx.InvalidURL("no URL"),
        httpx.TooManyRedirects("round and round"),
    ):
        assert code(error) is Code.UNKNOWN_ERROR, error
    assert isinstance(caught(TypeAdapter(int).validate_python, "x"), ValidationError)


def test_an_answer_that_cannot_be_read():
    assert code(caught(json.loads, "<html>")) is Code.OBSERVATION_NORMALIZATION_FAIL
    broken = caught(httpx.Response, 200, headers={"content-encoding": "gzip"}, content=b"no gzip")
    assert isinstance(broken, httpx.DecodingError)
    assert code(broken) is Code.OBSERVATION_NORMALIZATION_FAIL


async def test_a_deadline_is_a_timeout():
    with pytest.raises(TimeoutError) as raised:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()
    assert code(raised.value) is Code.TIMEOUT


# --- how long to wait -----------------------------------------------------------------------------


def asked_to_wait(value):
    response = httpx.Response(429, headers={} if value is None else {"Retry-After": value})
    return describe(httpx.HTTPStatusError("", request=None, response=response)).retry_after


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        ("120", 120.0),
        ("1.5", 1.5),
        ("99999999999", 86_400.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 86_400.0),
        (None, None),
        ("", None),
        ("-1", None),
        ("nan", None),
        ("inf", None),
        ("soon", None),
        ("9" * 5000, None),
        ("Fri, 31 Dec 99999 23:59:59 GMT", None),
    ],
)
def test_retry_after_is_read_and_bounded(value, seconds):
    assert asked_to_wait(value) == seconds


def test_retry_after_may_be_a_date():
    wait = asked_to_wait(formatdate(time() + 3600, usegmt=True))
    assert 1800 < wait <= 3600


def test_a_date_in_the_headers_of_the_exception_itself_counts_too():
    headers = Message()
    headers["Retry-After"] = "7"
    with urllib.error.HTTPError("http://127.0.0.1/", 503, "", headers, None) as error:
        assert describe(error) == Fault(describe(error).kinds, status=503, retry_after=7.0)


# --- groups ---------------------------------------------------------------------------------------


def test_a_group_whose_leaves_agree_is_described_as_one_of_them():
    inner = ExceptionGroup("b", [ConnectionResetError("another message")])
    group = ExceptionGroup("a", [ConnectionResetError(), inner])
    assert describe(group) == describe(ConnectionResetError())
    assert code(group) is Code.DEPENDENCY_UNAVAILABLE


def test_a_group_whose_leaves_differ_is_as_bad_as_its_worst():
    egress, late = errors.EgressError("elsewhere"), TimeoutError()
    mixed = BaseExceptionGroup("a", [late, ExceptionGroup("b", [egress]), KeyboardInterrupt()])
    assert describe(mixed) == describe(egress)
    assert describe(ExceptionGroup("a", [late, KeyError()])) == describe(KeyError())


def test_a_group_in_which_groups_repeat_is_read_once():
    group = ExceptionGroup("leaf", [TimeoutError()])
    for _ in range(200):
        group = ExceptionGroup("twice", [group, group])
    assert code(group) is Code.TIMEOUT


def test_the_order_of_severity_names_all_that_the_table_can_say():
    assert {row.code for row in ROWS} == set(SEVERITY)
    assert len(SEVERITY) == len(set(SEVERITY))


# --- what a contract says -------------------------------------------------------------------------


class LedgerError(Exception):
    pass


class ClosedError(LedgerError, ConnectionError):
    pass


def test_a_contract_names_a_class_bare_or_with_its_module():
    qualified = f"{__name__}.LedgerError"
    assert code(LedgerError(), contract(LedgerError="STALE_STATE")) is Code.STALE_STATE
    assert code(LedgerError(), contract(**{qualified: "STALE_STATE"})) is Code.STALE_STATE
    assert code(LedgerError(), contract(OtherError="STALE_STATE")) is Code.UNKNOWN_ERROR


def test_the_nearest_class_that_a_contract_names_wins():
    mapping = {"LedgerError": "STALE_STATE", "Exception": "TIMEOUT", "ConnectionError": "TIMEOUT"}
    assert code(ClosedError(), contract(**mapping)) is Code.STALE_STATE
    nearer = {"ClosedError": "RATE_LIMITED", **mapping}
    assert code(ClosedError(), contract(**nearer)) is Code.RATE_LIMITED
    assert code(ValueError(), contract(**mapping)) is Code.TIMEOUT


def test_a_status_that_a_contract_names_wins_over_a_class():
    class GoneError(Exception):
        status_code = 404

    mapping = {"GoneError": "TIMEOUT", "404": "SEMANTIC_INVALIDITY"}
    assert code(GoneError(), contract(**mapping)) is Code.SEMANTIC_INVALIDITY
    assert code(GoneError(), contract(GoneError="TIMEOUT")) is Code.TIMEOUT
    assert code(GoneError(), contract(**{"503": "TIMEOUT"})) is Code.STALE_STATE


@pytest.mark.parametrize("claimed", ["SUCCESS", "PARTIAL_SUCCESS", "FINE", ""])
def test_a_contract_cannot_call_a_failure_a_success(claimed):
    mapping = {"TimeoutError": claimed, "408": claimed}
    assert code(TimeoutError(), contract(**mapping)) is Code.TIMEOUT
    assert code_of(Fault(("x.Y",), status=408), contract(**mapping)) is Code.TIMEOUT


# --- whatever is thrown at it ---------------------------------------------------------------------


class RudeError(Exception):
    """Whatever is looked at raises."""

    def __getattribute__(self, name):
        raise SystemExit(name)

    def __hash__(self):
        raise ValueError

    def __eq__(self, other):
        raise ValueError

    def __str__(self):
        raise ValueError

    __repr__ = __str__


class RudeMeta(type):
    def __getattribute__(cls, name):
        raise KeyboardInterrupt


class RudeResponse:
    @property
    def __class__(self):
        raise ValueError

    def __getattr__(self, name):
        return RudeResponse()


class RudeGroup(ExceptionGroup):
    @property
    def exceptions(self):
        return [self]


def test_describing_never_raises():
    rude = RudeError()
    assert describe(rude) == Fault(kinds_of(RudeError))
    answered = RuntimeError()
    answered.response = answered.headers = answered.recipients = RudeResponse()
    assert code(answered) is Code.UNKNOWN_ERROR
    unnamed = type.__call__(RudeMeta("Unnamed", (Exception,), {"__module__": rude}))
    assert describe(unnamed) == UNKNOWN
    assert code(RudeGroup("a", [TimeoutError()])) is Code.TIMEOUT
    refused = smtplib.SMTPRecipientsRefused({"a@example.org": "no tuple"})
    assert code(refused) is Code.SEMANTIC_INVALIDITY


anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(0, 700),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from(["40001", "23505", "57014", HTTPStatus.NOT_FOUND, b"429"]),
    st.builds(object),
)
jsons = st.recursive(
    anything,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


@given(jsons | st.dictionaries(st.sampled_from(Fault._fields), jsons))
def test_a_record_from_a_sandbox_is_never_trusted_to_make_sense(data):
    fault = Fault.from_record(data)
    assert all(type(kind) is str for kind in fault.kinds)
    assert code_of(fault) in FAILURES
    assert Fault.from_record(fault.record()) == fault


def test_a_record_that_makes_no_sense_is_an_unknown_fault():
    for garbage in (None, 7, "kinds", [], {}, {"kinds": None}, {"kinds": []}, {"kinds": [1]}):
        assert Fault.from_record(garbage) == UNKNOWN
    huge = {"kinds": ["x" * 10_000] * 10_000, "status": 10**50, "retry_after": 10**400}
    bounded = Fault.from_record(huge)
    assert len(bounded.kinds) * len(bounded.kinds[0]) < 20_000
    assert bounded.status is None
    assert bounded.retry_after == 86_400.0
