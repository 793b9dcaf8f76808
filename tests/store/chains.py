"""Checks a chain by hand, from what is written about it: with no code of the product's but JSON."""

import hashlib

from pydantic_core import to_json

NOWHERE = (0, "")


async def log_of(store, tenant="acme", page=1000):
    """Everything that is recorded of a tenant, read in pages."""
    rows, after = [], NOWHERE
    while True:
        some = await store.recorded(tenant, after, page)
        if not some:
            return rows
        assert len(some) <= page
        rows += some
        after = (some[-1].link.number, some[-1].link.segment)


def check_chain(rows, tenant="acme"):
    """That every link follows from the one before. Returns where each segment ends."""
    places = [(row.link.number, row.link.segment) for row in rows]
    assert places == sorted(set(places))
    heads = {}
    for link, columns in rows:
        number, seq, before = heads.get(link.segment, (0, 0, b"\0" * 32))
        assert link.number > number
        assert link.seq == seq + 1
        if columns is None:
            assert link.salt is None
        else:
            assert columns[1] == tenant
            assert len(link.salt) == 16
            # The columns of earlier versions; those that were added since only with a value.
            covered = columns if any(columns[17:]) else columns[:17]
            assert link.digest == hashlib.sha256(link.salt + to_json(covered)).digest()
        place = "\0".join([tenant, link.segment, str(link.seq), str(link.number)])
        expected = hashlib.sha256(before + link.digest + place.encode()).digest()
        assert link.hash == expected
        heads[link.segment] = (link.number, link.seq, link.hash)
    return heads
