"""The offices: cases, letters, the mail server, and the functions behind the tools.

Nothing here depends on agents.
"""
