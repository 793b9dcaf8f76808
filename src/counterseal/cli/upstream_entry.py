"""An upstream as it is asked for in the shell, and as it is written into `counterseal.toml`."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from counterseal.cli.output import fail

__all__ = ["block", "entry", "is_address", "name_for"]

_ADDRESS = re.compile(r"https?://", re.IGNORECASE)
_RUNNERS = {"bun", "bunx", "docker", "node", "npx", "pipx", "pnpm", "podman", "uv", "uvx", "yarn"}
_RUNNERS |= {"dlx", "exec", "python", "python3", "run", "tool", "x"}
_PLAIN_HOSTS = {"api", "mcp", "www"}
_AROUND = re.compile(r"^(mcp|server)[-_]+|[-_]+(mcp|server)$")
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def is_address(word: str) -> bool:
    """Whether it is meant as a URL; whether it can be used as one is looked at later."""
    return _ADDRESS.match(word) is not None


def entry(
    words: Sequence[str],
    headers: Sequence[str],
    env: Sequence[str],
    *,
    insecure: bool,
    folder: Path,
) -> dict[str, Any]:
    """The table for what was typed: one address, or a command, in one word or in many."""
    address = is_address(words[0])
    if address and len(words) > 1:
        fail("One address is imported at a time.", f"What is {words[1]!r} for?")
    if address and env:
        fail("--env is for a command.", "An address takes --header NAME=VALUE.")
    if not address and headers:
        fail("--header is for an address.", "A command takes --env NAME=VALUE.")
    if address:
        made: dict[str, Any] = {"url": words[0]}
        made |= {"insecure": True} if insecure else {}
        return made | ({"headers": _pairs("--header", headers)} if headers else {})
    made = {"command": _split(words[0]) if len(words) == 1 else list(words)}
    here = os.path.relpath(Path.cwd(), folder)
    made |= {} if here == "." else {"cwd": here}
    return made | ({"env": _pairs("--env", env)} if env else {})


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        fail(f"{text!r} can't be read as a command: {error}.", "Write it after --, word by word.")


def _pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            fail(f"{option} takes NAME=VALUE, and {text.partition(':')[0]!r} is not that.")
        pairs[name.strip()] = value.strip()
    return pairs


# Names --------------------------------------------------------------------------------------------


def name_for(table: Mapping[str, Any]) -> str:
    """A name that fits what is imported, or `upstream`."""
    said = _said_by_host(table["url"]) if "url" in table else _said_by(table["command"])
    return next((name for text in said if (name := _as_name(text))), "upstream")


def _said_by_host(url: str) -> Iterator[str]:
    host = urlsplit(url).hostname or ""
    if not re.fullmatch(r"[0-9.]*|.*:.*|localhost", host):
        yield from (part for part in host.split(".") if part not in _PLAIN_HOSTS)


def _said_by(command: Sequence[str]) -> Iterator[str]:
    """The first word that is more than a way to start something."""
    for word in command:
        last = re.split(r"[/\\]", word)[-1].partition("@")[0]
        stem = re.sub(r"\.(py|js|mjs|ts|sh|exe)$", "", last)
        if not word.startswith("-") and re.sub(r"[0-9.]+$", "", stem) not in _RUNNERS:
            yield stem


def _as_name(text: str) -> str:
    name = re.sub(r"[^a-z0-9_-]+", "-", text.lower())
    previous = ""
    while name != previous:
        previous, name = name, _AROUND.sub("", name)
    return re.sub(r"^[^a-z]+|[-_]+$", "", name)[:32]


# TOML ---------------------------------------------------------------------------------------------


def block(name: str, table: Mapping[str, Any]) -> str:
    """The table as text, to be pasted."""
    lines = [f"{_key(key)} = {_value(value)}" for key, value in table.items()]
    return "\n".join([f"[upstreams.{name}]", *lines])


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items())
        return f"{{ {inside} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    # What JSON and TOML write alike, and TOML wants one character more to be escaped.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
