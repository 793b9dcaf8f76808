"""Observations: the answers to an agent's calls, validated, redacted, bounded and labelled."""

from counterseal.observation.envelope import FieldError, ObservationEnvelope
from counterseal.observation.invisible import neutralise
from counterseal.observation.observation import (
    NOT_VERIFIED,
    Observation,
    VerificationHint,
    answer,
    answer_as,
    refusal,
)
from counterseal.observation.observe import (
    Observed,
    Profile,
    failure,
    observe,
    observe_as,
    profile,
    refine,
)
from counterseal.observation.redact import Redaction, Redactor
from counterseal.observation.render import sentence_for

__all__ = [
    "NOT_VERIFIED",
    "FieldError",
    "Observation",
    "ObservationEnvelope",
    "Observed",
    "Profile",
    "Redaction",
    "Redactor",
    "VerificationHint",
    "answer",
    "answer_as",
    "failure",
    "neutralise",
    "observe",
    "observe_as",
    "profile",
    "refine",
    "refusal",
    "sentence_for",
]
