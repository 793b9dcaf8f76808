"""Personal keys: how a person reaches the API without a browser.

A key says who and in which tenant; what they may do there is asked for at every request. Keys are
issued and revoked through `changing.Accounts`.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from counterseal.people.directory import Directory
from counterseal.people.model import Person
from counterseal.registry.people import PERSON_MARK, read_person_key

__all__ = ["PERSON_MARK", "person_by_key"]

_log = logging.getLogger("counterseal.people")


async def person_by_key(text: str, directory: Directory, now: float) -> Person | None:
    """Whose key it is, as they are now. None for one that is not good. StoreError."""
    key = read_person_key(text)
    if key is None:
        return _refused("it is no whole personal key")
    user = await directory.holder(key.key_id)
    found = None if user is None else user.key(key.key_id)
    if user is None or found is None:
        return _refused(f"{key.key_id} is not in force")
    if not found.matches(key):
        return _refused(f"{key.key_id} comes with a wrong secret")
    if not user.active or found.expired(datetime.fromtimestamp(now, UTC)):
        return _refused(f"{key.key_id} has expired, or its holder is disabled")
    return Person.of(user.name, found.tenant, user.tenants)


def _refused(why: str) -> None:
    _log.info("a personal key was refused: %s", why)
