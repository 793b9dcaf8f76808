"""The ASGI application: server, identity, limits, the HTTP API and the console."""
