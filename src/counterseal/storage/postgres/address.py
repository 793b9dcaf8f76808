"""Which database a URL names, and what may be told of that."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import urlsplit

from counterseal.errors import CountersealError

__all__ = ["Address"]

_FORM: Final = "write postgresql://user:password@host:5432/database"


class Address(NamedTuple):
    url: str
    where: str
    """The same without user, password and options: for messages."""

    @classmethod
    def of(cls, url: str) -> Address:
        """The address in a URL, which is never told: it holds a password."""
        try:
            parts = urlsplit(url)
        except ValueError:
            raise CountersealError(f"the store's URL can't be read; {_FORM}") from None
        if parts.scheme not in ("postgresql", "postgres") or not url.startswith(
            f"{parts.scheme}://"
        ):
            raise CountersealError(f"the store's URL names no database; {_FORM}")
        host = parts.netloc.rpartition("@")[2]
        return cls(url, f"postgresql://{host}{parts.path}")

    def __repr__(self) -> str:
        return f"Address({self.where!r})"
