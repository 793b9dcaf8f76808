"""Upstreams: MCP servers behind the gateway, connections to them, and calls over those.

Reached by the gateway alone, which is the one that may import MCP's library.

- `settings`: what is configured of one upstream.
- `upstream`, `upstreams`: one server as everybody else sees it, and all of them together.
- `tools`: an upstream's tool as a tool of ours.
- `pool`, `line`, `connection`: which connection a call takes, how one is kept up, one itself.
- `handshake`: what both sides say of themselves.
- `process`, `web`, `inside`: the three ways to a server.
- `exchange`, `verdict`: what became of one request, and what that means to a caller.
- `listing`, `asking`, `changes`: its tools, what it asks back, and what it tells by itself.
"""

from counterseal.upstream.settings import Settings
from counterseal.upstream.tools import mcp_tool
from counterseal.upstream.upstream import Upstream
from counterseal.upstream.upstreams import Upstreams

__all__ = ["Settings", "Upstream", "Upstreams", "mcp_tool"]
