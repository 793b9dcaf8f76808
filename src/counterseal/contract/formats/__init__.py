"""Contracts in the tool formats of model providers.

`providers` writes description, name and tool; `strict_schema` and `strict_shapes` convert schemas
for strict mode. All of this is for models: no decision about a call depends on it.
"""

from counterseal.contract.formats.providers import (
    FORMATS,
    NameMap,
    ProviderView,
    anthropic,
    describe,
    mcp,
    openai_chat,
    openai_responses,
)

__all__ = [
    "FORMATS",
    "NameMap",
    "ProviderView",
    "anthropic",
    "describe",
    "mcp",
    "openai_chat",
    "openai_responses",
]
