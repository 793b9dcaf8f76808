"""What a round is made of, all of it drawn from its seed: who is struck, where, and how.

A round is the same whenever its seed, point and store are; only the machine's timing is not.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any, Final

from .tools import KEYED, UNDO

__all__ = ["POINTS", "Operation", "Plan", "Strike", "draw"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """How somebody is struck down."""

    by: str = "site"
    """`site`: a failpoint; `server`: the effects server; `clock`: at any moment."""
    site: str = ""
    nth: int = 1
    after: float = 0.0
    stop: float = 0.0
    """For how many seconds it is stopped, instead of killed."""
    step: float = 0.0
    """By how many seconds a clock is set, instead: the `database`'s alone, or all of them."""
    plan: tuple[tuple[str, Any], ...] = ()
    """For the effects server."""

    @property
    def arms(self) -> dict[str, Any]:
        return {"site": self.site, "nth": self.nth, "after": self.after, "stop": self.stop}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    tool: str
    clients: int

    @property
    def approved(self) -> bool:
        return self.tool.startswith("notify")

    @property
    def keyed(self) -> bool:
        return self.tool in KEYED


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    seed: int
    point: str
    store: str
    operations: tuple[Operation, ...]
    """The first is the one that is aimed at."""
    strike: Strike | None
    """At the worker that has the first client of every operation."""
    helpers: tuple[Strike | None, Strike | None]
    """At those who look after what it leaves behind."""
    outage: str = ""
    """What befalls the database: `restart` or `locked`; for how long is `outage_for`."""
    outage_for: float = 0.0
    compensates: bool = False
    every: float = 0.05
    """How often the others look for something to do."""
    late: float = 0.0
    """How many seconds they begin later: until then clients are on their own."""

    @property
    def tenant(self) -> str:
        return f"{self.store}_{self.point}_{self.seed}"

    @property
    def run_id(self) -> str:
        return f"run_{self.seed}"

    def record(self) -> dict[str, Any]:
        return asdict(self)


def _site(site: str, **more: Any) -> Strike:
    return Strike(site=site, **more)


def _server(**plan: Any) -> Strike:
    return Strike(by="server", plan=tuple(plan.items()))


_LOST: Final = _server(kill="before", perform=False)
"""The request got there, and was lost."""
_SENT: Final = (
    _server(kill="before"),
    _server(kill="before", delay=0.1),
    _LOST,
)
_EXECUTED: Final = (_server(kill="after"),)
_WAYS: Final[dict[str, tuple[Strike, ...]]] = {
    "received": (_site("admit.before"),),
    "reserved": (_site("admit.after"), _site("tool.before")),
    "sent": _SENT,
    "executed_unread": _EXECUTED,
    "answered_unsettled": (_site("tool.after"), _site("settle.before")),
    "settled_unanswered": (_site("settle.after"),),
    "approval_spent": (_site("admit.after"), _site("tool.before"), _LOST),
    "mid_compensation": (
        _site("due.after"),
        _site("admit.before"),
        _site("admit.after"),
        _site("tool.before"),
        *_SENT,
        *_EXECUTED,
        _site("tool.after"),
        _site("settle.before"),
        _site("settle.after"),
        _site("finish.before"),
        _site("finish.after"),
    ),
    "takeover": (_site("admit.after"), *_SENT, *_EXECUTED, _site("settle.before")),
    "database": (),
    "stalled": (
        _server(kill="before", stop=0.9),
        _server(kill="after", stop=0.9),
        _site("admit.after", stop=2.2),
        _site("tool.before", stop=2.2),
        _site("tool.after", stop=0.9),
        _site("settle.before", stop=0.9),
        _site("settle.after", stop=0.9),
    ),
    "clock_set": (Strike(by="clock"),),
    "anywhere": (Strike(by="clock"),),
}
POINTS: Final = tuple(_WAYS)
"""The ten of the promise, and a worker that sleeps too long, clocks that are set, any moment."""
_TAKING_OVER: Final = (
    "orphans.after",
    "tool.before",
    "tool.after",
    "settle.before",
    "settle.after",
    "due.after",
    "finish.before",
    "finish.after",
)
_PLAIN: Final = ("charge_keyed", "charge_http", "charge_read_back", "send_escalate")
_NOTICES: Final = ("notify_read_back", "notify_escalate")


def draw(seed: int, point: str, store: str) -> Plan:
    """The round of a seed."""
    chance = random.Random(f"{seed}/{point}/{store}")
    ways = _WAYS[point]
    strike = chance.choice(ways) if ways else None
    aimed = _aimed(chance, point, strike)
    others = [chance.choice(_PLAIN + _NOTICES) for _ in range(chance.choice((0, 0, 1, 2, 3)))]
    operations = [Operation(tool=tool, clients=chance.randint(1, 3)) for tool in (aimed, *others)]
    helpers: tuple[Strike | None, Strike | None] = (None, None)
    if point == "takeover":
        first, second = (_site(chance.choice(_TAKING_OVER)) for _ in range(2))
        helpers = (first, second if chance.random() < 0.4 else None)
    outage, lasts = "", 0.0
    if point == "database":
        strike, outage, lasts = _outage(chance, store)
    if strike is not None and strike.by == "clock":
        strike = _step(chance) if point == "clock_set" else _any_moment(chance)
    elif strike is not None and _may_wait(strike, point) and len(operations) > 1:
        strike = Strike(site=strike.site, after=strike.after, nth=chance.randint(1, 2))
    return Plan(
        seed=seed,
        point=point,
        store=store,
        operations=tuple(operations),
        strike=strike,
        helpers=helpers,
        outage=outage,
        outage_for=lasts,
        compensates=point == "mid_compensation",
        every=chance.uniform(0.02, 0.08),
        late=chance.choice((0.0, 0.0, 1.8)),
    )


def _may_wait(strike: Strike, point: str) -> bool:
    """Whether it may as well be another operation that is struck."""
    return strike.by == "site" and not strike.stop and point not in ("mid_compensation", "database")


def _aimed(chance: random.Random, point: str, strike: Strike | None) -> str:
    if point == "mid_compensation":
        return chance.choice(tuple(UNDO))
    if point == "approval_spent":
        return chance.choice(_NOTICES)
    if point == "clock_set" and chance.random() < 0.7:
        return chance.choice(("charge_read_back", "notify_read_back"))
    tools = _PLAIN + _NOTICES
    if strike is not None and strike.site.startswith("tool."):
        tools = tuple(tool for tool in tools if tool != "charge_http")  # it has no function
    return chance.choice(tools)


def _any_moment(chance: random.Random) -> Strike:
    """While the destination answers at once, takes its time, or hangs up."""
    how: dict[str, Any] = chance.choice(({}, {}, {"delay": 0.6}, {"hang_up": True}))
    most = 0.8 if how else 0.04
    return Strike(by="clock", after=chance.uniform(0, most), plan=tuple(how.items()))


def _step(chance: random.Random) -> Strike:
    """While a request is on its way or lost; mostly by more than lease and timeout."""
    lost = {"kill": "before", "perform": False}
    how: dict[str, Any] = chance.choice(
        ({"delay": 0.6}, {"delay": 0.6}, {"hang_up": True}, {"kill": "before", "delay": 0.4}, lost)
    )
    return Strike(
        by="clock",
        site=chance.choice(("", "database")),
        after=chance.uniform(0.03, 0.3),
        step=chance.choice((3.0, 3.0, 60.0, -1.5)),
        plan=tuple(how.items()),
    )


def _outage(chance: random.Random, store: str) -> tuple[Strike | None, str, float]:
    if store == "postgres":
        dies = chance.choice((None, None, "admit.after", "tool.after", "settle.before"))
        return dies and _site(dies), "restart", chance.uniform(0, 0.3)
    if chance.random() < 0.4:
        return None, "locked", chance.uniform(0, 0.4)
    after = chance.choice((0.0, chance.uniform(0, 0.0005), chance.uniform(0, 0.004)))
    return Strike(site="commit", nth=chance.randint(1, 4), after=after), "", 0.0
