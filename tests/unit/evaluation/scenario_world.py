"""A small project for tests of scenarios: an agent that looks up orders and pays them back."""

from pathlib import Path

from counterseal.config import load_settings
from counterseal.evaluation.scenarios import read_scenarios
from counterseal.evaluation.trials import TrialProject

CONFIG = """\
[tools]
paths = ["tools.py"]
[[grants]]
agent = "support"
tool = "get_order"
[[grants]]
agent = "support"
tool = "refund"
[[grants]]
agent = "support"
tool = "send_mail"
[agents.support]
tenant = "acme"
user = "u_1"
[agents.stranger]
tenant = "acme"
"""
TOOLS = '''\
from pathlib import Path
from typing import Annotated
from pydantic import Field
from counterseal import tool

BOOK = Path(__file__).with_name("book.txt")
OrderId = Annotated[str, Field(max_length=10, description="The order.")]


@tool(effect="read_only", version="1.0.0", owner="shop", max_output_bytes=2000)
async def get_order(order_id: OrderId) -> dict[str, str]:
    """Look up an order."""
    paid = BOOK.exists() and order_id in BOOK.read_text()
    return {"order_id": order_id, "status": "refunded" if paid else "paid"}


@tool(effect="internal_mutation", version="1.0.0", owner="shop", repeatable=True,
      spends={"amount": "/cents", "scale": 2, "currency": "EUR"}, money={"call": {"EUR": 500}},
      runtime={"cost_profile": {"cost_per_call": 0.25, "currency": "EUR"}},
      cost={"run": {"EUR": 10}})
async def refund(order_id: OrderId,
                 cents: Annotated[int, Field(ge=1, le=9000, description="Cents.")]
                 ) -> dict[str, str]:
    """Pay an order back."""
    with BOOK.open("a") as book:
        book.write(f"{order_id}\\n")
    return {"order_id": order_id}


@tool(effect="external_notification", version="1.0.0", owner="shop", consequence="A mail goes out.",
      approval={"roles": ["press"]})
async def send_mail(to: Annotated[str, Field(max_length=40, description="To whom.")]
                    ) -> dict[str, str]:
    """Send a mail."""
    return {"to": to}
'''
CALL = "{order_id: o_1, cents: 500}"


def world(folder: Path, **options) -> TrialProject:
    """Write the project, and return it as a world of scenarios."""
    (folder / "counterseal.toml").write_text(CONFIG)
    (folder / "tools.py").write_text(TOOLS)
    return TrialProject.of(load_settings(folder / "counterseal.toml"), **options)


def scenarios(folder: Path, text: str, of: TrialProject):
    (folder / "scenarios.yaml").write_text(text)
    return read_scenarios(folder / "scenarios.yaml", tools=of.tools, agents=["support", "stranger"])


def one(folder: Path, fields: str, of: TrialProject):
    """Return one scenario with these fields; the objective and the agent are given."""
    start = "scenarios:\n  - name: one\n    objective: Pay o_1 back.\n    agent: support\n"
    lines = "".join(f"    {line}\n" for line in fields.strip().splitlines())
    (found,) = scenarios(folder, start + lines, of)
    return found
