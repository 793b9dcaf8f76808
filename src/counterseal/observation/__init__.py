"""Observations: the answers to an agent's calls, validated, redacted, bounded and labelled."""

from counterseal.observation.envelope import FieldError, ObservationEnvelope, sentence_for
from counterseal.observation.invisible import neutralise
from counterseal.observation.observation import (
    NOT_VERIFIED,
    Observation,
    VerificationHint,
    answer,
    from_stored,
    refusal,
    stored,
)
from counterseal.observation.observe import Observed, Profile, observe, profile, refine
from counterseal.observation.redact import Redaction, Redactor

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
    "from_stored",
    "neutralise",
    "observe",
    "profile",
    "refine",
    "refusal",
    "sentence_for",
    "stored",
]
