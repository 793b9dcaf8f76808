"""The HTTP API under `/v1`: agents make calls with it, people decide and look.

`app` lists the routes and the middleware, and has the API's own document. `submit` carries out
calls; each of the other files has the routes of one subject, which return rows of `views/`.
`problems` has every refusal.
"""
