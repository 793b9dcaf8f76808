"""The gateway: MCP in front, the runtime in the middle, MCP servers of third parties behind.

- `server`: which part answers which request.
- `calls`, `questions`, `results`: `tools/call`, questions to its client, and its result.
- `catalogue`, `notifications`: what each caller may see, and notices of its changes.
- `relay`: resources, prompts and completions of upstreams.
- `upstream_contracts`, `upstream_tools`, `quarantine`: the tools of upstreams under contract.
- `running`: a gateway put together from its configuration, over HTTP (see `web`) or stdio.
"""
