"""The demo: processes, approvers, the story, the summary and the invariants."""
