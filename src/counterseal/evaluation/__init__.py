"""Replay and evaluation: what a contract, a policy or a model would do.

No call runs through these modules. Replay decides recorded proposals again; generated cases try a
contract against its own declarations; scenarios measure how an agent uses its tools.
"""
