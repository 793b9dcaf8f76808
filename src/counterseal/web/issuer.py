"""An authorization server's public keys: found, fetched, kept for a while, and fetched again.

Asks nobody but the configured issuer and the address that its metadata gives. What it answers is
bounded in size and time. When it can't be asked, the keys that are known serve for an hour more.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import jiter
from jwt import PyJWK, PyJWTError

from counterseal.web.access import OAuth, url_fault

__all__ = ["Issuer", "IssuerError"]

_log = logging.getLogger("counterseal.gateway")

_FRESH: Final = 300.0
"""Seconds after which keys are fetched again."""
_TRUSTED: Final = 3600.0
"""Seconds after which keys that could not be fetched again are trusted no more."""
_PAUSE: Final = 10.0
"""Seconds between two attempts to fetch, whatever tokens come meanwhile."""
_PATIENCE: Final = 5.0
"""Seconds that all of one attempt may take."""
_MOST_BYTES: Final = 256 * 1024
_MOST_KEYS: Final = 100


class IssuerError(Exception):
    """It can't be told whether a token is good, because its issuer can't be asked."""


class Issuer:
    """The keys of one issuer, by their id."""

    def __init__(self, oauth: OAuth, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._oauth = oauth
        self._clock = clock
        self._keys: tuple[Mapping[str, Any], ...] = ()
        self._fetched: float | None = None
        self._tried: float | None = None
        self._fetching = asyncio.Lock()

    async def key(self, kid: str | None, algorithm: str) -> PyJWK | None:
        """The key for a token's header. None: the issuer has none like that. IssuerError."""
        found = self._find(kid, algorithm)
        if found is None or self._age() >= _FRESH:
            await self._refresh()
            found = self._find(kid, algorithm)
        if self._age() >= _TRUSTED:
            raise IssuerError(f"the keys of {self._oauth.issuer} could not be fetched")
        return found

    def _age(self) -> float:
        return float("inf") if self._fetched is None else self._clock() - self._fetched

    def _find(self, kid: str | None, algorithm: str) -> PyJWK | None:
        fit = [key for key in self._keys if _fits(key, kid, algorithm)]
        made = [one for key in fit if (one := _made(key, algorithm)) is not None]
        return made[0] if len(made) == 1 else None  # several: a token has to say which

    async def _refresh(self) -> None:
        """Fetch the keys, unless that was tried just now. A failure leaves those that there are."""
        async with self._fetching:
            if self._tried is not None and self._clock() - self._tried < _PAUSE:
                return
            try:
                async with asyncio.timeout(_PATIENCE), httpx.AsyncClient(trust_env=False) as client:
                    keys = await self._fetch(client)
            except (OSError, ValueError, TimeoutError, httpx.HTTPError, httpx.InvalidURL) as error:
                told = str(error) or type(error).__name__
                _log.warning("the keys of %s can't be fetched: %s", self._oauth.issuer, told)
            else:
                self._keys, self._fetched = keys, self._clock()
            finally:
                self._tried = self._clock()

    async def _fetch(self, client: httpx.AsyncClient) -> tuple[Mapping[str, Any], ...]:
        url = self._oauth.jwks_url or await self._discover(client)
        found = (await _read(client, url)).get("keys")
        if not isinstance(found, list) or len(found) > _MOST_KEYS:
            raise ValueError(f"{url} gives no list of at most {_MOST_KEYS} keys")
        return tuple(key for key in found if isinstance(key, dict))

    async def _discover(self, client: httpx.AsyncClient) -> str:
        """Where the keys are, as the issuer's metadata says (RFC 8414, else OpenID's)."""
        trouble: Exception | None = None
        for url in _metadata_urls(self._oauth.issuer):
            try:
                told = await _read(client, url)
            except (ValueError, httpx.HTTPError) as error:
                trouble = trouble or error
                continue
            if told.get("issuer") != self._oauth.issuer:
                raise ValueError(f"{url} is the metadata of another issuer")
            keys = told.get("jwks_uri")
            fault = url_fault(keys) if isinstance(keys, str) else "there is none"
            if fault is not None:
                raise ValueError(f"jwks_uri in {url}: {fault}")
            return str(keys)
        raise ValueError(f"no metadata ({trouble})")


def _fits(key: Mapping[str, Any], kid: str | None, algorithm: str) -> bool:
    if key.get("use", "sig") != "sig" or key.get("alg", algorithm) != algorithm:
        return False
    return kid is None or key.get("kid") == kid


def _made(key: Mapping[str, Any], algorithm: str) -> PyJWK | None:
    """None for one of another kind than the algorithm takes."""
    try:
        return PyJWK(dict(key), algorithm)
    except PyJWTError:
        return None


def _metadata_urls(issuer: str) -> Iterator[str]:
    parts = urlsplit(issuer)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    yield f"{origin}/.well-known/oauth-authorization-server{path}"
    yield f"{origin}{path}/.well-known/openid-configuration"


async def _read(client: httpx.AsyncClient, url: str) -> dict[str, Any]:
    """A JSON object. ValueError when it is none, or too large."""
    # Compressed, a small answer could become a large one.
    headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
    async with client.stream("GET", url, headers=headers) as response:
        if response.status_code != httpx.codes.OK:
            raise ValueError(f"{url} answers {response.status_code}")
        body = b""
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > _MOST_BYTES:
                raise ValueError(f"{url} answers with more than {_MOST_BYTES:,} bytes")
    found = jiter.from_json(body)
    if not isinstance(found, dict):
        raise ValueError(f"{url} gives no JSON object")
    return found
