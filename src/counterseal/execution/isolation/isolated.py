"""One attempt at a tool that runs in a process or a sandbox of its own."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from pydantic_core import to_jsonable_python

from counterseal.codes import Code
from counterseal.contract.model import Isolation
from counterseal.contract.outputs import Partial
from counterseal.contract.tool_context import Context
from counterseal.execution.failures import Fault, code_of, said_unsent
from counterseal.execution.isolation.address import Address
from counterseal.execution.isolation.workers import Job, Reply
from counterseal.execution.services import progress_of
from counterseal.execution.work import Outcome, Work

if TYPE_CHECKING:
    from counterseal.execution.executor import Given, Runner

__all__ = ["job_of", "run_isolated"]


async def run_isolated(runner: Runner, job: Job, work: Work, given: Given) -> Outcome:
    """Hand the call over, and make an outcome of what comes back."""
    contract, about, mask = runner.contract, given.context, given.mask

    def tell(kind: str, content: Any) -> None:
        if kind == "progress" and work.tell is not None:
            done, total, message = content
            work.tell(progress_of(about.call_id, done, total, message, mask))
        elif kind == "log":
            level, text = content
            level = level if isinstance(level, int) else logging.INFO
            given.services.log.log(level, "%s", text)

    executor = runner.executor
    sandboxed = contract.isolation is Isolation.SANDBOX
    pool = executor.sandboxes if sandboxed else executor.workers
    try:
        reply = await pool.run(job, seconds=work.seconds, tell=tell)
    # From here on the tool may have begun, whatever went wrong between it and us.
    except Exception as error:  # noqa: BLE001 - an unknown outcome, never a lost one
        return runner.failed(error, mask)._replace(answered=False)
    return _outcome(runner, reply, given)._replace(interrupted=reply.interrupted)


def job_of(runner: Runner, address: Address, work: Work, given: Given) -> Job:
    """The call as plain data. ValueError for what has no such form."""
    asks = [name for name, mark in runner.tool.injected.items() if mark is Context]
    injected = {name: value for name, value in given.injected.items() if name not in asks}
    about = given.context
    return Job(
        address=address,
        arguments=to_jsonable_python(dict(work.arguments)),
        injected=to_jsonable_python(injected),
        context_params=tuple(asks),
        context=to_jsonable_python(_fields(about)),
        egress=runner.egress.record(),
        files=str(runner.executor.directory(about, runner.contract.name)),
        memory_mb=runner.contract.memory_mb,
        secrets={name: given.injected[param] for param, name in runner.secrets.items()},
    )


def _fields(about: Context) -> dict[str, Any]:
    who = about.principal
    return {
        "principal": {
            "tenant": who.tenant,
            "user": who.user,
            "agent": who.agent,
            "roles": sorted(who.roles),
            "scopes": sorted(who.scopes),
        },
        "run_id": about.run_id,
        "call_id": about.call_id,
        "key": about.key,
        "attempt": about.attempt,
        "deadline": about.deadline,
        "expected_version": about.expected_version,
        "config": dict(about.config),
        "state": dict(about.state),
    }


def _outcome(runner: Runner, reply: Reply, given: Given) -> Outcome:
    mask = given.mask
    trace = mask.text(reply.trace)
    if reply.kind == "value":
        return Outcome(Code.SUCCESS, reply.value, mask=mask)
    if reply.kind == "partial":
        return Outcome(Code.SUCCESS, _partial(reply.value), mask=mask)
    if reply.kind == "fault":
        fault = Fault.from_record(reply.fault)
        code = code_of(fault, runner.contract)
        began, words = reply.began and not said_unsent(fault), mask.text(reply.words)
        return Outcome(code, fault=fault, trace=trace, began=began, words=words, mask=mask)
    code, answered = {
        "late": (Code.TIMEOUT, False),
        "unavailable": (Code.DEPENDENCY_UNAVAILABLE, True),
        "unserialisable": (Code.OBSERVATION_NORMALIZATION_FAIL, True),
    }.get(reply.kind, (Code.UNKNOWN_ERROR, False))
    return Outcome(code, trace=trace, began=reply.began, answered=answered, mask=mask)


def _partial(value: Any) -> Partial:
    """A child may say anything; what does not fit is judged when it is observed."""
    fields = value if isinstance(value, dict) else {}
    return Partial(
        completed=_listed(fields.get("completed")),
        failed=_listed(fields.get("failed")),
        data=fields.get("data"),
    )


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
