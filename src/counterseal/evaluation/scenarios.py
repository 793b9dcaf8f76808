"""Scenarios: what an agent should do with its tools and what it must not, in a YAML file.

A scenario states an objective, a world (the project's tools, prepared answers, calls that were made
before, people who approve), the calls that should be carried out, what the world should be like at
the end, and what must never happen. A file never names code: agents and set-ups are given to the
command.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from counterseal.approvals.terms import Choice
from counterseal.documents import read_document
from counterseal.errors import ContractError
from counterseal.policy.policy_files import Section

_FIELDS: Final = (
    "name",
    "objective",
    "agent",
    "answers",
    "start",
    "people",
    "expect",
    "allow",
    "forbid",
    "limits",
    "script",
)
_CALL: Final = ("tool", "arguments", "times", "output", "as")
_LIMITS: Final = ("uses", "latency_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPattern:
    """A call: its tool, and the arguments that it must have at least."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    times: int | None = None
    """How often it must be carried out; None: a change once, a read at least once."""
    output: Mapping[str, Any] | None = None
    """For a check of the end: what it must return at least."""
    acting: str | None = None
    """The agent of the project that makes it, if it is not the scenario's."""

    def matches(self, tool: str, arguments: Any) -> bool:
        return tool == self.tool and contains(arguments, self.arguments)

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.tool}({shown})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioPerson:
    """A person of a scenario, who decides every request alike."""

    name: str
    roles: tuple[str, ...] = ()
    decides: Choice = Choice.APPROVE


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One objective for an agent, its prepared world, and what the trial is judged by."""

    name: str
    objective: str
    agent: str
    answers: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Prepared answers by tool; the last one repeats."""
    start: tuple[CallPattern, ...] = ()
    people: tuple[ScenarioPerson, ...] = ()
    calls: tuple[CallPattern, ...] = ()
    end: tuple[CallPattern, ...] = ()
    allow: tuple[str, ...] = ()
    """Tools whose use is neither required nor too much."""
    forbid: tuple[CallPattern, ...] = ()
    max_uses: int | None = None
    max_latency_ms: int | None = None
    script: tuple[CallPattern, ...] | None = None
    """Calls that the scripted agent proposes."""


def contains(value: Any, wanted: Any) -> bool:
    """Return whether a value equals the wanted one; mappings may have more keys."""
    if isinstance(wanted, Mapping):
        if not isinstance(value, Mapping):
            return False
        return all(key in value and contains(value[key], item) for key, item in wanted.items())
    if isinstance(wanted, bool) or isinstance(value, bool):
        return value is wanted  # in Python, 1 equals True
    return bool(value == wanted)


def read_scenarios(
    *paths: str | Path, tools: Collection[str], agents: Collection[str]
) -> tuple[Scenario, ...]:
    """Return the scenarios of these files. ContractError lists everything that is wrong with them.

    `tools` and `agents` are the names that the project knows.
    """
    scenarios: list[Scenario] = []
    problems = []
    names: set[str] = set()
    for path in paths:
        content = read_document(path)
        document = Section(
            content, content.data, "a scenario file", ("scenarios",), rule="scenario-invalid"
        )
        if document.sound and not document.data.get("scenarios"):
            document.problem("there are no scenarios", "Write them as a list under `scenarios:`.")
        for section in document.sections("scenarios", "a scenario", _FIELDS):
            scenario = _read_scenario(section, tools, agents)
            if scenario.name in names:
                section.problem(f"the name {scenario.name!r} occurs twice", "", "name")
            names.add(scenario.name)
            scenarios.append(scenario)
        problems += document.problems
    if problems:
        raise ContractError(problems)
    return tuple(scenarios)


def _read_scenario(section: Section, tools: Collection[str], agents: Collection[str]) -> Scenario:
    data = section.data
    agent = str(data.get("agent", "")) or (next(iter(agents)) if len(agents) == 1 else "")
    if "agent" not in data and not agent:
        section.problem("agent is missing", f"Agents of the project: {', '.join(agents)}.")
    elif agent not in agents:
        _unknown(section, "agent", agent, agents, "agent")
    expect = section.section("expect", ("calls", "end"))
    limits = section.section("limits", _LIMITS)
    script = tuple(_calls(section, "script", None)) if "script" in data else None
    for index, name in enumerate(section.texts("allow")):
        if name not in tools:
            _unknown(section, "tool", name, tools, "allow", index)
    return Scenario(
        name=section.text("name", "Say in a few words what happens."),
        objective=section.text("objective", "Write what the agent is asked to do."),
        agent=agent,
        answers=_answers(section, tools),
        start=tuple(_calls(section, "start", tools)),
        people=tuple(_people(section)),
        calls=tuple(_calls(expect, "calls", tools)),
        end=tuple(_calls(expect, "end", tools)),
        allow=section.texts("allow"),
        forbid=tuple(_calls(section, "forbid", tools)),
        max_uses=_number(limits, "uses"),
        max_latency_ms=_number(limits, "latency_ms"),
        script=script,
    )


def _calls(section: Section, field: str, tools: Collection[str] | None) -> Iterator[CallPattern]:
    """Yield the calls of a list. `tools` is None for a script, which may name unknown tools."""
    for call in section.sections(field, "a call", _CALL):
        tool = call.text("tool", "Name the tool.")
        if tools is not None and tool and tool not in tools:
            _unknown(call, "tool", tool, tools, "tool")
        arguments = call.section("arguments").data
        output = call.section("output").data if "output" in call.data else None
        if field == "end" and output is None:
            call.problem("output is missing", "Write what the tool should return at the end.")
        acting = call.text("as") if "as" in call.data else None
        yield CallPattern(
            tool=tool,
            arguments=arguments,
            times=_number(call, "times"),
            output=output,
            acting=acting,
        )


def _answers(section: Section, tools: Collection[str]) -> dict[str, tuple[Any, ...]]:
    given = section.section("answers")
    for name in given.data:
        if name not in tools:
            _unknown(given, "tool", name, tools, name)
    return {
        name: tuple(value) if isinstance(value, list) else (value,)
        for name, value in given.data.items()
    }


def _people(section: Section) -> Iterator[ScenarioPerson]:
    people = section.section("people")
    for name in people.data:
        person = people.section(name, ("roles", "decides"))
        decides = person.one_of(Choice, person.data.get("decides", "approve"), "decides")
        roles = person.texts("roles")
        yield ScenarioPerson(name=name, roles=roles, decides=decides or Choice.REJECT)


def _number(section: Section, field: str) -> int | None:
    value = section.data.get(field)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        section.problem(f"{field} must be a whole number of 0 or more", "", field)
        return None
    return value


def _unknown(
    section: Section, what: str, name: str, known: Collection[str], *at: str | int
) -> None:
    near = get_close_matches(name, known, n=3)
    all_of_them = f"{what.capitalize()}s of the project: {', '.join(sorted(known)) or 'none'}."
    fix = f"Did you mean {' or '.join(near)}?" if near else all_of_them
    section.problem(f"the project has no {what} {name!r}", fix, *at)
