"""An MCP server with two tools. Your own servers, or those of others, stand in its place."""

from __future__ import annotations

from pathlib import Path

from mcp.server.mcpserver import MCPServer

NOTES = Path(__file__).with_name("notes.txt")
server = MCPServer("notes")


@server.tool()
def read_notes() -> list[str]:
    """Return all published notes."""
    return NOTES.read_text("utf-8").splitlines() if NOTES.exists() else []


@server.tool()
def publish_note(text: str) -> str:
    """Publish a note for everybody."""
    with NOTES.open("a", encoding="utf-8") as notes:
        notes.write(f"{text}\n")
    return "published"
