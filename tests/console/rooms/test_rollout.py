"""Rolling a version out from a tool's card, over HTTP."""

import re
from html import unescape

from tests.console.rooms.test_acting import WHY
from tests.console.rooms.test_looking import said
from tests.console.test_sign_in import sent


async def test_a_rollout_is_previewed_made_and_undone_in_one_step(works, root, vic):
    path = "/tools/read_gauge/rollout"
    page = await root.get(f"{path}?version=1.0.0&percentage=20")
    assert "Rolling out 1.0.0 to 20 % of new runs" in said(page)
    assert "1.0.0 100 20 no version (refused) 0 80" in said(page)
    resource = unescape(re.search(r"<code>GET ([^<]+)</code>", page.text)[1])
    shares = (await root.get(resource)).json()["items"]
    assert [one["then"] for one in shares] == [20, 80]
    assert works.view().tools.versions("read_gauge")[0].rollout_percentage == 100, "not yet"
    made = await sent(root, path, version="1.0.0", percentage="20", reason=WHY)
    assert made.headers["location"] == "/tools/read_gauge?done=rolled_out"
    card = await root.get("/tools/read_gauge")
    assert "20 % of new runs" in said(card)
    assert "Before the last rollout, 1.0.0 went to 100 % of new runs." in said(card)
    form = card.text.partition('aria-label="Undo the rollout of 1.0.0"')[2].partition("</form>")[0]
    hidden = dict(re.findall(r'type="hidden" name="(version|percentage)" value="([^"]+)"', form))
    await sent(root, path, **hidden, reason="Back.")
    (version,) = works.view().tools.versions("read_gauge")
    assert version.rollout_percentage == 100
    assert (await vic.get(f"{path}?version=1.0.0&percentage=5")).status_code == 403
    assert (await root.get(path)).headers["location"] == "/tools/read_gauge"


async def test_a_rollout_that_makes_no_sense_is_said_to(works, root):
    path = "/tools/read_gauge/rollout"
    for asked, status in (
        ("version=1.0.0&percentage=x", 400),
        ("version=1.0.0&percentage=101", 422),
        ("version=9&percentage=5", 404),
    ):
        assert (await root.get(f"{path}?{asked}")).status_code == status
    for told in ({"percentage": "-1"}, {"percentage": "101"}, {"percentage": "5", "reason": " "}):
        answer = await sent(root, path, **{"version": "1.0.0", "reason": WHY, **told})
        assert answer.status_code == 422
        assert 'role="alert"' in answer.text
    assert works.view().tools.versions("read_gauge")[0].rollout_percentage == 100
