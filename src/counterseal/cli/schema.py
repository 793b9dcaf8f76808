"""`counterseal schema`: the JSON Schema of what travels between systems."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from counterseal.cli.output import print_json

__all__ = ["schema"]


class Subject(StrEnum):
    CONTRACT = "contract"
    OBSERVATION = "observation"


def schema(
    subject: Annotated[Subject, typer.Argument(help="What to describe.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="A schema is JSON already; changes nothing.")
    ] = False,
) -> None:
    """Print the JSON Schema of contracts or observations."""
    del as_json
    from counterseal.contract.model import Envelope
    from counterseal.contract.schemas import model_schema
    from counterseal.observation.envelope import ObservationEnvelope

    if subject is Subject.CONTRACT:
        print_json(model_schema(Envelope, title="ToolContract"))
    else:
        print_json(model_schema(ObservationEnvelope, title="ObservationObject"))
