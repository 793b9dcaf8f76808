"""Blocks: what a tool returns that answers in texts, images, sound and documents, as MCP has them.

The output is one object with the list `content`. A client that speaks MCP gets the blocks as
blocks; a model reads the texts among them as data, like any other output.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from counterseal.canonical import freeze

__all__ = ["BLOCKS", "Blocks", "Partial", "audio", "image", "is_blocks", "resource", "text"]


_MARK: Final = "counterseal blocks"


class Blocks(BaseModel):
    """Return it from a tool: `Blocks(content=[text("Done."), image(png, "image/png")])`."""

    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra={"$comment": _MARK})

    content: list[dict[str, Any]] = Field(max_length=1000)


def text(words: str) -> dict[str, Any]:
    """Words."""
    return {"type": "text", "text": words}


def image(data: bytes, mime_type: str) -> dict[str, Any]:
    """A picture."""
    return {"type": "image", "data": _encoded(data), "mimeType": mime_type}


def audio(data: bytes, mime_type: str) -> dict[str, Any]:
    """Sound."""
    return {"type": "audio", "data": _encoded(data), "mimeType": mime_type}


def resource(uri: str, content: str | bytes, mime_type: str | None = None) -> dict[str, Any]:
    """A document, as text or as bytes."""
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
            }
        },
        "$comment": _MARK,
    }
)
"""The output schema of a tool that answers in blocks."""


def is_blocks(schema: Mapping[str, Any]) -> bool:
    """Whether an output schema says that the output is blocks."""
    return schema.get("$comment") == _MARK


# --- partial ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Partial:
    """Which steps are done, which are not.

    An exception among the failed steps is shown by the name of its type only.
    """

    completed: Sequence[Any] = ()
    failed: Sequence[Any] = ()
    data: Any = None
    """The tool's output as declared, as far as there is one."""
