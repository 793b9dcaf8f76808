"""Every form of a secret, planted in every channel that leads out of a tool: none comes through."""

import base64
import contextlib
import json
import logging
from typing import Annotated
from urllib.parse import quote, quote_plus

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from counterseal import Context, Partial, Proposal, Secret, StateEffect, tool
from counterseal.testing import FakeClock, runtime_for, someone

VALUE = 's3cr=t/with "quotes" & ünïcode+\\'
FORMS = {
    "plain": VALUE,
    "json": json.dumps(VALUE)[1:-1],
    "json_utf8": json.dumps(VALUE, ensure_ascii=False)[1:-1],
    "url": quote(VALUE, safe=""),
    "url_path": quote(VALUE),
    "url_plus": quote_plus(VALUE),
    "url_lower": quote(VALUE, safe="").lower(),
    "base64": base64.b64encode(VALUE.encode()).decode(),
    "base64_url": base64.urlsafe_b64encode(VALUE.encode()).decode().rstrip("="),
    "basic_auth": base64.b64encode(f"user:{VALUE}".encode()).decode(),
    "hex": VALUE.encode().hex(),
}
READS = {"effect": "read_only", "version": "1.0.0", "owner": "tests"}


def leaks(text):
    """The forms of the secret that stand in a text, also where that is JSON itself."""
    stable = {name: form for name, form in FORMS.items() if name != "basic_auth"}
    # Of the secret inside of a longer text, what any three bytes of it become.
    stable["basic_auth"] = base64.b64encode(b"r:" + VALUE.encode()[:13]).decode()[4:]
    found = [name for name, form in stable.items() if form in text]
    with contextlib.suppress(ValueError, TypeError):
        found += [name for name, form in stable.items() if form in json.loads(text)]
    return found


@pytest.fixture
def spans(monkeypatch):
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return exporter


class Everything:
    """All that leaves a runtime, as text."""

    def __init__(self, caplog, spans):
        self.caplog, self.spans, self.reports = caplog, spans, []

    async def of(self, runtime, seen):
        formatter = logging.Formatter("%(message)s")
        return {
            "envelope": json.dumps(seen.envelope(), ensure_ascii=False),
            "record": json.dumps(seen.record(), ensure_ascii=False, default=str),
            "for_model": seen.for_model(),
            "repr": repr(seen),
            "events": json.dumps(
                [event.record(name) for name, event in await runtime.store.events("acme")],
                ensure_ascii=False,
            ),
            "vault": repr([raw.decode() for _, raw, _ in runtime.store._backend.vault.values()]),
            "state": repr([row.value for row in runtime.store._backend.state.values()]),
            "ledger": repr(runtime.store._backend.entries),
            "spans": " ".join(span.to_json() for span in self.spans.get_finished_spans()),
            "log": "\n".join(
                f"{formatter.format(record)} {record.__dict__}" for record in self.caplog.records
            ),
            "progress": repr(self.reports),
        }


@pytest.fixture
def everything(caplog, spans):
    caplog.set_level(logging.DEBUG)
    return Everything(caplog, spans)


Token = Annotated[str, Secret("api_token")]


def returned(form):
    async def act(token: Token) -> dict[str, str]:
        """Return it."""
        assert token == VALUE
        return {"found": f"<{form}>", f"key {form}": "x"}

    return act


def nested(form):
    def act(token: Token) -> dict[str, list[dict[str, str]]]:
        """Return it, deep inside."""
        return {"rows": [{"a": "b"}, {"c": f"it is {form}, twice: {form}"}]}

    return act


def too_much(form):
    async def act(token: Token) -> dict[str, list[str]]:
        """Return so much that it is cut."""
        return {"rows": [f"{n} {form}" for n in range(3000)]}

    return act


def partly(form):
    async def act(token: Token) -> dict[str, str]:
        """Do some of it."""
        return Partial(completed=[form], failed=[{"why": form}], data={"found": form})

    return act


def wrong(form):
    async def act(token: Token) -> dict[str, int]:
        """Return what was not declared."""
        return {"found": form}

    return act


def raised(form):
    async def act(token: Token) -> dict[str, str]:
        """Raise it."""
        try:
            return {}[form]
        except KeyError as error:
            raise ValueError(f"can't use {form}") from error

    return act


def raised_in_a_thread(form):
    def act(token: Token) -> dict[str, str]:
        """Raise it."""
        raise RuntimeError(form)

    return act


def logged(form):
    async def act(token: Token, ctx: Context) -> dict[str, bool]:
        """Log it."""
        ctx.log.info("connecting with %s", form)
        ctx.log.warning(form)
        try:
            int(form)
        except ValueError:
            ctx.log.exception("failed")
        return {"ok": True}

    return act


def reported(form):
    async def act(token: Token, ctx: Context) -> dict[str, bool]:
        """Report it."""
        ctx.progress(1, 2, f"with {form}")
        return {"ok": True}

    return act


CHANNELS = [
    returned, nested, too_much, partly, wrong, raised, raised_in_a_thread, logged, reported,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("channel", CHANNELS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("effect", ["read_only", "draft"])
async def test_no_form_of_a_secret_comes_through(everything, channel, form, effect):
    made = tool(
        **{**READS, "effect": effect, "name": "act"},
        state_effects=[StateEffect(key="found", merge="append")],
    )(channel(FORMS[form]))
    runtime = runtime_for(made, secrets={"api_token": VALUE})
    proposal = Proposal(tool="act", arguments={}, run_id="run_1")
    seen = await runtime.submit(proposal, someone(), progress=everything.reports.append)
    left = await everything.of(runtime, seen)
    assert {name: leaks(text) for name, text in left.items() if leaks(text)} == {}
    said = " ".join(left.values())
    assert "[secret.api_token]" in said, "it was there, and a name stands in its place"


async def test_a_number_is_a_secret_too():
    @tool(**READS)
    async def act(pin: Annotated[str, Secret("pin")]) -> dict[str, int]:
        """Return it as a number."""
        return {"pin": int(pin)}

    runtime = runtime_for(act, secrets={"pin": "8412956073"})
    seen = await runtime.submit(Proposal(tool="act", arguments={}, run_id="r"), someone())
    assert "8412956073" not in json.dumps(seen.envelope())


async def test_a_secret_is_in_no_schema_hash_or_key():
    @tool(**{**READS, "effect": "draft"})
    async def act(token: Token) -> dict[str, bool]:
        """Act."""
        return {"ok": True}

    keys, hashes = set(), set()
    for value in ("first secret", "second secret"):
        runtime = runtime_for(act, secrets={"api_token": value}, clock=FakeClock())
        await runtime.submit(Proposal(tool="act", arguments={}, run_id="run_1"), someone())
        ((_, key),) = runtime.store._backend.entries
        keys.add(key)
        hashes.add(act.contract.hash)
    assert len(keys) == len(hashes) == 1
    assert "token" not in json.dumps(act.contract.affordance.input_schema["properties"])


async def test_a_secret_is_asked_for_only_when_everything_has_passed():
    asked = []

    async def resolve(tenant, name):
        asked.append((tenant, name))
        return VALUE

    @tool(**{**READS, "effect": "external_notification"}, consequence="It is sent.")
    async def send(token: Token) -> dict[str, bool]:
        """Send."""
        return {"ok": True}

    @tool(**READS, scopes=["case:read"])
    async def look(token: Token) -> dict[str, bool]:
        """Look."""
        return {"ok": True}

    runtime = runtime_for(send, look, secrets=resolve)
    held = await runtime.submit(Proposal(tool="send", arguments={}, run_id="r"), someone())
    assert held.approval_id is not None
    denied = await runtime.submit(Proposal(tool="look", arguments={}, run_id="r"), someone())
    assert not denied.ok
    wrong = await runtime.submit(
        Proposal(tool="look", arguments={"token": "x"}, run_id="r"), someone()
    )
    assert not wrong.ok
    assert asked == []
    allowed = someone(scopes=["case:read"])
    assert (await runtime.submit(Proposal(tool="look", arguments={}, run_id="r"), allowed)).ok
    assert asked == [("acme", "api_token")]


async def test_a_tenant_never_gets_anothers_secret():
    used = []

    @tool(**READS)
    async def look(token: Token) -> dict[str, bool]:
        """Look."""
        used.append(token)
        return {"ok": True}

    runtime = runtime_for(look, secrets={"acme": {"api_token": "acme's own"}})
    ask = Proposal(tool="look", arguments={}, run_id="r")
    assert (await runtime.submit(ask, someone())).ok
    other = await runtime.submit(ask, someone(tenant="other"))
    assert not other.ok
    assert used == ["acme's own"]


async def test_a_secret_that_is_too_short_to_be_hidden_is_refused(caplog):
    @tool(**READS, max_retries=0)
    async def look(token: Token) -> dict[str, bool]:
        """Look."""
        return {"ok": True}

    runtime = runtime_for(look, secrets={"api_token": "short"})
    seen = await runtime.submit(Proposal(tool="look", arguments={}, run_id="r"), someone())
    assert not seen.ok
    assert "short" not in caplog.text.replace("too short", "").replace("shorter", "")
    assert "8" in caplog.text
