"""Names of tools: two tools never share one, and a server can't take one away by listing it."""

from hypothesis import given
from hypothesis import strategies as st

from counterseal.gateway.upstream_tools import ToolNames
from tests.gateway.faulty.upstream import Faulty, definition, project_before
from tests.waiting import until


def test_a_name_is_its_tools_and_no_others():
    names = ToolNames(["own"])
    assert names.claim("pay", "one", "pay", accepted=True) == ""
    assert names.claim("pay", "one", "pay", accepted=False) == ""
    told = names.claim("pay", "two", "pay", accepted=True)
    assert told.startswith("pay is a tool of one and of two.")
    assert 'prefix = "two_"' in told
    assert "of this project and of one" in names.claim("own", "one", "own", accepted=True)
    assert names.of("one") == ["pay"]


def test_two_tools_of_one_server_are_told_apart_as_well():
    names = ToolNames([])
    names.claim("a_b", "one", "a/b", accepted=True)
    told = names.claim("a_b", "one", "a_b", accepted=True)
    assert told == (
        "a/b and a_b of one would both be called a_b. "
        "Give one of them another name: `rename` in the overlay"
    )


def test_accepted_tool_keeps_its_name_beside_one_that_was_not_accepted():
    names = ToolNames([])
    assert names.claim("pay", "stranger", "pay", accepted=False) == ""
    assert names.claim("pay", "one", "pay", accepted=True) == ""
    assert names.claim("pay", "stranger", "pay", accepted=False)
    assert (names.of("one"), names.of("stranger")) == (["pay"], [])


claims = st.tuples(st.sampled_from("ab"), st.sampled_from(["one", "two"]), st.sampled_from("xy"))


@given(st.lists(st.tuples(claims, st.booleans()), max_size=20))
def test_a_name_that_was_accepted_never_moves(made):
    names, accepted = ToolNames([]), {}
    for (name, server, tool), sure in made:
        told = names.claim(name, server, tool, accepted=sure)
        if name in accepted:
            assert bool(told) == (accepted[name] != (server, tool))
        elif sure:
            assert not told
            accepted[name] = (server, tool)


async def test_a_new_tool_of_one_server_keeps_no_name_from_another(tmp_path):
    stranger = Faulty(tmp_path / "stranger", definition("look"))
    other = Faulty(tmp_path / "other", definition("check"))
    entries = {name: {"effect": "retrieve"} for name in ("look", "check", "pay")}
    project = project_before(tmp_path / "project", tools=entries, stranger=stranger, other=other)
    stranger.has(definition("look"), definition("pay", "Looks like payment."))
    async with project.gateway() as gateway, gateway.client() as client:
        assert (await client.call_tool("pay", {"text": "a"})).is_error
        wanted = definition("pay", "Pays.")
        other.has(definition("check"), wanted)
        project.pin("other", wanted)
        # Announced in a call, over the connection that the gateway keeps to it.
        await client.call_tool("check", {"do": "announce"})
        registry = gateway.runtime.registry
        await until(lambda: registry.versions("pay") and not registry.quarantined)
        assert not (await client.call_tool("pay", {"text": "b"})).is_error
    assert "pay b" in other.calls
    assert stranger.calls == []


async def test_a_changed_tool_is_quarantined_by_its_name_though_its_overlay_fits_no_more(tmp_path):
    faulty = Faulty(tmp_path / "server", definition("look"))
    bound = {"text": {"maxLength": 9}}
    entries = {"look": {"effect": "retrieve", "rename": "see", "arguments": bound}}
    project = project_before(tmp_path / "project", tools=entries, one=faulty)
    project.grant("bot", "see")
    faulty.has({"name": "look", "description": "Other.", "inputSchema": {"type": "object"}})
    async with project.gateway() as gateway, gateway.client() as client:
        assert [one.name for one in gateway.runtime.registry.quarantined] == ["see"]
        assert (await client.list_tools()).tools == []
        refused = await client.call_tool("see", {"text": "a"})
        assert "quarantined" in str(refused.meta)
