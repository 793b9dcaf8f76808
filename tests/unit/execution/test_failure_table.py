"""The table of failures: complete for the libraries it names, and total for everything else."""

import errno
import importlib
import importlib.util
import json
import smtplib
import socket
import ssl
import urllib.error
from email.message import Message
from http import HTTPStatus

import asyncpg
import asyncpg.exceptions
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterseal.codes import FAILURES, Code
from counterseal.execution.failures import (
    ROWS,
    SEVERITY,
    TABLE,
    Fault,
    code_of,
    describe,
)

UNKNOWN = Fault(("builtins.BaseException",))


def code(error):
    return code_of(describe(error))


def kinds_of(cls):
    return describe(type("Probe", (cls,), {"__init__": lambda self: None})()).kinds[1:]


# --- every class of every library -----------------------------------------------------------------

EXPECTED = {
    "builtins": {
        Code.TIMEOUT: "TimeoutError",
        Code.PERMISSION_DENIED: "PermissionError",
        Code.DEPENDENCY_UNAVAILABLE: "OSError ConnectionError BrokenPipeError BlockingIOError "
        "ConnectionAbortedError ConnectionRefusedError ConnectionResetError InterruptedError",
    },
    "asyncio": {Code.DEPENDENCY_UNAVAILABLE: "IncompleteReadError"},
    "concurrent.futures": {Code.DEPENDENCY_UNAVAILABLE: "BrokenExecutor"},
    "concurrent.futures.process": {Code.DEPENDENCY_UNAVAILABLE: "BrokenProcessPool"},
    "socket": {Code.DEPENDENCY_UNAVAILABLE: "gaierror herror"},
    "ssl": {
        Code.DEPENDENCY_UNAVAILABLE: "SSLError SSLCertVerificationError SSLEOFError "
        "SSLSyscallError SSLWantReadError SSLWantWriteError SSLZeroReturnError"
    },
    "http.client": {
        Code.DEPENDENCY_UNAVAILABLE: "BadStatusLine IncompleteRead LineTooLong RemoteDisconnected "
        "UnknownProtocol UnknownTransferEncoding"
    },
    "urllib.error": {Code.DEPENDENCY_UNAVAILABLE: "URLError ContentTooShortError"},
    "httpx": {
        Code.TIMEOUT: "TimeoutException ConnectTimeout ReadTimeout WriteTimeout PoolTimeout",
        Code.DEPENDENCY_UNAVAILABLE: "TransportError NetworkError ConnectError ReadError "
        "WriteError CloseError ProxyError ProtocolError RemoteProtocolError",
        Code.OBSERVATION_NORMALIZATION_FAIL: "DecodingError",
    },
    "httpcore": {
        Code.TIMEOUT: "TimeoutException ConnectTimeout ReadTimeout WriteTimeout PoolTimeout",
        Code.DEPENDENCY_UNAVAILABLE: "NetworkError ConnectError ReadError WriteError ProxyError "
        "RemoteProtocolError ConnectionNotAvailable",
    },
    "sqlite3": {
        Code.DEPENDENCY_UNAVAILABLE: "OperationalError",
        Code.SEMANTIC_INVALIDITY: "IntegrityError DataError",
    },
    "smtplib": {
        Code.DEPENDENCY_UNAVAILABLE: "SMTPServerDisconnected SMTPConnectError",
        Code.PERMISSION_DENIED: "SMTPAuthenticationError",
        Code.SEMANTIC_INVALIDITY: "SMTPRecipientsRefused",
    },
    "counterseal.errors": {
        Code.POLICY_VIOLATION: "EgressError FilesError",
        Code.DEPENDENCY_UNAVAILABLE: (
            "SecretUnavailableError IsolationError NotSentError AnswerLostError"
        ),
        Code.TIMEOUT: "TooLateError",
        Code.OBSERVATION_NORMALIZATION_FAIL: "ResponseTooLargeError",
        Code.SEMANTIC_INVALIDITY: "SpokenError NotDoneError ToolFailedError",
    },
}


def exported(library):
    """The exceptions that are a library's own, by the name under which it exports them."""
    module = importlib.import_module(library)
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, BaseException)
        and value.__module__.partition(".")[0] == library.partition(".")[0]
        and not issubclass(value, BaseExceptionGroup)
        and name == value.__name__
        and not name.startswith("_")
    }


@pytest.mark.parametrize("library", EXPECTED)
def test_each_class_of_a_library_has_the_code_that_is_expected_of_it(library):
    expected = {name: code for code, names in EXPECTED[library].items() for name in names.split()}
    classes = exported(library)
    assert classes
    assert expected.keys() <= classes.keys(), "expects a class that does not exist"
    for name, cls in classes.items():
        found = code_of(Fault(kinds_of(cls)))
        assert found is expected.get(name, Code.UNKNOWN_ERROR), name


POSTGRES = {
    "PostgresConnectionError": Code.DEPENDENCY_UNAVAILABLE,
    "TransactionRollbackError": Code.DEPENDENCY_UNAVAILABLE,
    "InsufficientResourcesError": Code.DEPENDENCY_UNAVAILABLE,
    "ObjectInUseError": Code.DEPENDENCY_UNAVAILABLE,
    "LockNotAvailableError": Code.DEPENDENCY_UNAVAILABLE,
    "OperatorInterventionError": Code.DEPENDENCY_UNAVAILABLE,
    "PostgresSystemError": Code.DEPENDENCY_UNAVAILABLE,
    "SnapshotTooOldError": Code.DEPENDENCY_UNAVAILABLE,
    "FDWUnableToEstablishConnectionError": Code.DEPENDENCY_UNAVAILABLE,
    "TargetServerAttributeNotMatched": Code.DEPENDENCY_UNAVAILABLE,
    "OutdatedSchemaCacheError": Code.DEPENDENCY_UNAVAILABLE,
    "DataError": Code.SEMANTIC_INVALIDITY,
    "IntegrityConstraintViolationError": Code.SEMANTIC_INVALIDITY,
    "WithCheckOptionViolationError": Code.SEMANTIC_INVALIDITY,
    "RestrictViolationError": Code.STALE_STATE,
    "ForeignKeyViolationError": Code.STALE_STATE,
    "UniqueViolationError": Code.STALE_STATE,
    "ExclusionViolationError": Code.STALE_STATE,
    "NoDataFoundError": Code.STALE_STATE,
    "ReadOnlySQLTransactionError": Code.PERMISSION_DENIED,
    "InvalidAuthorizationSpecificationError": Code.PERMISSION_DENIED,
    "InsufficientPrivilegeError": Code.PERMISSION_DENIED,
    "IdleInTransactionSessionTimeoutError": Code.TIMEOUT,
    "TransactionTimeoutError": Code.TIMEOUT,
    "QueryCanceledError": Code.TIMEOUT,
}


def test_each_class_of_asyncpg_has_the_code_of_its_nearest_expected_class():
    classes = exported("asyncpg.exceptions")
    assert len(classes) > 200
    assert POSTGRES.keys() <= classes.keys()
    for name, cls in classes.items():
        fault = Fault(kinds_of(cls), sqlstate=getattr(cls, "sqlstate", None))
        bases = (base.__name__ for base in cls.__mro__)
        expected = next((POSTGRES[base] for base in bases if base in POSTGRES), Code.UNKNOWN_ERROR)
        assert code_of(fault) is expected, name


@pytest.mark.parametrize(("library", "like"), [("httpx2", "httpx"), ("httpcore2", "httpcore")])
def test_a_successor_has_the_codes_of_what_it_succeeds(library, like):
    successors = exported(library)
    for name, cls in exported(like).items():
        assert code_of(Fault(kinds_of(successors[name]))) is code_of(Fault(kinds_of(cls))), name


def test_a_class_of_the_table_exists_in_its_library():
    looked_up = set()
    for kind in TABLE:
        module, _, name = kind.rpartition(".")
        if importlib.util.find_spec(module.partition(".")[0]) is not None:
            found = getattr(importlib.import_module(module), name)
            looked_up.add(module)
            assert f"{found.__module__}.{found.__qualname__}" == kind
    assert {"builtins", "httpx", "httpcore", "sqlite3", "smtplib", "ssl"} <= looked_up


# The classes of libraries that not everybody has, with their bases.
ELSEWHERE = {
    "aiohttp.client_exceptions.ServerTimeoutError aiohttp.client_exceptions.ServerConnectionError "
    "aiohttp.client_exceptions.ClientConnectionError builtins.TimeoutError": Code.TIMEOUT,
    "aiohttp.client_exceptions.ClientConnectorError aiohttp.client_exceptions.ClientOSError "
    "aiohttp.client_exceptions.ClientConnectionError builtins.OSError": Code.DEPENDENCY_UNAVAILABLE,
    "aiohttp.client_exceptions.InvalidURL aiohttp.client_exceptions.ClientError "
    "builtins.ValueError": Code.UNKNOWN_ERROR,
    "requests.exceptions.ConnectTimeout requests.exceptions.ConnectionError "
    "requests.exceptions.Timeout builtins.OSError": Code.TIMEOUT,
    "requests.exceptions.ProxyError requests.exceptions.ConnectionError "
    "builtins.OSError": Code.DEPENDENCY_UNAVAILABLE,
    "requests.exceptions.TooManyRedirects requests.exceptions.RequestException "
    "builtins.OSError": Code.UNKNOWN_ERROR,
    "requests.exceptions.JSONDecodeError requests.exceptions.InvalidJSONError "
    "requests.exceptions.RequestException builtins.OSError "
    "json.decoder.JSONDecodeError": Code.OBSERVATION_NORMALIZATION_FAIL,
    "psycopg.errors.ConnectionTimeout psycopg.OperationalError": Code.TIMEOUT,
    "psycopg.OperationalError psycopg.DatabaseError": Code.DEPENDENCY_UNAVAILABLE,
    "httpx2.ReadTimeout httpx2.TimeoutException httpx2.TransportError": Code.TIMEOUT,
    "httpcore2.ConnectError httpcore2.NetworkError": Code.DEPENDENCY_UNAVAILABLE,
}


@pytest.mark.parametrize(("kinds", "expected"), ELSEWHERE.items())
def test_classes_of_other_libraries_are_known_by_name(kinds, expected):
    fault = Fault((*kinds.split(), "builtins.Exception", "builtins.BaseException"))
    assert code_of(fault) is expected


# --- numbers --------------------------------------------------------------------------------------

STATUSES = {
    Code.SEMANTIC_INVALIDITY: (400, 413, 422),
    Code.PERMISSION_DENIED: (401, 403, 407),
    Code.BUDGET_EXHAUSTED: (402,),
    Code.STALE_STATE: (404, 409, 410, 412, 423, 428),
    Code.TIMEOUT: (408, 504, 524),
    Code.RATE_LIMITED: (425, 429),
    Code.POLICY_VIOLATION: (451,),
    Code.DEPENDENCY_UNAVAILABLE: (421, 424, 500, 502, 503, 507, 529, 599),
    Code.UNKNOWN_ERROR: (302, 304, 405, 406, 415, 418, 431, 501, 505),
}


@pytest.mark.parametrize(
    ("status", "expected"), [(status, code) for code in STATUSES for status in STATUSES[code]]
)
def test_a_status_decides(status, expected):
    request = httpx.Request("GET", "http://127.0.0.1/")
    with pytest.raises(httpx.HTTPStatusError) as raised:
        httpx.Response(status, request=request).raise_for_status()
    assert describe(raised.value).status == status
    assert code(raised.value) is expected
    url_error = urllib.error.HTTPError("http://127.0.0.1/", status, "", Message(), None)
    with url_error:
        assert describe(url_error).status == status
        assert code(url_error) is expected


def test_a_status_of_success_leaves_it_to_the_class():
    kind = "aiohttp.client_exceptions.ContentTypeError"
    assert code_of(Fault((kind,), status=200)) is Code.OBSERVATION_NORMALIZATION_FAIL


def test_any_exception_may_carry_a_response():
    class OwnError(Exception):
        response = httpx.Response(HTTPStatus.TOO_MANY_REQUESTS)

    class StatusError(Exception):
        status_code = HTTPStatus.NOT_FOUND

    assert code(OwnError()) is Code.RATE_LIMITED
    assert code(StatusError()) is Code.STALE_STATE


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (smtplib.SMTPDataError(451, b"try later"), Code.DEPENDENCY_UNAVAILABLE),
        (smtplib.SMTPDataError(552, b"too large"), Code.SEMANTIC_INVALIDITY),
        (smtplib.SMTPDataError(554, b"no"), Code.UNKNOWN_ERROR),
        (smtplib.SMTPSenderRefused(530, b"log in", "a@example.org"), Code.PERMISSION_DENIED),
        (smtplib.SMTPHeloError(500, b"what?"), Code.UNKNOWN_ERROR),
        (smtplib.SMTPConnectError(554, b"no service"), Code.DEPENDENCY_UNAVAILABLE),
        (smtplib.SMTPConnectError(550, b"go away"), Code.DEPENDENCY_UNAVAILABLE),
        (smtplib.SMTPAuthenticationError(535, b"no"), Code.PERMISSION_DENIED),
        (smtplib.SMTPAuthenticationError(454, b"later"), Code.DEPENDENCY_UNAVAILABLE),
        (smtplib.SMTPNotSupportedError("SMTPUTF8"), Code.UNKNOWN_ERROR),
        (
            smtplib.SMTPRecipientsRefused({"a@example.org": (450, b"busy")}),
            Code.DEPENDENCY_UNAVAILABLE,
        ),
        (
            smtplib.SMTPRecipientsRefused(
                {"a@example.org": (450, b"busy"), "b@example.org": (550, b"who?")}
            ),
            Code.SEMANTIC_INVALIDITY,
        ),
        (smtplib.SMTPRecipientsRefused({}), Code.SEMANTIC_INVALIDITY),
    ],
)
def test_a_reply_of_a_mail_server_is_no_http_status(error, expected):
    assert code(error) is expected


@pytest.mark.parametrize(
    ("sqlstate", "expected"),
    [
        ("40001", Code.DEPENDENCY_UNAVAILABLE),
        ("40P01", Code.DEPENDENCY_UNAVAILABLE),
        ("57014", Code.TIMEOUT),
        ("57P01", Code.DEPENDENCY_UNAVAILABLE),
        ("53300", Code.DEPENDENCY_UNAVAILABLE),
        ("23505", Code.STALE_STATE),
        ("23514", Code.SEMANTIC_INVALIDITY),
        ("22P02", Code.SEMANTIC_INVALIDITY),
        ("42501", Code.PERMISSION_DENIED),
        ("42601", Code.UNKNOWN_ERROR),
        ("P0001", Code.UNKNOWN_ERROR),
        ("ZZ999", Code.UNKNOWN_ERROR),
    ],
)
def test_a_sqlstate_decides_whichever_driver_brings_it(sqlstate, expected):
    assert code(asyncpg.PostgresError.new({"C": sqlstate, "M": "said the server"})) is expected
    with_class = Fault(("psycopg.OperationalError", *UNKNOWN.kinds), sqlstate=sqlstate)
    assert code_of(with_class) is expected


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.EACCES, Code.PERMISSION_DENIED),
        (errno.EPERM, Code.PERMISSION_DENIED),
        (errno.EROFS, Code.PERMISSION_DENIED),
        (errno.ETIMEDOUT, Code.TIMEOUT),
        (errno.ENOENT, Code.UNKNOWN_ERROR),
        (errno.EINVAL, Code.UNKNOWN_ERROR),
        (errno.ENOSPC, Code.DEPENDENCY_UNAVAILABLE),
        (errno.EMFILE, Code.DEPENDENCY_UNAVAILABLE),
        (errno.ENETUNREACH, Code.DEPENDENCY_UNAVAILABLE),
        (errno.ECONNREFUSED, Code.DEPENDENCY_UNAVAILABLE),
        (99_999, Code.DEPENDENCY_UNAVAILABLE),
    ],
)
def test_an_errno_refines_an_oserror(number, expected):
    class OwnError(OSError):
        """Python picks PermissionError and the like for OSError itself only."""

    assert code(OSError(number, "said the system")) is expected
    assert code(OwnError(number, "said the system")) is expected


def test_numbers_of_other_libraries_are_not_taken_for_an_errno():
    untrusted = ssl.SSLCertVerificationError(1, "certificate verify failed")
    assert untrusted.errno == errno.EPERM
    assert code(untrusted) is Code.DEPENDENCY_UNAVAILABLE
    # Where the resolver's numbers are positive, 8 is "no such host" and the system's ENOEXEC.
    assert code(socket.gaierror(8, "no such host")) is Code.DEPENDENCY_UNAVAILABLE


# --- everything has a code ------------------------------------------------------------------------

NEVER_FROM_AN_EXCEPTION = {
    Code.SYNTACTIC_PARSE_FAIL,
    Code.STRUCTURAL_VIOLATION,
    Code.TYPE_MISMATCH,
    Code.OUT_OF_BOUNDS,
    Code.CONFIRMATION_MISSING,
    Code.IDEMPOTENCY_CONFLICT,
    Code.SIGNATURE_MISMATCH,
    Code.COMPENSATION_REQUIRED,
    Code.COMPENSATION_FAILED,
}


def test_the_table_speaks_for_failures_only_and_not_for_the_gates():
    assert set(SEVERITY) == FAILURES - NEVER_FROM_AN_EXCEPTION
    assert TABLE["builtins.BaseException"] is Code.UNKNOWN_ERROR


def test_the_table_says_each_thing_once():
    said = [
        (scope, name)
        for row in ROWS
        for scope in ([row.scope] if row.scope in {"HTTP", "SMTP"} else row.scope.split())
        for name in row.names.split()
    ]
    assert len(said) == len(set(said))


LIBRARIES = ("builtins", "httpx", "sqlite3", "smtplib", "ssl", "socket", "http.client", "asyncio")
POOL = sorted(
    {cls for library in LIBRARIES for cls in exported(library).values()}, key=lambda c: c.__name__
)
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
ATTRIBUTES = ("status", "status_code", "smtp_code", "sqlstate", "pgcode", "response", "headers")


@st.composite
def exceptions(draw):
    cls = draw(st.sampled_from(POOL))
    for depth in range(draw(st.integers(0, 3))):
        bases = (cls, draw(st.sampled_from(POOL))) if draw(st.booleans()) else (cls,)
        try:
            cls = type(f"Own{depth}", bases, {})
        except TypeError:  # these two don't go together
            cls = type(f"Own{depth}", (cls,), {})
    said = draw(st.dictionaries(st.sampled_from([*ATTRIBUTES, "errno"]), anything, max_size=4))
    return type("Raised", (cls,), {"__init__": lambda self: None, **said})()


@given(exceptions())
def test_every_exception_has_exactly_one_code_and_it_is_a_failure(error):
    fault = describe(error)
    assert fault.kinds[-1] == "builtins.BaseException"
    found = code_of(fault)
    assert found in FAILURES - NEVER_FROM_AN_EXCEPTION
    assert code_of(fault) is found
    sent = json.loads(json.dumps(fault.record()))
    assert Fault.from_record(sent) == fault


@given(
    st.builds(
        Fault,
        st.lists(st.sampled_from(sorted(TABLE)) | st.text()).map(tuple),
        st.none() | st.integers(100, 599),
        st.none() | st.from_regex(r"[0-9A-Z]{5}", fullmatch=True),
        st.none() | st.integers(-(2**31), 2**31),
    )
)
def test_every_fault_has_exactly_one_code_and_it_is_a_failure(fault):
    assert code_of(fault) in FAILURES - NEVER_FROM_AN_EXCEPTION
