"""Contracts for the tools of MCP servers. Opens no connections.

A *definition* is the upstream's description of a tool, an *overlay* is the operator's, and a *pin*
is a definition that an operator accepted. `contract_of` makes a contract of a definition and an
overlay.
"""
