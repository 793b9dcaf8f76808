"""Log lines and tracebacks of a call: everything is there except its secrets."""

import asyncio
import base64
import io
import logging
import logging.handlers
import queue
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, quote_plus

import httpcore
import httpx
import pytest

from counterseal.errors import NotSentError, SecretUnavailableError
from counterseal.execution.logs import (
    ACTIVE,
    SecretFilter,
    call_logger,
    install,
    masked_trace,
)
from counterseal.execution.secrets import Credentials, from_environment
from counterseal.masking import NO_MASK, Mask

SECRET = 'correct "horse"/bättery+1'
MASK = Mask({"token": SECRET})
OTHER = "quite-another-secret"
CALL = {"tenant": "acme", "run_id": "run_1", "call_id": "call_1", "tool": "send"}
WRITTEN = [
    SECRET,
    quote(SECRET),
    quote(SECRET, safe=""),
    quote_plus(SECRET),
    SECRET.encode().hex(),
    base64.b64encode(SECRET.encode()).decode().rstrip("="),
    repr(SECRET.encode())[2:-1],
]


def assert_clean(text):
    assert [form for form in WRITTEN if form in text] == []
    assert "horse" not in text


@contextmanager
def during_a_call(mask=MASK):
    token = ACTIVE.set(mask)
    try:
        yield
    finally:
        ACTIVE.reset(token)


@pytest.fixture
def output():
    """What a handler on the root logger writes."""
    install()
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))
    root = logging.getLogger()
    loggers = [logging.getLogger(name) for name in ("httpx", "httpcore", "counterseal")]
    levels = [(logger, logger.level) for logger in (root, *loggers)]
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
    root.addHandler(handler)
    yield stream
    root.removeHandler(handler)
    for logger, level in levels:
        logger.setLevel(level)


def records_of(logger):
    """A handler that keeps the records of one logger."""
    kept = []

    class Keep(logging.Handler):
        def emit(self, record):
            kept.append(record)

    logger.addHandler(Keep())
    return kept


@pytest.fixture
def bare():
    """A logger of the user's own."""
    logger = logging.getLogger("users.own")
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    yield logger
    logger.handlers.clear()
    logger.filters.clear()


@pytest.fixture
def logger(bare):
    """The same with the filter on its handler."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(SecretFilter())
    bare.addHandler(handler)
    bare.written = stream.getvalue
    return bare


def fail(error, cause=None):
    raise error from cause


# --- the filter -----------------------------------------------------------------------------------


def test_message_and_arguments_are_rendered_and_masked(logger):
    with during_a_call():
        logger.info("sent %s with %s", {"key": SECRET}, quote(SECRET))
    assert logger.written() == "sent {'key': '[secret.token]'} with [secret.token]\n"


def test_a_secret_that_only_the_whole_line_holds_is_found(logger):
    with during_a_call():
        logger.info("sent %s%s", SECRET[:9], SECRET[9:])
    assert logger.written() == "sent [secret.token]\n"


def test_outside_of_a_call_a_record_is_left_alone(logger):
    kept = records_of(logger)
    arguments = ("a", object())
    logger.info("%s %s", *arguments)
    with during_a_call(NO_MASK):
        logger.info("%s %s", *arguments)
    assert [record.args for record in kept] == [arguments] * 2


def test_an_exception_is_written_masked_and_passed_to_no_other_handler(logger):
    kept = records_of(logger)
    with during_a_call():
        try:
            fail(ConnectionError(f"GET /?key={quote(SECRET)}"), KeyError(SECRET))
        except ConnectionError:
            logger.exception("failed", stack_info=True)
    assert_clean(logger.written())
    assert "ConnectionError: GET /?key=[secret.token]" in logger.written()
    assert "KeyError" in logger.written()
    assert "Stack (most recent call last)" in logger.written()
    assert kept[0].exc_info is None
    assert_clean(logging.Formatter().format(kept[0]))


def test_what_an_earlier_handler_left_in_the_record_is_masked(bare):
    bare.addHandler(logging.StreamHandler(io.StringIO()))
    later = logging.StreamHandler(io.StringIO())
    later.addFilter(SecretFilter())
    bare.addHandler(later)
    kept = records_of(bare)
    with during_a_call():
        try:
            fail(ValueError(SECRET))
        except ValueError:
            bare.exception("with %s", SECRET)
    assert kept[0].message == "with [secret.token]"
    assert_clean(kept[0].exc_text)


def test_attributes_of_the_users_are_masked(logger):
    kept = records_of(logger)
    error = ValueError(SECRET)
    harmless = object()
    extra = {
        "url": f"https://example.org/?k={quote(SECRET)}",
        "body": {"key": [SECRET, 1]},
        "error": error,
        "nested": [error],
        "count": 3,
        "thing": harmless,
    }
    with during_a_call():
        logger.info("sent", extra=extra)
    assert kept[0].url == "https://example.org/?k=[secret.token]"
    assert kept[0].body == {"key": ["[secret.token]", 1]}
    assert kept[0].error == "[secret.token]"
    assert_clean(str(kept[0].nested))
    assert (kept[0].count, kept[0].thing) == (3, harmless)


class Unprintable:
    def __str__(self):
        raise RuntimeError(SECRET)

    __repr__ = __str__


@pytest.mark.parametrize(
    ("message", "arguments", "extra"),
    [
        ("%d", (SECRET,), {}),
        ("%s %s", (SECRET,), {}),
        (Unprintable(), (), {}),
        ("%s", (Unprintable(),), {}),
        ("fine", (), {"key": SECRET, "thing": Unprintable()}),
        ("fine", (), {"counterseal_mask": SECRET}),
        ("fine", (), {"counterseal_mask": [SECRET]}),
    ],
)
def test_a_line_that_can_not_be_searched_is_left_out(logger, message, arguments, extra):
    kept = records_of(logger)
    with during_a_call():
        try:
            fail(ValueError(SECRET))
        except ValueError:
            logger.exception(message, *arguments, extra=extra)
    assert logger.written() == "log line left out: it could not be searched for secrets\n"
    assert_clean(str(vars(kept[0])))


def test_a_queue_carries_only_what_is_masked(bare):
    bare.addFilter(SecretFilter())
    records = queue.Queue()
    bare.addHandler(logging.handlers.QueueHandler(records))
    stream = io.StringIO()
    listener = logging.handlers.QueueListener(records, logging.StreamHandler(stream))
    with during_a_call():
        bare.warning("key %s", SECRET)
    listener.start()
    listener.stop()
    assert stream.getvalue() == "key [secret.token]\n"


# --- the HTTP client ------------------------------------------------------------------------------


class Echo(BaseHTTPRequestHandler):
    """Answers with what it was sent, in its headers too."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("X-Path", self.path)
        self.send_header("X-Authorization", self.headers.get("Authorization", ""))
        self.end_headers()

    def log_message(self, *arguments):
        pass


@pytest.fixture
def url():
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}/path"
        server.shutdown()
        serving.join()


REQUEST = {"params": {"key": SECRET, "n": "1"}, "auth": ("user", SECRET)}


def test_every_logger_of_the_client_has_the_filter_once():
    install()
    install()
    names = {"counterseal", "counterseal.tool"}
    for package in (httpx, httpcore):
        for file in Path(package.__file__).parent.rglob("*.py"):
            names.update(re.findall(r"""getLogger\(["'](.+?)["']\)""", file.read_text()))
    assert {"httpx", "httpcore.connection", "httpcore.http11"} < names
    for name in names:
        filters = logging.getLogger(name).filters
        assert len([one for one in filters if isinstance(one, SecretFilter)]) == 1, name


async def test_no_line_of_an_async_client_holds_a_secret(output, url):
    with during_a_call():
        async with httpx.AsyncClient(trust_env=False) as client:
            response = await client.get(url, **REQUEST)
    # The secret went over the wire; it is only the log that does not have it.
    assert quote_plus(SECRET) in response.headers["X-Path"].replace("%20", "+")
    assert f"httpx INFO HTTP Request: GET {url}?key=[secret.token]&n=1" in output.getvalue()
    assert "httpcore.http11 DEBUG receive_response_headers.complete" in output.getvalue()
    assert output.getvalue().count("[secret.token]") >= 3
    assert_clean(output.getvalue())


async def test_no_line_of_a_client_in_a_thread_holds_a_secret(output, url):
    def fetch():
        with httpx.Client(trust_env=False) as client:
            client.get(url, **REQUEST)

    with during_a_call():
        await asyncio.to_thread(fetch)
    assert f"httpx INFO HTTP Request: GET {url}?key=[secret.token]&n=1" in output.getvalue()
    assert_clean(output.getvalue())


async def test_calls_at_the_same_time_have_masks_of_their_own(output, url):
    async def call(mask, secret):
        with during_a_call(mask):
            async with httpx.AsyncClient(trust_env=False) as client:
                await client.get(url, params={"key": secret})

    await asyncio.gather(
        call(MASK, SECRET), call(Mask({"other": OTHER}), OTHER), call(NO_MASK, "public")
    )
    assert_clean(output.getvalue())
    assert OTHER not in output.getvalue()
    for shown in ("[secret.token]", "[secret.other]", "public"):
        assert f'?key={shown} "HTTP' in output.getvalue()


# --- a call's own logger --------------------------------------------------------------------------


def test_a_calls_logger_masks_in_any_thread(output):
    log = call_logger(MASK, **CALL)
    thread = threading.Thread(target=lambda: log.warning("key %s", SECRET))
    thread.start()
    thread.join()
    assert output.getvalue() == "counterseal.tool WARNING key [secret.token]\n"


def test_a_calls_logger_masks_in_another_calls_context_too(output):
    log = call_logger(MASK, **CALL)
    with during_a_call(Mask({"other": OTHER})):
        log.info("%s and %s", SECRET, OTHER)
    assert output.getvalue() == "counterseal.tool INFO [secret.token] and [secret.other]\n"


def test_a_calls_logger_masks_exceptions(output):
    try:
        fail(ValueError(SECRET))
    except ValueError:
        call_logger(MASK, **CALL).exception("failed")
    assert "ValueError: [secret.token]" in output.getvalue()
    assert_clean(output.getvalue())


def test_a_record_says_which_call_it_is_of(caplog):
    caplog.set_level(logging.INFO, "counterseal")
    call_logger(MASK, **CALL).info("sent", extra={"count": 3, "counterseal_tool": "forged"})
    (record,) = caplog.records
    told = {key: value for key, value in vars(record).items() if key.startswith("counterseal_")}
    assert told == {
        "counterseal_tenant": "acme",
        "counterseal_run_id": "run_1",
        "counterseal_call_id": "call_1",
        "counterseal_tool": "send",
    }
    assert record.count == 3
    assert record.funcName == "test_a_record_says_which_call_it_is_of"


def test_a_call_without_secrets_logs_as_ever(output):
    call_logger(NO_MASK, **CALL).info("sent %s", "it")
    assert output.getvalue() == "counterseal.tool INFO sent it\n"


# --- tracebacks -----------------------------------------------------------------------------------


def raised(error, cause=None):
    try:
        fail(error, cause)
    except BaseException as caught:  # noqa: BLE001 - whatever was asked for
        return caught


def test_a_trace_holds_the_whole_chain_and_no_secret():
    group = ExceptionGroup(f"two of {SECRET}", [KeyError(SECRET), ValueError("plain")])
    group.add_note(f"note {quote(SECRET)}")
    trace = masked_trace(raised(ConnectionError(repr(SECRET)), raised(group)), MASK)
    assert_clean(trace)
    for part in ("ConnectionError", "KeyError", "plain", "note [secret.token]", "direct cause"):
        assert part in trace
    assert "in fail" in trace


async def test_a_secret_that_is_not_configured_is_a_sentence_and_no_traceback():
    with pytest.raises(SecretUnavailableError) as missing:
        await Credentials(from_environment).get("acme", "api_key")
    (line,) = masked_trace(missing.value, MASK).splitlines()
    assert "the secret api_key is not configured; set COUNTERSEAL_SECRET_API_KEY" in line

    def broken(tenant, name):
        return {}[name]

    with pytest.raises(SecretUnavailableError) as bug:
        await Credentials(broken).get("acme", "api_key")
    assert "in broken" in masked_trace(bug.value, MASK), "the operator's own code has a bug"
    own = masked_trace(raised(NotSentError("no line")), MASK)
    assert "in fail" in own, "a tool's own error has its place"


def test_a_long_trace_keeps_its_end_and_no_half_of_a_secret():
    for padding in range(0, 2 * len(SECRET), 5):
        error = ValueError("x" * padding + f"{SECRET} " * 9_000 + "the end")
        trace = masked_trace(error, MASK)
        assert len(trace) == 64 * 1024
        assert trace.endswith("the end\n")
        assert_clean(trace)
        assert SECRET[-8:] not in trace


def test_an_error_that_can_not_be_shown_is_named():
    class Broken(Exception):  # noqa: N818 - a name that no list of ours holds
        @property
        def __notes__(self):
            raise RuntimeError(SECRET)

        def __str__(self):
            raise RuntimeError(SECRET)

    trace = masked_trace(raised(Broken()), MASK)
    assert "Broken" in trace
    assert_clean(trace)
