"""Which file a URL names."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from counterseal.errors import CountersealError

__all__ = ["path_of"]

_FORMS: Final = (
    "write sqlite:///file.db for a file in the working directory, sqlite:////folder/file.db for any"
)


def path_of(url: str) -> Path:
    """Three slashes and a relative path, or four slashes for an absolute one."""
    scheme, _, rest = url.partition(":")
    if scheme != "sqlite" or not rest.startswith("//"):
        raise CountersealError(f"{url!r} names no file; {_FORMS}")
    if not rest.startswith("///") and rest != "//":
        raise CountersealError(f"{url!r} names a host, but the store is a file; {_FORMS}")
    name = rest[3:]
    if name in ("", ":memory:"):
        raise CountersealError(
            f"{url!r} names no file; {_FORMS}. A store that forgets at the end is memory:"
        )
    if "?" in name:
        raise CountersealError(f"{url!r} has options after its '?', and there are none to set")
    if "\0" in name or name.endswith("/"):
        raise CountersealError(f"{url!r} names no file; {_FORMS}")
    return Path(name).absolute()
