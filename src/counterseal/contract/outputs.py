"""Return values of tools besides plain data: `Partial` for unfinished work, `Blocks` for media.

Blocks are texts, images, audio and documents in MCP's form: one object with the list `content`.
MCP clients receive the blocks as blocks; a model reads their texts as data, like any other output.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from counterseal.canonical import freeze

_MARK: Final = "counterseal blocks"


class Blocks(BaseModel):
    """Return it from a tool: `Blocks(content=[text("Done."), image(png, "image/png")])`."""

    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra={"$comment": _MARK})

    content: list[dict[str, Any]] = Field(max_length=1000)


def text(words: str) -> dict[str, Any]:
    """Return a text block."""
    return {"type": "text", "text": words}


def image(data: bytes, mime_type: str) -> dict[str, Any]:
    """Return an image block."""
    return {"type": "image", "data": _encoded(data), "mimeType": mime_type}


def audio(data: bytes, mime_type: str) -> dict[str, Any]:
    """Return an audio block."""
    return {"type": "audio", "data": _encoded(data), "mimeType": mime_type}


def resource(uri: str, content: str | bytes, mime_type: str | None = None) -> dict[str, Any]:
    """Return a block with a document, as text or bytes."""
    held = {"text": content} if isinstance(content, str) else {"blob": _encoded(content)}
    kind = {} if mime_type is None else {"mimeType": mime_type}
    return {"type": "resource", "resource": {"uri": uri, **kind, **held}}


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


BLOCKS: Final[Mapping[str, Any]] = freeze(
    {
        "type": "object",
        "additionalProperties": False,
        "required": ["content"],
        "properties": {
            "content": {
                "type": "array",
                "maxItems": 1000,
                "items": {
                    "type": "object",
                    "required": ["type"],
                    "properties": {"type": {"type": "string", "maxLength": 100}},
                },
            },
            "structuredContent": {"type": "object"},
        },
        "$comment": _MARK,
    }
)
"""The output schema of a tool that returns blocks, and maybe an object for programs beside them."""


def is_blocks(schema: Mapping[str, Any]) -> bool:
    """Return whether an output schema is the one of blocks."""
    return schema.get("$comment") == _MARK


@dataclass(frozen=True, slots=True, kw_only=True)
class Partial:
    """Returned by a tool that did some of its work: which steps are done, which failed.

    An exception among the failed steps is shown by the name of its type only.
    """

    completed: Sequence[Any] = ()
    failed: Sequence[Any] = ()
    data: Any = None
    """The declared output, as far as it exists."""
