"""The first product: an assistant that collects clinical evidence and drafts an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, Field

from counterseal import DROP_STEP, Config, Grant, Invariant, Principal, Runtime, State, tool

PROMPT = """\
Answer the question: which dose of paracetamol is safe for adults?
Evidence so far: {{EVIDENCE}}
Its grade: {{GRADE}}
"""
WHO = Principal(tenant="ward-7", user="dr_who", agent="clinic-assistant")

Source = Annotated[str, Field(max_length=40)]
Query = Annotated[str, Field(max_length=200, description="What to look for.")]


class Found(BaseModel):
    evidence: str


class Grade(BaseModel):
    grade: str
    sources: int


class Draft(BaseModel):
    draft_id: str
    text: str


@tool(
    effect="retrieve",
    version="1.0.0",
    owner="evidence-team",
    invariants=[
        Invariant(
            id="ONE_OF_TWO",
            rule="Name one source or several, not both.",
            check="!has(call.source) || !has(call.sources)",
        ),
        Invariant(
            id="NOT_TWICE",
            rule="A plan does not search for the same words twice.",
            check=lambda call, _state, _config: all(
                call["query"] != step.get("query") for step in call.earlier
            ),
            correct=DROP_STEP,
        ),
    ],
    state_effects=[
        {
            "key": "evidence",
            "merge": "append",
            "preserve_across_turns": True,
            "prompt_template_var": "EVIDENCE",
        }
    ],
)
async def find_evidence(
    query: Query,
    source: Annotated[Source | None, Field(description="One source.")] = None,
    sources: Annotated[list[Source] | None, Field(max_length=5, description="Several.")] = None,
) -> Found:
    """Look for clinical evidence and quote it, without judging it."""
    asked = sources or ([source] if source else ["all sources"])
    return Found(evidence=f"{query}: at most 4 g a day ({', '.join(asked)})")


@tool(
    effect="compute",
    version="1.0.0",
    owner="evidence-team",
    state_effects=[{"key": "grade", "prompt_template_var": "GRADE"}],
)
async def grade_evidence(
    evidence: Annotated[list[str] | None, State("evidence")],
    strict: Annotated[bool, Config("strict", default=False)],
) -> Grade:
    """Grade the evidence collected so far."""
    count = len(evidence or ())
    return Grade(grade="high" if count >= (3 if strict else 2) else "low", sources=count)


@tool(effect="draft", version="1.0.0", owner="evidence-team")
async def draft_answer(
    text: Annotated[str, Field(max_length=2000, description="The answer.")],
    grade: Annotated[str | None, State("grade")],
) -> Draft:
    """Keep an answer as a draft. It is not visible before its release."""
    return Draft(draft_id="drf_1", text=f"{text} (evidence: {grade})")


TOOLS = (find_evidence, grade_evidence, draft_answer)


def register(runtime: Runtime) -> None:
    grants = [Grant(agent=WHO.agent, tool=one.contract.name) for one in TOOLS]
    runtime.register(*TOOLS, grants=grants)


class Script:
    """Stands in for a model: its first plan breaks an invariant, its second one does not."""

    async def plan(
        self, prompt: str, tools: Sequence[Mapping[str, Any]], feedback: str
    ) -> list[dict[str, Any]]:
        both = {"query": "dose", "source": "who", "sources": ["nice"]}
        first = {"query": "dose", "sources": ["who", "nice"]} if feedback else both
        return [
            {"tool": "find_evidence", "arguments": first},
            {"tool": "find_evidence", "arguments": {"query": "liver"}},
            {"tool": "find_evidence", "arguments": {"query": "liver", "source": "who"}},
            {"tool": "grade_evidence", "arguments": {}},
            {"tool": "draft_answer", "arguments": {"text": "At most 4 g a day."}},
        ]

    async def repair(self, feedback: Mapping[str, Any]) -> None:
        return None
