"""Log lines and tracebacks of a call, without its secrets.

`ACTIVE` is the mask of the call that runs in this context, and `SecretFilter` applies it to log
records; `install` puts one on the loggers of the HTTP client, which write whole URLs. A tool's own
logger (`call_logger`) carries its mask with it, so it may be used from any thread. A thread that a
tool starts by itself has no context of the call: other loggers do not know its mask there.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping, MutableMapping
from contextvars import ContextVar
from typing import Any, Final

from counterseal.masking import NO_MASK, Mask

__all__ = ["ACTIVE", "SecretFilter", "call_logger", "install", "masked_trace"]

ACTIVE: Final[ContextVar[Mask]] = ContextVar("counterseal_mask", default=NO_MASK)
"""The mask of the call that runs in this context."""

_TOOL = "counterseal.tool"
# A filter sees only what its own logger is given, so every name has to stand here.
_LOGGERS = (
    "httpx",
    "httpcore.connection",
    "httpcore.http11",
    "httpcore.http2",
    "httpcore.proxy",
    "httpcore.socks",
    "httpx2",
    "httpcore2.connection",
    "httpcore2.http11",
    "httpcore2.http2",
    "mcp.client.streamable_http",
    "counterseal",
    _TOOL,
)
_LONGEST_TRACE = 64 * 1024
_OWN = "counterseal_mask"
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({})))
_FORMATTER: Final = logging.Formatter()


class SecretFilter(logging.Filter):
    """Puts names in the place of the running call's secrets. Lets every record pass.

    For loggers and for handlers. Takes the place of `exc_info` with the masked text of it, because
    a handler that formats the exception anew, or shows its variables, would show the secret.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            masks = dict.fromkeys((vars(record).pop(_OWN, NO_MASK), ACTIVE.get()))
            for mask in filter(None, masks):
                _clean(record, mask)
        # What is logged may have any code behind it, and logging must not break a call.
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
    """An attribute of a record. An object that would be written with a secret becomes text."""
    clean = mask.data(value)
    return mask.text(str(clean)) if mask.found(f"{clean}\0{clean!r}") else clean


def _empty(record: logging.LogRecord) -> None:
    record.msg = "a line was left out: it could not be searched for secrets"
    record.args = record.exc_info = record.exc_text = record.stack_info = None
    for name in set(vars(record)) - _STANDARD:
        delattr(record, name)


def install() -> None:
    """Put a filter on every logger whose lines could carry a credential, where there is none."""
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
    """A logger for one call: its records say which, and are masked whatever thread writes them."""
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
    """The traceback with all that led to it, masked; of a very long one the end."""
    try:
        # Masked before it is cut: half a secret would not be found.
        return mask.text("".join(traceback.format_exception(error)))[-_LONGEST_TRACE:]
    except Exception:  # noqa: BLE001 - an exception's own code runs here, and may fail too
        return type(error).__name__
