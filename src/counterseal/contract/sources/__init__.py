"""Contracts from elsewhere: OpenAPI documents and MCP definitions."""
