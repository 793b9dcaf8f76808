"""The agents: what they are to do, who thinks for them, and how they call tools over MCP."""
