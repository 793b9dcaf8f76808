"""What returns to the agent: validated, redacted, bounded, labelled."""

from counterseal.observation.answer import answer, answer_as, refusal
from counterseal.observation.models import FieldError, ObservationEnvelope
from counterseal.observation.observation import NOT_VERIFIED, Observation, VerificationHint
from counterseal.observation.observe import Observed, failure, observe, observe_as
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
    "answer_as",
    "failure",
    "neutralise",
    "observe",
    "observe_as",
    "profile",
    "refine",
    "refusal",
    "said",
]
