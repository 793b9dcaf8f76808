"""Money: the amount that a call spends, and limits for amounts. Exact, and by currency.

Amounts are whole millionths of a currency's unit, so that sums are exact; 12.34 EUR is 12,340,000.
Limits are written in units, as numbers or decimal texts: `{"day": {"EUR": 5000}}`. Two currencies
are never added up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from counterseal.canonical import at
from counterseal.errors import CountersealError

CURRENCY: Final = re.compile("[A-Z]{3}")
CONTRACT_WINDOWS: Final = ("call", "run", "day", "agent", "resource")
"""What a limit of a contract is for: each call of the tool, each run, day, agent or resource."""
RUN_WINDOWS: Final = ("call", "run")
TENANT_WINDOWS: Final = (*CONTRACT_WINDOWS, "tool")
"""All but `call` and `run` are for a day, in UTC. `agent`, `resource` and `tool` are limits for
each one; `tool:refund` is for that tool alone."""
_NAMED: Final = ("agent", "resource", "tool")
_PLACES: Final = 6
_MOST: Final = 10**18
"""More than any counter may hold, in millionths."""
_DECIMAL: Final = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?")
_DECIMALS: Final = {
    **dict.fromkeys(("BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG", "RWF"), 0),
    **dict.fromkeys(("UGX", "VND", "VUV", "XAF", "XOF", "XPF"), 0),
    **dict.fromkeys(("BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"), 3),
}
"""How many digits follow the point in currencies where it is not two (ISO 4217)."""


def from_smallest(amount: int, currency: str) -> int:
    """Return an amount in a currency's smallest unit, such as cents, in millionths."""
    return amount * int(10 ** (_PLACES - _DECIMALS.get(currency, 2)))


def money_text(millionths: int, currency: str) -> str:
    """Return an amount as people read it: `1,234.50 EUR`."""
    whole, rest = divmod(abs(millionths), 10**_PLACES)
    digits = f"{rest:0{_PLACES}}"
    kept = max(_DECIMALS.get(currency, 2), len(digits.rstrip("0")))
    sign = "-" if millionths < 0 else ""
    return f"{sign}{whole:,}{'.' if kept else ''}{digits[:kept]} {currency}"


@lru_cache(maxsize=1024)
def millionths(units: str) -> int:
    """Return a limit in millionths. It was checked when it was declared."""
    return int(Decimal(units).scaleb(_PLACES))


# --- what a call spends ---------------------------------------------------------------------------


class AmountError(CountersealError):
    """The amount or currency of a call can't be used. `place` is its JSON Pointer."""

    def __init__(self, place: str, message: str) -> None:
        self.place = place
        super().__init__(message)


class Amount(NamedTuple):
    """An amount in millionths of a currency's unit."""

    millionths: int
    currency: str

    def __str__(self) -> str:
        return money_text(*self)


class Spends(BaseModel):
    """Which argument is the amount that a call spends, and in which currency."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    amount: str = Field(pattern=r"^(/([^~/]|~[01])*)+$")
    """JSON Pointer to the amount in the arguments: a number, or a decimal number as text."""
    scale: int = Field(default=0, strict=True, ge=0, le=_PLACES)
    """How many decimals the amount leaves out: 2 for cents."""
    currency: str = Field(pattern=r"^([A-Z]{3}|(/([^~/]|~[01])*)+)$")
    """The three letters of a currency, or a JSON Pointer to them in the arguments."""

    def of(self, arguments: Mapping[str, Any]) -> Amount:
        """Return what a call with these arguments spends. Raises AmountError if that is unclear."""
        currency = self.currency
        if currency.startswith("/"):
            currency = at(arguments, self.currency)
            if not isinstance(currency, str) or CURRENCY.fullmatch(currency) is None:
                text = "the currency must be the three capital letters of a currency, such as EUR"
                raise AmountError(self.currency, text)
        value = at(arguments, self.amount)
        try:
            number = decimal(value)
        except ValueError:
            text = "missing" if value is None else "not a decimal number"
            raise AmountError(self.amount, f"the amount is {text}") from None
        exact = number.scaleb(_PLACES - self.scale)
        if exact < 0:
            raise AmountError(self.amount, "the amount is negative")
        if exact != exact.to_integral_value() or exact >= _MOST:
            text = f"must be below a trillion and have at most {_PLACES - self.scale} decimals"
            raise AmountError(self.amount, f"the amount {text}")
        return Amount(int(exact), currency)


def decimal(value: Any) -> Decimal:
    """Return a JSON number or a decimal text exactly as it is written. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        raise ValueError("not a number")
    if isinstance(value, str) and _DECIMAL.fullmatch(value) is None:
        raise ValueError("not a decimal number")
    try:
        number = Decimal(repr(value) if isinstance(value, float) else value)
    except InvalidOperation:
        raise ValueError("not a number") from None
    if not number.is_finite() or number.adjusted() > 2 * _PLACES + _PLACES:
        raise ValueError("not a number of this size")
    return number


# --- limits ---------------------------------------------------------------------------------------

Limits = Mapping[str, Mapping[str, Any]]
"""Window or subject, to currency, to the most that may be spent, as decimal text in units."""


def checked_limits(given: Any, windows: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """Return limits in their canonical form. ValueError says what is wrong."""
    if not isinstance(given, Mapping):
        example = f'{{"{windows[1]}": {{"EUR": 100}}}}'
        raise ValueError(f"expected limits by currency, such as {example}, got {given!r}")
    limits: dict[str, dict[str, str]] = {}
    for key, by_currency in given.items():
        window, named, subject = str(key).partition(":")
        if window not in windows or (named and (window not in _NAMED or not subject)):
            known = ", ".join(windows)
            raise ValueError(f"{key!r} is not what a limit can be for; use one of {known}")
        if not isinstance(by_currency, Mapping) or not by_currency:
            raise ValueError(f'{key}: expected an amount for each currency, such as {{"EUR": 100}}')
        limits[key] = {name: _limit(f"{key}.{name}", most) for name, most in by_currency.items()}
        for currency in by_currency:
            if not isinstance(currency, str) or CURRENCY.fullmatch(currency) is None:
                text = "is not a currency; use three capital letters, such as EUR"
                raise ValueError(f"{key}: {currency!r} {text}")
    return limits


def _limit(name: str, most: Any) -> str:
    try:
        number = decimal(most)
    except ValueError:
        number = Decimal(-1)
    exact = number.scaleb(_PLACES)
    if not 0 <= exact < _MOST or exact != exact.to_integral_value():
        text = f"expected a number from 0 on with at most {_PLACES} decimals, got {most!r}"
        raise ValueError(f"{name}: {text}")
    return f"{number.normalize():f}"


def limits_for(
    limits: Limits, window: str, subject: str, currency: str
) -> Iterator[tuple[str, int]]:
    """Yield each limit of a window, with the name of the field that declares it."""
    for key in (window, f"{window}:{subject}") if subject else (window,):
        most = limits.get(key, {}).get(currency)
        if most is not None:
            yield f"{key}.{currency}", millionths(most)
