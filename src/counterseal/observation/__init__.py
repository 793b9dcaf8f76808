"""What returns to the agent: validated, redacted, bounded, labelled."""

from counterseal.observation.answer import answer, refusal
from counterseal.observation.models import FieldError, ObservationEnvelope
from counterseal.observation.observation import NOT_VERIFIED, Observation, VerificationHint
from counterseal.observation.observe import Observed, failure, observe
from counterseal.observation.profile import Profile, profile, refine
from counterseal.observation.redact import Redaction, Redactor
from counterseal.observation.text import neutralise
from counterseal.observation.words import said

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
    "failure",
    "neutralise",
    "observe",
    "profile",
    "refine",
    "refusal",
    "said",
]
