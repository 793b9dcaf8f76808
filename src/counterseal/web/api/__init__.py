"""The HTTP API under `/v1`: for agents that make calls, and for people who decide and look.

`front` is the way of a request: who makes it, how often, what comes with it. `submitting` carries
out calls; every other file is one subject's routes, which parse, ask a `Desk`, and give its records
back. `shapes` says what those look like, `problems` how a refusal does, and `app` puts it together.
"""
