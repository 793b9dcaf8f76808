"""Records made by position, for the way of every call.

A named tuple's own constructor costs as much as a gate, and every call makes a dozen of them.
`made` goes past it: nobody looks whether all fields are there, so write the values as one tuple
where it is called. A test counts them.
"""

from __future__ import annotations

from typing import Final

__all__ = ["made"]

made: Final = tuple.__new__
"""`made(Event, (kind, caller, …))` is `Event(kind, caller, …)`, with every field given."""
