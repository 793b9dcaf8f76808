"""The second product: an assistant that settles small insurance claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, Field

from counterseal import Grant, Invariant, Principal, Runtime, State, tool

PROMPT = """\
Settle claim clm_042.
The claim: {{CLAIM}}
Offered so far: {{OFFERS}}
"""
WHO = Principal(tenant="insurer", user="u_31", agent="claims-assistant", scopes={"claim:pay"})

ClaimId = Annotated[str, Field(pattern=r"^clm_[0-9]{3}$", description="The claim.")]
Amount = Annotated[int, Field(ge=1, le=5000, description="In euros.")]


class Claim(BaseModel):
    claim: dict[str, int]


class Offer(BaseModel):
    offers: dict[str, int]


class Paid(BaseModel):
    payment_id: str
    amount: int


class OverCoverError(ValueError):
    """The policy covers less than this amount."""


@tool(
    effect="read_only",
    version="2.1.0",
    owner="claims-team",
    state_effects=[{"key": "claim", "preserve_across_turns": True, "prompt_template_var": "CLAIM"}],
)
async def get_claim(claim_id: ClaimId) -> Claim:
    """Look up a claim: what was asked for, what is covered."""
    return Claim(claim={"number": int(claim_id[4:]), "asked": 900, "cover": 600})


@tool(
    effect="draft",
    version="1.4.0",
    owner="claims-team",
    state_effects=[
        {
            "key": "offers",
            "merge": "merge_dict",
            "preserve_across_turns": True,
            "prompt_template_var": "OFFERS",
        }
    ],
    observability={"error_taxonomy_mapping": {"OverCoverError": "SEMANTIC_INVALIDITY"}},
)
async def make_offer(
    claim_id: ClaimId, amount: Amount, claim: Annotated[dict[str, int] | None, State("claim")]
) -> Offer:
    """Write down an offer. The customer does not see it yet."""
    if claim is not None and amount > claim["cover"]:
        raise OverCoverError
    return Offer(offers={claim_id: amount})


@tool(
    effect="external_notification",
    version="1.0.0",
    owner="claims-team",
    scopes=["claim:pay"],
    business_key=["claim_id"],
    consequence="{amount} euros are paid for claim {claim_id}.",
    invariants=[
        Invariant(
            id="AS_OFFERED",
            rule="Only the offered amount is paid.",
            check="has(state.offers) && state.offers[call.claim_id] == call.amount",
        )
    ],
)
async def pay_out(claim_id: ClaimId, amount: Amount) -> Paid:
    """Pay a claim out."""
    return Paid(payment_id=f"pay_{claim_id}", amount=amount)


TOOLS = (get_claim, make_offer, pay_out)


def register(runtime: Runtime) -> None:
    grants = [Grant(agent=WHO.agent, tool=one.contract.name) for one in TOOLS]
    runtime.register(*TOOLS, grants=grants)


class Script:
    """Stands in for a model: offers too much, repairs the offer, and pays in a later turn."""

    offered = False

    async def plan(
        self, prompt: str, tools: Sequence[Mapping[str, Any]], feedback: str
    ) -> list[dict[str, Any]]:
        claim = {"claim_id": "clm_042"}
        if self.offered:
            return [{"tool": "pay_out", "arguments": {**claim, "amount": 600}}]
        self.offered = True
        return [
            {"tool": "get_claim", "arguments": claim},
            {"tool": "make_offer", "arguments": {**claim, "amount": 900}},
        ]

    async def repair(self, feedback: Mapping[str, Any]) -> dict[str, Any]:
        return {"arguments": {"claim_id": "clm_042", "amount": 600}}
