"""One contract, told to a model in its provider's own form.

`description` writes the text, `names` fits the name, `strict` fits the schema, `providers` puts
them together. All of it faces the model: nothing that decides about a call reads any of it.
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
