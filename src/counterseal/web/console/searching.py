"""What somebody asked for in the URL, read: filters of calls and events, and times. Pure."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from math import ceil, floor
from typing import Any, Final

from counterseal.views import CallSearch
from counterseal.views.base import window_seconds

__all__ = ["call_search", "event_search", "field_time", "moment", "span_asked"]

Asked = Callable[[str], str | None]
_HOW: Final = "write a time such as 2026-03-01T14:30, in UTC"


def moment(name: str, text: str | None) -> float | None:
    """A time as forms and addresses write it; without a zone it is UTC. ValueError names it."""
    if text is None:
        return None
    try:
        read = datetime.fromisoformat(text)
        return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise ValueError(f"{name}: {_HOW}") from None


def field_time(seconds: float | None, *, up: bool = False) -> str:
    """The same for a form's field, to the minute: rounded down, or up where that takes in more."""
    if seconds is None:
        return ""
    minutes = ceil(seconds / 60) if up else floor(seconds / 60)
    return f"{datetime.fromtimestamp(minutes * 60, UTC):%Y-%m-%dT%H:%M}"


def span_asked(asked: Asked, now: float) -> tuple[float | None, float | None]:
    """From when until when: `since` and `until`, or `within`, such as 24h, up to now."""
    since, until = moment("since", asked("since")), moment("until", asked("until"))
    within = asked("within")
    if since is None and within is not None:
        since = (now if until is None else until) - window_seconds(within)
    return since, until


def call_search(asked: Asked, now: float) -> CallSearch:
    """ValueError for what no search can be made of."""
    since, until = span_asked(asked, now)
    return CallSearch(
        tool=asked("tool"),
        agent=asked("agent"),
        user=asked("user"),
        run=asked("run"),
        code=asked("code"),
        metric=asked("metric"),
        part=asked("part"),
        since=since,
        until=until,
        cursor=asked("cursor"),
    ).checked()


def event_search(asked: Asked, now: float) -> dict[str, Any]:
    """What the desk's `search` takes. `type` is one or several, with commas between them."""
    since, until = span_asked(asked, now)
    types = [one for one in (asked("type") or "").split(",") if one]
    return {
        "call_id": asked("call"),
        "run_id": asked("run"),
        "tool": asked("tool"),
        "types": types or None,
        "since": since,
        "until": until,
        "cursor": asked("cursor"),
    }
