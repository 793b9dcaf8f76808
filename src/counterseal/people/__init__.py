"""People who sign in: who they are, and what they may do where."""
