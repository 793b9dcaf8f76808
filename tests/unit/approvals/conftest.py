"""What the tests of approvals share: a contract, a demand, a packet."""

import pytest

from counterseal.approvals.packet import make_packet
from counterseal.approvals.terms import Demand, Terms, strictest
from counterseal.contract.model import Contract

TEXT = {"type": "string", "maxLength": 10_000, "description": "A text."}
CREATED = 1_781_364_600.0
"""2026-06-13 15:30:00 UTC."""


@pytest.fixture
def demand():
    """What an approval takes: by default two people, within ten minutes."""

    def demand(**more) -> Demand:
        terms = {"approvers": 2, "reason": "Money moves.", "rule": "money", **more}
        return strictest([Terms(**terms)])

    return demand


@pytest.fixture
def contract():
    """A contract that charges a card; sections and fields by keyword."""

    def contract(**more) -> Contract:
        names = ("customer_id", "invoice_id", "amount", "currency", "note")
        return Contract.model_validate(
            {
                "effect": "irreversible",
                "identity": {"name": "charge_card", "version": "2.1.0", "owner": "billing"},
                "affordance": {
                    "model_description": "Charge a card.",
                    "input_schema": {
                        "type": "object",
                        "properties": dict.fromkeys(names, TEXT),
                        "required": ["customer_id", "invoice_id", "amount", "currency"],
                        "additionalProperties": False,
                    },
                },
                "usage": "When an invoice is due.",
                "consequence": "{amount} {currency} are taken from {customer_id}.",
                "resource": "invoice:{invoice_id}",
                "probe": "get_invoice",
                "expected": {"status": "paid", "charge": "{output.charge_id}"},
                "transactional": {"compensation_tool": "refund_card"},
                **more,
            }
        )

    return contract


ARGUMENTS = {
    "customer_id": "cust_9921",
    "invoice_id": "inv_1007",
    "amount": "4999.00",
    "currency": "USD",
}


@pytest.fixture
def packet(contract, demand):
    """The packet of a call; what differs by keyword."""

    def packet(made=None, /, **more):
        given = {
            "approval_id": "appr_123",
            "trace_id": "trace_abc123",
            "tenant": "acme",
            "agent": "billing-agent",
            "user": "u_7",
            "arguments": ARGUMENTS,
            "fingerprint": "f2a8...3b1a",
            "created_at": CREATED,
            "before": {"status": "open", "total": "4999.00"},
            "redact": lambda value: value,
            **more,
        }
        asked = given.pop("demand", None) or demand()
        return make_packet(made or contract(), asked, **given)

    return packet
