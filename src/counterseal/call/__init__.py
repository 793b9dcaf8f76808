"""One call's way through the runtime, step by step. `runtime.py` tells the order.

A step returns what ends the call (a refusal, or an answer that was known before), or None to go on.
All that a call knows is in its gate context; the trail keeps every decision.
"""

from counterseal.call.judging import judge_plan
from counterseal.call.passage import Passage
from counterseal.call.trail import AGAIN, Again, Preview, Trail

__all__ = ["AGAIN", "Again", "Passage", "Preview", "Trail", "judge_plan"]
