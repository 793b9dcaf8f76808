"""The short way of `tools/call` over HTTP: the same answers as the SDK's server gives, for less.

A call that asks for nothing unusual is read, carried out and answered here. Everything else, and
whatever would take a second thought, is the SDK's, untouched. Why: docs/decisions/0020.
"""

from counterseal.gateway.short.path import ShortPath
from counterseal.gateway.short.sessions import Sessions
from counterseal.gateway.short.tools import Tools

__all__ = ["Sessions", "ShortPath", "Tools"]
