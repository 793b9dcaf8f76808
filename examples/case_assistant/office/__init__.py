"""The offices: their cases and letters, the mail server, and what stands behind the tools.

It knows nothing of agents, and would be here without them.
"""
