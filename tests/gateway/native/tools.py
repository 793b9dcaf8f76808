"""The tools that the conformance suite calls, as tools of this project: those that only answer."""

from __future__ import annotations

import base64
from typing import Annotated

import anyio
from pydantic import Field

from counterseal import Context, Contract, Tool, tool
from counterseal.contract.outputs import BLOCKS, Blocks, audio, image, resource, text

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5E"
    "rkJggg=="
)
WAV = base64.b64decode("UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA=")


@tool(effect="read_only")
async def test_simple_text() -> Blocks:
    """Answer with a text."""
    return Blocks(content=[text("This is a simple text response for testing.")])


@tool(effect="read_only")
async def test_image_content() -> Blocks:
    """Answer with an image."""
    return Blocks(content=[image(PNG, "image/png")])


@tool(effect="read_only")
async def test_audio_content() -> Blocks:
    """Answer with a sound."""
    return Blocks(content=[audio(WAV, "audio/wav")])


@tool(effect="read_only")
async def test_embedded_resource() -> Blocks:
    """Answer with a resource."""
    words = "This is an embedded resource content."
    return Blocks(content=[resource("test://embedded-resource", words, "text/plain")])


@tool(effect="read_only")
async def test_multiple_content_types() -> Blocks:
    """Answer with a text, an image and a resource."""
    words, data = "Multiple content types test:", '{"test":"data","value":123}'
    document = resource("test://mixed-content-resource", data, "application/json")
    return Blocks(content=[text(words), image(PNG, "image/png"), document])


@tool(effect="read_only")
async def test_error_handling() -> Blocks:
    """Fail."""
    raise RuntimeError("This tool intentionally returns an error for testing")


@tool(effect="read_only")
async def test_tool_with_progress(ctx: Context) -> Blocks:
    """Tell three times how far it is."""
    for done in (0, 50, 100):
        ctx.progress(done, 100)
        await anyio.lowlevel.checkpoint()
    return Blocks(content=[text("Told three times how far it was.")])


@tool(effect="read_only")
async def test_tool_with_logging(ctx: Context) -> Blocks:
    """Log three times."""
    for words in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.client.log("info", words)
        await anyio.lowlevel.checkpoint()
    return Blocks(content=[text("Logged three times.")])


@tool(effect="read_only")
async def test_logging_tool(ctx: Context) -> Blocks:
    """Log once."""
    await ctx.client.log("info", "Called")
    return Blocks(content=[text("Logged to whoever wants it.")])


@tool(effect="read_only")
async def test_reconnection() -> Blocks:
    """Answer a client that may have hung up."""
    return Blocks(content=[text("Answered.")])


Region = Annotated[
    str,
    Field(
        max_length=64,
        description="Where; a request over HTTP repeats it in a header.",
        json_schema_extra={"x-mcp-header": "Region"},
    ),
]


@tool(effect="read_only")
async def test_x_mcp_header(region: Region) -> Blocks:
    """Tell the region that was given."""
    return Blocks(content=[text(f"The region is {region}.")])


# A schema with keywords that no signature has -----------------------------------------------------


def _word(description: str) -> dict[str, object]:
    return {"type": "string", "maxLength": 200, "description": description}


async def reach(**given: object) -> Blocks:
    return Blocks(content=[text(f"Got {sorted(given)}.")])


json_schema_2020_12_tool = Tool(
    contract=Contract.model_validate(
        {
            "identity": {"name": "json_schema_2020_12_tool", "version": "1.0.0"},
            "effect": "read_only",
            "usage": "When somebody is to be reached by phone or by mail.",
            "affordance": {
                "model_description": "Reach somebody, one way or the other.",
                "input_schema": {
                    "$schema": "https://json-schema.org/draft/2020-12/schema",
                    "type": "object",
                    "$defs": {
                        "address": {
                            "$anchor": "addressDef",
                            "type": "object",
                            "description": "Where they live.",
                            "properties": {"street": _word("Street."), "city": _word("City.")},
                            "additionalProperties": False,
                        }
                    },
                    "properties": {
                        "name": _word("Whom."),
                        "address": {"$ref": "#/$defs/address"},
                        "contactMethod": {
                            "type": "string",
                            "enum": ["phone", "email"],
                            "description": "How.",
                        },
                        "phone": _word("Their number."),
                        "email": _word("Their address."),
                    },
                    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
                    "if": {"required": ["phone"]},
                    "then": {"required": ["name"]},
                    "else": {"required": ["email"]},
                    "additionalProperties": False,
                },
                "output_schema": BLOCKS,
            },
        }
    ),
    function=reach,
)
