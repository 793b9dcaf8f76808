"""The agents: their tasks, their models, and how they call tools over MCP."""
