"""The page of the last recorded evaluation."""

import json

from counterseal.evaluation.evaluator import evaluate, subjects_of
from counterseal.evaluation.modes import MODES
from tests.console.conftest import client_of


async def recorded(bank, tmp_path, **change):
    chosen = [mode for mode in MODES if mode.name in ("permissions", "compensation")]
    subjects = await subjects_of(bank.runtime, ["refund", "send_notice"])
    record = (await evaluate(subjects, modes=chosen)).record()
    (tmp_path / "evaluation.json").write_text(json.dumps({**record, **change}))
    return record


async def test_a_recorded_evaluation_is_a_table_of_tools_and_modes(bank, ann, tmp_path):
    record = await recorded(bank, tmp_path)
    page = (await ann.get("/evaluation")).text
    passed = sum(case["status"] == "passed" for case in record["results"][0]["cases"])
    assert passed > 3
    assert f'<span class="badge ok">{passed}</span>' in page
    assert '<span class="badge dim">-</span>' in page
    assert "refund: a stub; send_notice: a stub" in page
    assert "changed since" not in page


async def test_a_contract_that_has_changed_since_is_marked(bank, ann, tmp_path):
    record = await recorded(bank, tmp_path)
    await recorded(bank, tmp_path, tools=[{**record["tools"][0], "contract_hash": "sha256:0"}])
    page = (await ann.get("/evaluation")).text
    assert "changed since" in page


async def test_failures_and_tools_of_others_are_told_apart(bank, ann, tmp_path):
    record = await recorded(bank, tmp_path)
    case = {**record["results"][0]["cases"][0], "status": "failed", "name": "a <b>case</b>"}
    failed = {**record["results"][0], "cases": [case]}
    other = {**record["tools"][0], "name": "of_another_tenant"}
    foreign = {**failed, "tool": "of_another_tenant"}
    results = [failed, *record["results"][1:], foreign, {**foreign, "mode": "compensation"}]
    await recorded(bank, tmp_path, tools=[*record["tools"], other], results=results)
    page = (await ann.get("/evaluation")).text
    assert '<span class="badge bad">1 FAILED</span>' in page
    assert "a &lt;b&gt;case&lt;/b&gt;" in page
    assert "of_another_tenant" not in page


async def test_without_a_record_the_page_says_what_to_do(bank, ann, tmp_path):
    assert "counterseal evaluate --record" in (await ann.get("/evaluation")).text
    (tmp_path / "evaluation.json").write_text('{"format": "another"}')
    page = (await ann.get("/evaluation")).text
    assert "can&#39;t be read as an evaluation" in page
    async with client_of(bank) as stranger:
        assert (await stranger.get("/evaluation")).status_code in (302, 303)
