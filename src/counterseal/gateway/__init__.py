"""The gateway: MCP in front, the runtime in the middle, other people's MCP servers behind.

`server` answers clients, `catalogue` says what a caller may see, `answering` puts an observation on
the wire, `asking` reaches the client and people while a call waits, `relaying` passes on resources
and prompts, `upstreams` keeps what is behind under contract, `auth` says who calls, `app` and
`stdio` are the two ways to run it.
"""
