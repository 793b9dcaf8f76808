"""The gateway: MCP in front, the runtime in the middle, MCP servers of third parties behind.

- `server`: which part answers which request.
- `calls`, `questions`: `tools/call` with its results, and questions to its client.
- `catalogue`: what each caller may see, and notifications of changes.
- `resources`: resources, prompts and completions of upstreams.
- `upstream_tools`: the tools of upstreams under contract, or in quarantine.
- `running`: a gateway put together from its configuration, over HTTP (see `web`) or stdio.
"""
