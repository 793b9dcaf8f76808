"""Upstreams: MCP servers behind the gateway, the connections to them, and calls over those.

- `settings`: how one upstream is reached, with which credentials and limits.
- `upstreams`: connections for each tenant, requests, and upstreams' tools as tools of ours.
- `connection`: one connection and its handshake.
- `transports`: HTTP, a program, a server in this process.
- `listings`, `questions`: what an upstream offers, and what it asks back.
- `verdicts`: what a failed request means: not sent, failed, or unknown.
"""

from counterseal.upstream.settings import UpstreamSettings
from counterseal.upstream.upstreams import Upstream, Upstreams, mcp_tool

__all__ = ["Upstream", "UpstreamSettings", "Upstreams", "mcp_tool"]
