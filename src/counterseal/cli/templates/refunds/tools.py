"""Orders and refunds. Replace what the tools do with your shop and your payment provider."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

from counterseal import Effect, tool

ORDERS = {"ord_1001": 12_900, "ord_1002": 4_000}
REFUNDS = Path(__file__).with_name("refunds.txt")  # stands for the payment provider

OrderId = Annotated[str, Field(pattern=r"^ord_[0-9]{4}$", description="The order, like ord_1001.")]


class Order(BaseModel):
    order_id: str
    total_cents: int


class Refund(BaseModel):
    order_id: str
    cents: int


@tool(effect=Effect.READ_ONLY, version="1.0.0", owner="support-team", scopes=["order:read"])
async def get_order(order_id: OrderId) -> Order:
    """Look up one order and its total. Does not change it."""
    return Order(order_id=order_id, total_cents=ORDERS.get(order_id, 0))


def find_refund(order_id: str) -> Refund | None:
    """Ask the provider what was paid back, after a call and whenever its answer did not come."""
    lines = REFUNDS.read_text("utf-8").splitlines() if REFUNDS.exists() else []
    paid = [int(line.split()[1]) for line in lines if line.startswith(f"{order_id} ")]
    return Refund(order_id=order_id, cents=paid[0]) if paid else None


@tool(
    effect=Effect.INTERNAL_MUTATION,
    version="1.0.0",
    owner="support-team",
    scopes=["refund:write"],
    consequence="{cents|money:EUR} of order {order_id} are paid back.",
    business_key=["order_id"],  # one refund an order, however often it is asked for
    spends={"amount": "/cents", "scale": 2, "currency": "EUR"},
    money={"call": {"EUR": 500}},
    read_back=find_refund,
)
async def issue_refund(
    order_id: OrderId,
    cents: Annotated[int, Field(ge=1, le=50_000, description="How much to pay back, in cents.")],
) -> Refund:
    """Pay back an order, or a part of it. Does not cancel the order."""
    with REFUNDS.open("a", encoding="utf-8") as refunds:
        refunds.write(f"{order_id} {cents}\n")
    return Refund(order_id=order_id, cents=cents)
