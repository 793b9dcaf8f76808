"""What works so far, told in plain lines. Started by `python3 dev.py demo`.

A small case office declares its tools, registers them, and an agent looks at what it may do. Every
line printed comes from the real parts; the demo fails when one of them does not do what it says.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field
from rich.console import Console
from rich.table import Table

from counterseal import (
    Call,
    Code,
    ContractError,
    Effect,
    Grant,
    Invariant,
    Observation,
    Principal,
    Proposal,
    Registry,
    Runtime,
    Secret,
    load_contracts,
    tool,
)
from counterseal.contract.formats import openai_chat
from counterseal.contract.invariants import judge
from counterseal.storage.base import HeldStatus

console = Console(highlight=False, soft_wrap=True)
CaseId = Annotated[str, Field(pattern=r"^case_[0-9]{6}$", description="The case.")]


class Summary(BaseModel):
    case_id: str
    status: str


class Draft(BaseModel):
    draft_id: str


class Sent(BaseModel):
    notice_id: str


@tool(effect=Effect.READ_ONLY, version="1.0.0", owner="case-platform", scopes=["case:read"])
def get_case_summary(case_id: CaseId) -> Summary:
    """Show what a case is about and where it stands."""
    return Summary(case_id=case_id, status="open")


@tool(
    effect=Effect.DRAFT,
    version="1.0.0",
    owner="case-platform",
    scopes=["notice:draft"],
    invariants=[
        Invariant(
            id="HEARINGS_ARE_REGISTERED_MAIL",
            rule="A hearing notice goes by registered mail.",
            check="call.template != 'hearing' || call.channel == 'registered'",
            correct={"set": {"channel": "registered"}},
        )
    ],
)
def create_notice_draft(
    case_id: CaseId,
    template: Annotated[Literal["decision", "hearing"], Field(description="Which text.")],
    channel: Annotated[Literal["email", "registered"], Field(description="How it would go.")],
) -> Draft:
    """Write a notice as a draft. Nobody is notified."""
    return Draft(draft_id=f"drf_{case_id}_{template}_{channel}")


@tool(
    effect=Effect.EXTERNAL_NOTIFICATION,
    version="1.0.0",
    owner="case-platform",
    scopes=["notice:send"],
    consequence="Notice {draft_id} is sent to the parties.",
)
def send_approved_notice(
    draft_id: Annotated[str, Field(max_length=60, description="The draft to send.")],
    smtp_password: Annotated[str, Secret("smtp_password")],
) -> Sent:
    """Send an approved notice. Does not create or edit drafts."""
    return Sent(notice_id=f"not_{draft_id}{len(smtp_password)}")


TOOLS = (get_case_summary, create_notice_draft, send_approved_notice)
BROKEN = """\
identity: {name: ../delete everything}
affordance:
  model_description: ""
  input_schema:
    type: object
    properties:
      sql: {type: string}
      where: {$ref: "https://example.org/where.json"}
"""


def say(title: str) -> None:
    console.print(f"\n[bold]{title}[/bold]")


def show_contracts() -> None:
    say("1. Three tools, each one declared record; the rest is derived from the effect")
    table = Table(box=None, pad_edge=False, header_style="dim")
    for head in ("tool", "effect", "key", "approve", "calls", "output"):
        table.add_column(head)
    for declared in TOOLS:
        contract = declared.contract
        key = "yes" if contract.idempotency.required else "no"
        numbers = (contract.approvers, contract.budget)
        table.add_row(contract.name, contract.effect, key, *map(str, numbers), contract.trust)
    console.print(table)


def show_refusal() -> None:
    say("2. A malformed contract is refused with all its problems, each with its place")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "broken.yaml")
        path.write_text(BROKEN, encoding="utf-8")
        try:
            load_contracts(path)
        except ContractError as error:
            rows = Table.grid(padding=(0, 2))
            for problem in error.problems:
                source = problem.source
                place = f"{path.name}:{source.line}:{source.column}" if source else path.name
                rows.add_row(f"  {place}", f"[red]{problem.rule}[/red]", problem.message)
            console.print(rows, soft_wrap=False)
            return
    sys.exit("The broken contract was accepted.")


def show_registry() -> None:
    say("3. What an agent may use: nothing without a grant, nothing past a kill switch")
    registry = Registry()
    granted = [Grant(agent="notice-agent", tool=declared.contract.name) for declared in TOOLS]
    registry.register(*TOOLS, grants=granted)
    scopes = {"case:read", "notice:draft", "notice:send"}
    notice = Principal(tenant="acme", user="u_7", agent="notice-agent", scopes=scopes)
    intake = Principal(tenant="acme", user="u_7", agent="intake-agent", scopes=scopes)

    def may_use(principal: Principal) -> str:
        return ", ".join(r.name for r in registry.catalogue(principal, "run_1")) or "nothing"

    console.print(f"  notice-agent     {may_use(notice)}")
    console.print(f"  intake-agent     {may_use(intake)}")
    kill = registry.kill(effect=Effect.EXTERNAL_NOTIFICATION, reason="bounced mail")
    console.print(f"  after the kill   {may_use(notice)}")
    registry.restore(kill)
    console.print(f"  after restoring  {may_use(notice)}")


def show_invariant() -> None:
    say("4. A call that breaks a rule is mended where the contract says how")
    contract = create_notice_draft.contract
    proposed = {"template": "hearing", "channel": "email"}
    verdict = judge(contract.invariants, Call(contract.name, proposed), {}, {})
    if not verdict.ok or verdict.call is None:
        sys.exit("The call was not mended.")
    console.print(f"  proposed   {proposed}")
    console.print(f"  corrected  {dict(verdict.call.arguments)}")
    console.print(f"  because    {verdict.corrections[0].rule}")


def show_formats() -> None:
    say("5. What a model reads comes from the same record; secrets are not in it")
    view = openai_chat(send_approved_notice.contract)
    function = view.tool["function"]
    console.print(f"  {function['name']}, strict: {function['strict']}")
    console.print(f"  arguments: {', '.join(function['parameters']['properties'])}")
    for line in filter(None, function["description"].splitlines()):
        console.print(f"  [dim]{line}[/dim]", soft_wrap=False)


async def show_calls() -> None:
    say("6. Calls go through every gate; a refusal says what to do next")
    runtime = Runtime.open("memory:", secrets={"smtp_password": "correct horse battery"})
    runtime.register(
        *TOOLS,
        grants=[Grant(agent="notice-agent", tool=declared.contract.name) for declared in TOOLS],
    )
    agent = Principal(
        tenant="acme",
        user="u_7",
        agent="notice-agent",
        scopes={"case:read", "notice:draft", "notice:send"},
    )

    async def call(about: str, name: str, arguments: str, expected: Code) -> Observation:
        proposal = Proposal(tool=name, arguments=arguments, run_id="run_1")
        seen = await runtime.submit(proposal, agent)
        replayed = ", from memory" if seen.idempotency_hit else ""
        console.print(f"  {about:<34} {seen.code.value}, {seen.next_action}{replayed}")
        if seen.code is not expected:
            sys.exit(f"expected {expected}, got {seen.for_model()}")
        return seen

    case = '{"case_id": "case_000042"'
    draft = f'{case}, "template": "hearing", "channel": "email"}}'
    await call("a read", "get_case_summary", f"{case}}}", Code.SUCCESS)
    await call("a tool that does not exist", "delete_case", f"{case}}}", Code.STRUCTURAL_VIOLATION)
    await call("a wrong type", "get_case_summary", '{"case_id": 42}', Code.TYPE_MISMATCH)
    await call(
        "prose around JSON", "get_case_summary", f"Sure: {case}}}", Code.SYNTACTIC_PARSE_FAIL
    )
    await call("a draft, corrected on the way", "create_notice_draft", draft, Code.SUCCESS)
    await call("the same draft again", "create_notice_draft", draft, Code.SUCCESS)
    sending = '{"draft_id": "drf_1"}'
    held = await call("sending", "send_approved_notice", sending, Code.CONFIRMATION_MISSING)
    await runtime.store.decide("acme", held.approval_id or "", HeldStatus.APPROVED, [])
    console.print("  [dim](a person approves)[/dim]")
    await call("sending, approved", "send_approved_notice", sending, Code.SUCCESS)
    await call("sending, retried", "send_approved_notice", sending, Code.SUCCESS)
    events = [event.type.value for _, event in await runtime.store.events("acme")]
    console.print(f"  [dim]{len(events)} events on record, the last: {events[-1]}[/dim]")


def main() -> None:
    console.print("[bold]Counterseal[/bold]: the model proposes, Counterseal decides.")
    show_contracts()
    show_refusal()
    show_registry()
    show_invariant()
    show_formats()
    asyncio.run(show_calls())
    console.print("\nTry it yourself: [bold].venv/bin/counterseal init my-tools[/bold]")


if __name__ == "__main__":
    main()
