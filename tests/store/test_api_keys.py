"""API keys on every store: one worker issues and revokes, the others know."""

from counterseal.operations.operator import Operator, catch_up
from counterseal.proposal import Principal
from counterseal.registry import Registry
from counterseal.registry.identities import IssuedKey


async def test_key_is_issued_and_revoked_for_every_process_on_the_store(store):
    here, there = Registry(), Registry()
    operator = Operator(store, here, by="u_1")
    holder = Principal(tenant="äcme", agent="bot", user="u_7", roles=["desk"], scopes=["a", "b"])
    text, made = await operator.issue_key(holder, reason="the desk")
    await catch_up(store, there)
    assert there.credentials == (made,)
    assert there.credential(made.key_id).matches(IssuedKey.read(text))
    await operator.revoke_key(made.key_id, reason="it leaked")
    await catch_up(store, there)
    assert there.credentials == ()
