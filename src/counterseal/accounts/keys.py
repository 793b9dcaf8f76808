"""Personal keys: how a person reaches the API without a browser.

A key says who and in which tenant; what they may do there is asked for at every request. Keys are
issued and revoked through `changing.Accounts`.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from counterseal.accounts.directory import Directory
from counterseal.accounts.model import Person
from counterseal.registry.identities import PERSON_MARK, read_person_key

__all__ = ["PERSON_MARK", "person_by_key"]

_log = logging.getLogger("counterseal.accounts")


async def person_by_key(text: str, directory: Directory, now: float) -> Person | None:
    """Whose key it is, as they are now. None for one that is not good. StoreError."""
    key = read_person_key(text)
    if key is None:
        _log.info("a personal key was refused: it is not a whole one")
        return None
    user = await directory.holder(key.key_id)
    found = None if user is None else user.key(key.key_id)
    if user is None or found is None:
        why = "it is not in force"
    elif not found.matches(key):
        why = "its secret is wrong"
    elif found.expired(datetime.fromtimestamp(now, UTC)):
        why = "it has expired"
    elif not user.active:
        why = "its holder is disabled"
    else:
        return Person.of(user.name, found.tenant, user.tenants)
    _log.info("the personal key %s was refused: %s", key.key_id, why)
    return None
