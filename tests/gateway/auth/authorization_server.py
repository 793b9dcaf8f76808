"""A small authorization server on loopback: metadata, keys that can be rotated, and tokens.

Whatever it serves can be replaced by a test: `answers` maps a path to a status and a body.
"""

import base64
import functools
import hashlib
import json
import secrets
import socket
import threading
import time
from contextlib import contextmanager
from urllib.parse import urlencode

import jwt
import uvicorn
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import get_default_algorithms
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from tests.waiting import until_now

METADATA = "/.well-known/oauth-authorization-server"
OPENID = "/.well-known/openid-configuration"
MAKERS = {
    "EdDSA": ed25519.Ed25519PrivateKey.generate,
    "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "RS256": lambda: rsa.generate_private_key(public_exponent=65537, key_size=2048),
}
CLIENT = {"client_id": "notice-agent", "client_secret": "made-up-secret"}


@functools.cache
def first_key(algorithm):
    """Made once: an RSA key takes its time."""
    return MAKERS[algorithm]()


class AuthorizationServer:
    """Signs with `keys`, publishes `published`. `asked` counts requests by their path."""

    def __init__(self, url, path=""):
        self.url = url
        self.issuer = f"{url}{path}"
        self.first = {
            "EdDSA-0": ("EdDSA", first_key("EdDSA")),
            "RS256-1": ("RS256", first_key("RS256")),
        }
        self.reset()

    def reset(self, resource=""):
        """As it was at the beginning."""
        self.keys = dict(self.first)
        self.published = [self.public(kid) for kid in self.keys]
        self.answers = {}
        self.asked = []
        self.codes = {}
        self.resource = resource

    def add_key(self, algorithm):
        kid = f"{algorithm}-{len(self.keys)}"
        self.keys[kid] = (algorithm, MAKERS[algorithm]())
        self.published.append(self.public(kid))
        return kid

    def public(self, kid):
        algorithm, key = self.keys[kid]
        jwk = json.loads(get_default_algorithms()[algorithm].to_jwk(key.public_key()))
        return {**jwk, "kid": kid, "use": "sig", "alg": algorithm}

    def rotate(self, algorithm="EdDSA"):
        """The old keys are gone; the id of the new one."""
        self.published.clear()
        return self.add_key(algorithm)

    def claims(self, **changed):
        now = int(time.time())
        made = {
            "iss": self.issuer,
            "aud": self.resource,
            "sub": "u_7",
            "client_id": "notice-agent",
            "tenant": "acme",
            "roles": ["support"],
            "scope": "case:read notice:send",
            "iat": now,
            "exp": now + 300,
            **changed,
        }
        return {name: value for name, value in made.items() if value is not None}

    def token(self, kid="EdDSA-0", *, header=None, **changed):
        algorithm, key = self.keys[kid]
        headers = {"kid": kid, "typ": "at+jwt", **(header or {})}
        headers = {name: value for name, value in headers.items() if value is not None}
        return jwt.encode(self.claims(**changed), key, algorithm, headers=headers)

    # --- what it serves ---------------------------------------------------------------------------

    def metadata(self):
        return {
            "issuer": self.issuer,
            "jwks_uri": f"{self.url}/jwks",
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "registration_endpoint": f"{self.url}/register",
            "response_types_supported": ["code"],
            "grant_types_supported": ["authorization_code", "client_credentials"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post"],
        }

    async def serve(self, request):
        path = request.url.path
        self.asked.append(path)
        if path in self.answers:
            status, body = self.answers[path]
            return Response(body, status, media_type="application/json")
        if path == "/jwks":
            return JSONResponse({"keys": self.published})
        if path in (METADATA, OPENID):
            return JSONResponse(self.metadata())
        return Response(status_code=404)

    async def register(self, request: Request):
        asked = await request.json()
        return JSONResponse({**asked, **CLIENT}, 201)

    async def authorize(self, request: Request):
        """Nobody is asked: the code comes at once."""
        asked = dict(request.query_params)
        code = secrets.token_urlsafe(16)
        self.codes[code] = asked
        back = urlencode({"code": code, "state": asked["state"]})
        return RedirectResponse(f"{asked['redirect_uri']}?{back}", 302)

    async def give_token(self, request: Request):
        asked = dict(await request.form())
        if asked["grant_type"] == "authorization_code":
            known = self.codes.pop(asked["code"])
            challenge = hashlib.sha256(asked["code_verifier"].encode()).digest()
            if base64.urlsafe_b64encode(challenge).rstrip(b"=").decode() != known["code_challenge"]:
                return JSONResponse({"error": "invalid_grant"}, 400)
        token = self.token(aud=asked["resource"], client_id=CLIENT["client_id"])
        return JSONResponse({"access_token": token, "token_type": "Bearer", "expires_in": 300})

    def app(self):
        return Starlette(
            routes=[
                Route("/register", self.register, methods=["POST"]),
                Route("/authorize", self.authorize),
                Route("/token", self.give_token, methods=["POST"]),
                Route("/{path:path}", self.serve),
            ]
        )


@contextmanager
def serving(path=""):
    """An authorization server in a thread of its own, until the end."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        server = AuthorizationServer(f"http://127.0.0.1:{bound.getsockname()[1]}", path)
        config = uvicorn.Config(server.app(), log_config=None, lifespan="off", ws="none")
        running = uvicorn.Server(config)
        thread = threading.Thread(target=running.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            until_now(lambda: running.started)
            yield server
        finally:
            running.should_exit = True
            thread.join()
