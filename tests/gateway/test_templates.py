"""Each project of `counterseal init`, from the first command to an approved call, executed once."""

import json
import socket
import subprocess
from contextlib import contextmanager, nullcontext
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from counterseal.cli.app import app
from counterseal.testing import check_project
from tests.docs.runner import run_page
from tests.waiting import until_now
from tests.warm import programs, warm

pytestmark = pytest.mark.slow

PATIENCE = 60
REFUND = {"order_id": "ord_1001", "cents": 12_900}
NOTICE = {"draft_id": "drf_0001", "recipient": "a@example.org"}
TICKET = {"ticket_id": "tic_1001", "note": "Answered."}
CALLS = {
    "cases": ("notice-agent", "send_approved_notice", NOTICE, "outbox.txt"),
    "refunds": ("support", "issue_refund", REFUND, "refunds.txt"),
    "http": ("support", "close_ticket", TICKET, "closed.txt"),
    "mcp": ("assistant", "publish_note", {"text": "We open on Monday."}, "notes.txt"),
    "agent": ("writer", "send_letter", None, "outbox.txt"),
}
"""By template: the agent, the call that is held, and the file that counts its effects."""


def run(*words, stdin=None):
    result = CliRunner().invoke(app, words, input=stdin)
    assert result.exit_code == 0, (words, result.output)
    return result.stdout


@contextmanager
def program(*command, **options):
    process = subprocess.Popen(warm(*command), **options)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return str(free.getsockname()[1])


@contextmanager
def desk(folder):
    """Run the service of the http template on a free port."""
    port = free_port()
    for contract in (folder / "contracts").iterdir():
        contract.write_text(contract.read_text().replace("8799", port))
    with program("service.py", port, stderr=subprocess.DEVNULL):
        yield


@contextmanager
def serving(agent):
    """Start the gateway on a free port, and return its URL."""
    command = ["-m", "counterseal", "serve", "--port", "0", "--json", "--anonymous-as", agent]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with program(*command, **pipes) as process:
        text = ""
        while not text.endswith("\n}\n"):
            line = process.stdout.readline()
            assert line, text
            text += line
        yield json.loads(text)["url"]


@pytest.fixture(params=CALLS)
def template(request):
    return request.param


@pytest.fixture
def folder(template, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COUNTERSEAL_STORE", raising=False)
    monkeypatch.setenv("COUNTERSEAL_SECRET_SMTP_PASSWORD", "only-for-a-trial")
    monkeypatch.setenv("COUNTERSEAL_SECRET_DESK_TOKEN", "only-for-a-trial")
    run("init", "--template", template, ".")
    if template == "cases":
        Path("drafts").mkdir()
        Path("drafts/drf_0001").write_text("We come on Monday.")
    if template == "mcp":
        run("diff", "--accept", "--yes", "--by", "ann")
    return tmp_path


def test_template_leads_from_init_to_one_approved_execution(template, folder):
    agent, tool, arguments, effects = CALLS[template]
    assert run("check") == "no problems\n"
    assert run("lint", "--strict").endswith("no problems\n")
    check_project(folder)
    password = ["--password-stdin", "--reason", "first approver"]
    run("users", "add", "ann", "--tenant", "acme", "--role", "approver", *password, stdin="x" * 15)
    key = json.loads(run("users", "key", "ann", "--reason", "a test", "--json"))["key"]
    service = desk(folder) if template == "http" else nullcontext()
    with service, serving(agent) as url, httpx.Client(base_url=url, timeout=PATIENCE) as http:

        def ask():
            """Make the call, as the agent; return whether it was carried out."""
            if arguments is None:
                done = subprocess.run(warm("agent.py"), capture_output=True, text=True, check=True)
                return "SUCCESS" in done.stdout
            answer = http.post("/v1/calls", json={"tool": tool, "arguments": arguments})
            assert answer.status_code in (200, 202, 409), answer.text  # 409: it is under way
            return answer.status_code == 200

        assert not ask()
        assert not Path(effects).exists()
        ann = {"Authorization": f"Bearer {key}"}
        signing_in = http.get("/approvals", follow_redirects=True)
        assert signing_in.status_code == 200
        [request] = http.get("/v1/approvals", headers=ann).json()["items"]
        assert request["tool"] == tool
        decision = f"/v1/approvals/{request['approval_id']}/decision"
        http.post(decision, json={"decision": "approve"}, headers=ann).raise_for_status()
        until_now(ask)
        assert ask()
    assert len(Path(effects).read_text().splitlines()) == 1


@pytest.mark.parametrize("template", [name for name in CALLS if name != "cases"], indirect=True)
def test_readme_of_the_template_can_be_followed(folder, template):
    Path("counterseal.lock").unlink(missing_ok=True)  # the page accepts the definitions itself
    port = free_port()
    with Path("counterseal.toml").open("a") as settings:
        settings.write(f"\n[gateway]\nport = {port}\n")
    run_page(folder / "README.md", folder, lambda _: {"8787": port}, programs())
