"""A read with a password in it, from the call to the day on which it is forgotten: on a file."""

from datetime import UTC, datetime

import pytest

from counterseal import Principal, Proposal, Reconciler
from counterseal.accounts.users import Person
from counterseal.config import load_settings, open_runtime
from counterseal.keys import Purpose, new_key
from counterseal.operations.auditor import verify_store
from counterseal.reconcile import Retention
from counterseal.views import TenantView

TOOLS = '''
from counterseal import tool


@tool(effect="retrieve", version="1.0.0", owner="cases", usage="To look a case up.", {more})
async def open_case() -> dict[str, str]:
    """Open the case file."""
    return {{"case": "case_7711", "password": "hunter2-and-more"}}
'''
CONFIG = """
[store]
url = "sqlite:///counterseal.db"

[keys]
path = "keys"

[tools]
paths = ["tools.py"]

[[grants]]
agent = "clerk"
tool = "open_case"
"""
CLERK = Principal(tenant="acme", agent="clerk", user="u_1")
VIC = Person(name="vic", tenant="acme", roles=frozenset({"viewer"}))


@pytest.fixture
def project(tmp_path):
    """Opens the project anew, as another process would."""
    new_key(tmp_path / "keys", Purpose.VAULT, datetime(2026, 7, 31, tzinfo=UTC))

    def project(more="", **declared):
        said = ", ".join(f"{name}={value!r}" for name, value in declared.items())
        (tmp_path / "tools.py").write_text(TOOLS.format(more=said))
        (tmp_path / "counterseal.toml").write_text(CONFIG + more)
        return open_runtime(load_settings(tmp_path / "counterseal.toml"))

    return project


async def opened(runtime):
    return await runtime.submit(Proposal(tool="open_case", arguments={}), CLERK)


def on_disk(folder):
    return b"".join(file.read_bytes() for file in folder.glob("counterseal.db*"))


async def test_what_a_model_read_is_shown_later_sealed_on_disk_and_forgotten_in_its_time(
    project, tmp_path
):
    async with project() as runtime:
        seen = await opened(runtime)
        assert seen.data == {"case": "case_7711", "password": "[redacted:password]"}
    assert b"hunter2" not in on_disk(tmp_path)
    assert b"case_7711" not in on_disk(tmp_path)
    async with project() as runtime:
        page = await TenantView(runtime, VIC).calls.page(seen.call_id)
        assert page.text == seen.for_model()
        assert [one.pointer for one in page.redactions] == ["/password"]
        found = await TenantView(runtime, VIC).calls.observation(call_id=seen.call_id)
        assert found["result_payload"]["data"] == seen.data
        await Reconciler(runtime, retention=Retention(vault_days=1e-9)).once()
        page = await TenantView(runtime, VIC).calls.page(seen.call_id)
        assert (page.text, page.not_kept) == (None, "It is no longer kept.")
        assert page.redactions
        assert (await verify_store(runtime.store, "acme", runtime.keys)).ok


@pytest.mark.parametrize(
    ("setting", "own", "kept"),
    [("none", None, False), ("none", "redacted", True), ("all", "none", False)],
)
async def test_the_file_decides_unless_the_contract_does(project, setting, own, kept):
    said = {} if own is None else {"keep_reads": own}
    async with project(f'[observations]\nkeep_reads = "{setting}"\n', **said) as runtime:
        page = await TenantView(runtime, VIC).calls.page((await opened(runtime)).call_id)
    assert (page.text is not None) is kept
