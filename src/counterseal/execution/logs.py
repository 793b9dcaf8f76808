"""Log lines and tracebacks of a call, without its secrets.

`ACTIVE` holds the mask of the call that runs in this context, and `SecretFilter` applies it to log
records; `install` adds the filter to the HTTP client's loggers, which write whole URLs. A tool's
own logger (`call_logger`) carries its mask, so it may be used from any thread. A thread that a tool
starts itself has no call context, so other loggers can't mask its records.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping, MutableMapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

from counterseal.errors import NotSentError, SecretUnavailableError
from counterseal.masking import NO_MASK, Mask

ACTIVE: Final[ContextVar[Mask]] = ContextVar("counterseal_mask", default=NO_MASK)
"""The mask of the call that runs in this context."""

_TOOL = "counterseal.tool"
_PACKAGE: Final = Path(__file__).parents[1]
# A filter sees only records of its own logger, so each logger is listed.
_LOGGERS = (
    *("httpx", "httpcore.connection", "httpcore.http11", "httpcore.http2", "httpcore.proxy"),
    *("httpcore.socks", "httpx2", "httpcore2.connection", "httpcore2.http11", "httpcore2.http2"),
    *("mcp.client.streamable_http", "counterseal", _TOOL),
)
_LONGEST_TRACE = 64 * 1024
_OWN = "counterseal_mask"
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({})))
_FORMATTER: Final = logging.Formatter()


class SecretFilter(logging.Filter):
    """Replaces the secrets of the running call by their names, and lets every record pass.

    For loggers and handlers. `exc_info` is replaced by its masked text, because a handler that
    formats the exception again, or shows its variables, would show the secret.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            masks = dict.fromkeys((vars(record).pop(_OWN, NO_MASK), ACTIVE.get()))
            for mask in filter(None, masks):
                _clean(record, mask)
        # Formatting a record may run any code, and logging must not break a call.
        except Exception:  # noqa: BLE001 - nothing of the record is known to be safe
            _empty(record)
        return True


def _clean(record: logging.LogRecord, mask: Mask) -> None:
    record.msg, record.args = mask.text(record.getMessage()), None
    if record.exc_info and not record.exc_text:
        record.exc_text = _FORMATTER.formatException(record.exc_info)
    record.exc_info = None
    for name, value in list(vars(record).items()):
        if name in {"exc_text", "stack_info"} or name not in _STANDARD:
            setattr(record, name, _shown(value, mask))


def _shown(value: Any, mask: Mask) -> Any:
    """Return a masked attribute of a record; an object that shows a secret becomes text."""
    clean = mask.data(value)
    return mask.text(str(clean)) if mask.found(f"{clean}\0{clean!r}") else clean


def _empty(record: logging.LogRecord) -> None:
    record.msg = "log line left out: it could not be searched for secrets"
    record.args = record.exc_info = record.exc_text = record.stack_info = None
    for name in set(vars(record)) - _STANDARD:
        delattr(record, name)


def install() -> None:
    """Add the filter to each logger whose lines may contain a credential."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(one, SecretFilter) for one in logger.filters):
            logger.addFilter(SecretFilter())


class _CallLog(logging.LoggerAdapter[logging.Logger]):
    def __init__(self, mask: Mask, known: Mapping[str, str]) -> None:
        super().__init__(logging.getLogger(_TOOL), known)
        self._mask = mask

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(kwargs.get("extra") or {}), **(self.extra or {}), _OWN: self._mask}
        return msg, kwargs


def call_logger(
    mask: Mask, *, tenant: str, run_id: str, call_id: str, tool: str
) -> logging.LoggerAdapter[logging.Logger]:
    """Return a logger for one call: its records name the call and are masked in any thread."""
    install()
    return _CallLog(
        mask,
        {
            "counterseal_tenant": tenant,
            "counterseal_run_id": run_id,
            "counterseal_call_id": call_id,
            "counterseal_tool": tool,
        },
    )


def masked_trace(error: BaseException, mask: Mask) -> str:
    """Return the masked traceback with its causes; only the end of a very long one.

    An error of ours that says by itself what an operator has to do has no traceback.
    """
    try:
        lines = traceback.format_exception(error)
        # A secret is missing or an upstream is down, as our own code has found out.
        if isinstance(error, SecretUnavailableError | NotSentError) and not error.__cause__:
            frames = traceback.extract_tb(error.__traceback__)
            if not frames or Path(frames[-1].filename).is_relative_to(_PACKAGE):
                lines = traceback.format_exception_only(error)
        # Masked before it is cut: half a secret would not be recognised.
        return mask.text("".join(lines))[-_LONGEST_TRACE:]
    except Exception:  # noqa: BLE001 - an exception's own code runs here, and may fail too
        return type(error).__name__
