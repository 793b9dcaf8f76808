"""Approvals: a person sees the exact consequence of one call, and only that is allowed.

`patterns` brings together what contract and policy demand, `votes` says who may vote and what the
votes come to, `packet` is what an approver reads (rendered by `text`, `markdown` and `html` from
one `outline`), `token` is the signed proof. Pure: nothing is stored, asked or executed here.

Names are taken from the modules: a policy needs the patterns, and none of the rest.
"""
