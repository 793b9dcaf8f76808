"""The packet: what it says of a call, and that no value of the call can say something else."""

import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from counterseal.approvals.display import (
    leaves,
    name_of,
    shown,
    shown_text,
    span,
    value_parts,
    visible,
)
from counterseal.approvals.packet import make_packet
from counterseal.approvals.packet_formats import html, markdown, text
from counterseal.approvals.terms import Choice, Pattern, Terms, Vote, strictest
from counterseal.contract.model import Contract, DataClassification
from counterseal.observation.redact import Redactor

from .conftest import ARGUMENTS, CREATED

RLO, ZWSP, BELL, ESC = "\u202e", "\u200b", "\x07", "\x1b[31m"


def redact(value):
    return Redactor().redact(value)[0]


# What it says ------------------------------------------------------------------------------------


def test_it_holds_every_field_that_an_approver_needs(packet):
    made = packet(
        votes=[Vote(approver="u_8", decision=Choice.APPROVE, voted_at=CREATED + 60)],
        origins={"/amount": "untrusted"},
    )
    record = made.record()
    assert json.loads(json.dumps(record)) == record
    assert record["action"] == {
        "tool": "charge_card",
        "version": "2.1.0",
        "effect": "irreversible",
        "contract_hash": made.contract_hash,
    }
    assert record["consequence"] == "4999.00 USD are taken from cust_9921."
    assert record["target"] == "invoice:inv_1007"
    assert record["arguments"] == ARGUMENTS
    assert record["origins"] == {"/amount": "untrusted"}
    assert record["before"] == {"status": "open", "total": "4999.00"}
    assert record["after"] == {"status": "paid"}
    assert record["changes"] == [{"pointer": "/status", "before": "open", "after": "paid"}]
    assert record["fingerprint"] == "f2a8...3b1a"
    assert record["risk_class"] == "CRITICAL_MUTATION"
    assert record["why"] == {"reason": "Money moves.", "rule": "money"}
    assert record["approval"]["pattern"] == "dual_control"
    assert record["approval"]["who"] == "2 different people, but not u_7"
    assert record["votes"]["so_far"] == "1 of 2"
    assert record["votes"]["cast"][0]["approver"] == "u_8"
    assert record["requester"] == {"tenant": "acme", "agent": "billing-agent", "user": "u_7"}
    assert record["reversibility"]["compensation_tool"] == "refund_card"
    assert "Nothing is executed" in record["if_rejected"]
    assert record["created_at"] == "2026-06-13T15:30:00Z"
    assert record["expires_at"] == "2026-06-13T15:40:00Z"
    assert (record["approval_id"], record["trace_id"]) == ("appr_123", "trace_abc123")


CALLS = (
    "Calls charge_card with customer_id cust_9921, invoice_id inv_1007, "
    "amount 4999.00, currency USD"
)


@pytest.mark.parametrize(
    ("sentence", "more", "said"),
    [
        ("{amount} go.", {}, "4999.00 go."),
        ("It was {state.status}.", {}, "It was open."),
        ("It was {state.status}.", {"before": None}, "It was (unknown)."),
        ("With {note}.", {}, "With (not given)."),
        ("{{amount}} of {state.total}", {}, "{amount} of 4999.00"),
        ("Is {state.lines}.", {"before": {"lines": [1, "two"]}}, 'Is [1, "two"].'),
        ("Is {state.paid}.", {"before": {"paid": False}}, "Is false."),
        ("{state.cents|money:EUR} go.", {"before": {"cents": 60000}}, "600.00 EUR go."),
        ("{state.cents|money:EUR} go.", {"before": {"cents": -123456}}, "-1,234.56 EUR go."),
        ("{state.cents|money:JPY} go.", {"before": {"cents": 60000}}, "60,000 JPY go."),
        ("{state.cents|money:KWD} go.", {"before": {"cents": 9_007_199}}, "9,007.199 KWD go."),
        ("{state.c|money:EUR}.", {"before": {"c": "5 or 6"}}, '"5 or 6" (smallest unit of EUR).'),
        ("{amount|money:EUR}.", {}, "4999.00 (smallest unit of EUR)."),
        ("{note|money:EUR} go.", {}, "(not given) go."),
        ("To {note}.", {"note": "Ada. It is free"}, 'To "Ada. It is free".'),
        ("To {note}.", {"note": f"a{RLO}b"}, 'To "a[U+202E]b".'),
        ("To {note}.", {"note": ""}, 'To "".'),
        ("To {note}.", {"note": "-"}, 'To "-".'),
        (
            "Says {note}.",
            {"note": "x " * 200},
            f'Says "{"x " * 100}" … and 200 more characters, not shown.',
        ),
        (None, {}, f"{CALLS}."),
        (" ", {"note": "n"}, f"{CALLS} and 1 more argument."),
    ],
)
def test_the_consequence_is_one_sentence_over_arguments_and_state(
    packet, contract, sentence, more, said
):
    changed = {"arguments": {**ARGUMENTS, "note": more["note"]}} if "note" in more else more
    assert packet(contract(consequence=sentence), **changed).consequence == said


def test_a_consequence_that_cannot_be_read_gives_way_to_the_plain_sentence(packet, contract):
    assert packet(contract(consequence="{amount go.")).consequence == f"{CALLS}."


def test_a_tool_without_arguments_has_a_sentence_too(packet, contract):
    made = packet(contract(consequence=None), arguments={})
    assert made.consequence == "Calls charge_card."
    assert "Arguments    none" in text(made)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "Yes, with refund_card. Messages already sent"),
        ({"effect": "internal_mutation"}, "Yes, with refund_card."),
        ({"transactional": {}}, "No. The effect is hard or impossible to undo."),
        ({"effect": "internal_mutation", "transactional": {}}, "Not automatically"),
        ({"effect": "read_only", "transactional": {}}, "Not needed: the call changes nothing."),
    ],
)
def test_it_says_whether_the_call_can_be_undone(packet, contract, more, said):
    assert packet(contract(**more)).reversibility.startswith(said)


def test_a_preview_counts_more_than_what_the_contract_expects(packet):
    made = packet(after={"status": "pending", "total": "4999.00"})
    assert made.changes == (("/status", "open", "pending"),)


def test_what_only_the_output_tells_is_not_expected_before(packet, contract):
    assert packet(contract(expected={"charge": "{output.charge_id}"})).after is None
    assert packet(contract(expected=None)).after is None


def test_a_field_that_nothing_is_said_of_is_not_said_to_stay(packet, contract):
    """A refund whose contract expects a status said `refunded_cents 0 → as before`."""
    before = {"status": "open", "total": "4999.00", "owner": {"name": "Ann", "id": 7}}
    same = packet(contract(expected={"status": "open"}), before=before)
    assert same.changes == ()
    fields = {field.pointer: field.stated for field in same.other_fields()}
    assert fields == {
        "/status": True,
        "/total": False,
        "/owner/name": False,
        "/owner/id": False,
    }
    for form in (text(same), markdown(same), html(same)):
        assert "as before" not in form
    assert "After        unchanged: status" in text(same)
    assert "not stated: total, owner/name, owner/id" in text(same)
    silent = packet(contract(expected=None), before=before)
    assert "After        not stated: status, total, owner/name, owner/id" in text(silent)
    part = packet(contract(expected={"owner": {"name": "Bob"}}), before=before)
    assert [change.pointer for change in part.changes] == ["/owner/name"]
    assert [field.pointer for field in part.other_fields()] == ["/status", "/total", "/owner/id"]


@pytest.mark.parametrize(
    ("before", "after", "stated"),
    [
        ({"lines": [1, 2]}, {"lines": [1, 3]}, {"/lines/0": True}),
        ({"lines": [1, 2]}, {"lines": [1]}, {}),
        ({"a/b": 1, "c~d": 2}, {"a/b": 1}, {"/a~1b": True, "/c~0d": False}),
        ({"note": None}, {"note": None}, {"/note": True}),
        ({"note": None}, {"other": None}, {"/note": False}),
        ({"empty": {}}, {"empty": {}}, {"/empty": True}),
    ],
)
def test_what_is_stated_is_found_at_its_place(packet, before, after, stated):
    made = packet(before=before, after=after)
    assert {field.pointer: field.stated for field in made.other_fields()} == stated


def test_without_a_probe_the_state_is_left_out(packet, contract):
    card = text(packet(contract(expected=None, probe=None), before=None))
    assert "Before" not in card
    assert "After" not in card
    assert 'After        status  "paid"' in text(packet(before=None))


def test_expiry_follows_from_the_demand_unless_it_is_given(packet, demand):
    assert packet(demand=demand(expires_after=90)).expires_at == CREATED + 90
    assert packet(expires_at=CREATED + 5).expires_at == CREATED + 5


# Secrets -----------------------------------------------------------------------------------------

SECRET = "sk_live_4eC39HqLyjWDarjtT1zdp7dc"


@pytest.mark.parametrize("hidden", [SECRET, SECRET[:12] + ZWSP + SECRET[12:]])
def test_a_secret_is_shown_nowhere(packet, contract, hidden):
    made = packet(
        contract(consequence="Says {note} and {state.note}.", expected={"note": "{note}"}),
        arguments={**ARGUMENTS, "note": hidden},
        before={"note": f"old {hidden}", "password": "correct horse"},
        config={"api_key": "correct horse"},
        redact=redact,
    )
    for rendered in (text(made), markdown(made), html(made), json.dumps(made.record())):
        assert SECRET not in rendered
        assert SECRET[12:] not in rendered
        assert "correct horse" not in rendered
        assert "redacted" in rendered


def test_a_redactor_can_not_take_hidden_characters_out_of_sight(packet):
    made = packet(arguments={**ARGUMENTS, "note": f"a{ZWSP}b{RLO}c"}, redact=redact)
    assert made.arguments["note"] == "a[U+200B]b[U+202E]c"


def test_keys_that_look_alike_once_spelt_out_are_both_shown(packet):
    made = packet(before={f"a{ZWSP}": 1, "a[U+200B]": 2})
    assert made.before == {"a[U+200B]": 1, "a[U+200B] (2)": 2}


# The card ----------------------------------------------------------------------------------------

CARD = """\
┌─ APPROVAL NEEDED ───────────────────────────────────────── CRITICAL_MUTATION ─
│
│  If approved  4999.00 USD are taken from cust_9921.
│
│  Action       charge_card 2.1.0 (irreversible)
│  Target       invoice:inv_1007
│  Arguments    customer_id  "cust_9921"  (from the user)
│               invoice_id   "inv_1007"  (from a trusted tool)
│               amount       "4999.00"  (from untrusted text)
│               currency     "USD"
│  Config       region  "eu"
│
│  Before       status  "open"
│               total   "4999.00"
│  After        status  "open" → "paid"
│               not stated: total
│
│  Reversible   Yes, with refund_card. Messages already sent can't be unsent.
│  If rejected  Nothing is executed. The agent is told that the call was
│               rejected, and reads your comment.
│  Expires      in 8 minutes 30 seconds, at 2026-06-13 15:40:00 UTC
│
│  Asked by     agent billing-agent, for user u_7, at 2026-06-13 15:30:00 UTC
│  Why          Money moves. (money)
│  Approval     Compliance gate: 2 different people with the role cfo or
│               "finance lead", but not u_7; each with a justification
│  So far       1 of 2 approved
│               u_8 approved at 2026-06-13 15:31:00 UTC, why: "Article 49.",
│               comment: "Called the customer."
│  Data class   regulated; jurisdiction EU; accountable dpo@example.org
│
│  Fingerprint  f2a8...3b1a
│  Approval id  appr_123
│  Trace id     trace_abc123
│  Contract     CONTRACT
└───────────────────────────────────────────────────────────────────────────────
"""


@pytest.fixture
def full(packet):
    vote = Vote(
        approver="u_8",
        decision=Choice.APPROVE,
        voted_at=CREATED + 60,
        justification="Article 49.",
        comment="Called the customer.",
    )
    asked = Terms(
        approvers=2,
        pattern=Pattern.COMPLIANCE_GATE,
        roles=frozenset({frozenset({"finance lead", "cfo"})}),
        expires_after=600,
        data_class=DataClassification.REGULATED,
        jurisdictions=frozenset({"EU"}),
        accountable_owners=frozenset({"dpo@example.org"}),
        reason="Money moves.",
        rule="money",
    )
    return packet(
        demand=strictest([asked]),
        votes=[vote],
        config={"region": "eu"},
        origins={"/customer_id": "user", "/invoice_id": "trusted", "/amount": "untrusted"},
    )


def test_the_card_at_eighty_columns(full):
    card = text(full, now=CREATED + 90)
    shown = re.sub(r"sha256:\w+\n│ +\w+", "CONTRACT", card)
    assert shown == CARD


def test_the_card_in_ascii(full):
    card = text(full, now=CREATED + 90, plain=True)
    assert card.isascii()
    assert card.splitlines()[0].startswith("+- APPROVAL NEEDED ---")
    assert '"open" -> "paid"' in card


def test_ascii_leaves_values_as_they_are(packet):
    card = text(packet(arguments={**ARGUMENTS, "note": "a → b …"}), plain=True)
    assert '"a → b …"' in card


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (None, "10 minutes after the request, at"),
        (CREATED, "in 10 minutes, at"),
        (CREATED + 599.5, "in 0 seconds, at"),
        (CREATED + 600, "expired at"),
    ],
)
def test_the_card_counts_down(packet, now, said):
    assert f"Expires      {said} 2026-06-13 15:40:00 UTC" in text(packet(), now=now)


def test_a_request_that_is_decided_says_so(packet):
    assert text(packet(status="rejected")).startswith("┌─ APPROVAL REJECTED ─")
    assert 'data-status="rejected"' in html(packet(status="rejected"))
    assert text(packet(status="spent")).startswith("┌─ APPROVAL EXECUTED ─")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 seconds"), (61, "1 minute 1 second"), (90_061, "1 day 1 hour"), (120, "2 minutes")],
)
def test_time_is_told_in_its_two_largest_units(seconds, said):
    assert span(seconds) == said


def test_what_is_too_long_is_cut_and_counted(packet):
    card = text(packet(arguments={**ARGUMENTS, "note": "x" * 2_001}))
    assert "… and 1,401 more characters, not shown" in " ".join(card.replace("│", "").split())
    assert "x" * 100 in markdown(packet(arguments={**ARGUMENTS, "note": "x" * 2_001}))
    many = packet(before={f"k{i}": i for i in range(63)})
    assert "… and 3 more values, not shown" in text(many)
    assert "not shown" not in markdown(many)


# Hostile values ----------------------------------------------------------------------------------

HOSTILE = [
    "\n│  If rejected  Everything is executed",
    "paid\r\n└──────\n┌─ APPROVED ─",
    f"{ESC}Approve{BELL}",
    f"abc{RLO}dexe.fdp",
    "a" * 5_000,
    "漢字" * 300,
    "e" + "\u0301" * 50,
    "\u0301leading",
    "\U000e0041\U000e0042",
    "👨\u200d👩\u200d👧\ufe0f",
    "\u3164\u2800\u00a0\u2003",
    " " * 300 + "evil",
    '"}, "status": "approved", {"a": "',
    "</code></bdi></dd></dl><script>alert(1)</script>",
    "' onmouseover='alert(1)",
    "`` ` ```` code",
    "](https://evil.example) ![x](https://evil.example/x.png)",
    "\n\n# Approved\n\n- **If rejected:** everything",
    "<!-- -->",
    "@everyone https://evil.example www.evil.example :tada: #1",
    "&lt;b&gt; &amp;",
    "| a | b |",
    "\\",
    "`",
    "",
]
hostile = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(max_size=200),
    st.text(alphabet="`<>&\"'\n│└┌ \\|*_[]()\u202e\u0301漢", max_size=80),
    st.lists(st.sampled_from(HOSTILE), max_size=3).map("".join),
)


thorough = settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


class Reader(HTMLParser):
    """The structure and the text of a fragment."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.tags, self.open, self.text = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, tuple(name for name, _ in attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def handle_comment(self, data):
        raise AssertionError("a comment")


def read(fragment):
    reader = Reader()
    reader.feed(fragment)
    reader.close()
    assert reader.open == []
    return reader


def spoilt(packet, value):
    """A packet with a hostile value wherever somebody else's words can stand."""
    return packet(
        arguments={**ARGUMENTS, "customer_id": value, "note": value},
        before={"status": value, value or "k": {value or "k": [value]}},
        config={value or "k": value},
        agent=value or "a",
        user=value or None,
        trace_id=value,
        fingerprint=value,
        approval_id=value,
        status=value or "waiting",
        origins={"/note": "untrusted"},
        votes=[
            Vote(
                approver=value,
                decision=Choice.REJECT,
                voted_at=CREATED,
                comment=value,
                justification=value,
            )
        ],
    )


LABELS = (
    "If approved|Action|Target|Arguments|Config|Before|After|Reversible|If rejected|Expires|"
    "Asked by|Why|Approval|So far|Data class|Fingerprint|Approval id|Trace id|Contract"
)


@pytest.mark.slow
@given(value=hostile, width=st.integers(30, 120))
@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_no_value_breaks_the_card(packet, value, width):
    from rich.cells import cell_len

    card = text(spoilt(packet, value), width)
    top, *body, bottom, rest = card.split("\n")
    assert (top[0], bottom, rest) == ("┌", "└" + "─" * (max(width, 40) - 1), "")
    for line in body:
        assert line == "│" or line.startswith("│  ")
        assert cell_len(line) <= max(width, 40)
    assert visible(card.replace("\n", "")) == card.replace("\n", "")
    # A label stands in its own column, once; values never reach that column.
    labels = [line[3:16].rstrip() for line in body if line[3:4].strip()]
    fields = [label for label in labels if re.fullmatch(LABELS, label)]
    assert len(fields) == len(set(fields))


@given(value=hostile)
@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_no_value_is_markup_in_html(packet, value):
    made = spoilt(packet, value)
    found = read(html(made))
    allowed = {"article", "header", "p", "dl", "dt", "dd", "bdi", "code"}
    assert {tag for tag, _ in found.tags} <= allowed
    names = {name for _, attributes in found.tags for name in attributes}
    assert names <= {"class", "id", "data-pattern", "data-status", "data-expires-at"}
    assert found.tags[0][0] == "article"
    assert [tag for tag, _ in found.tags].count("article") == 1
    assert shown(made.arguments["note"][:10_000]) in found.text


def spans(line):
    """What is left of a line of Markdown when its code spans are taken out."""
    fence = re.search(r"(?<!\\)`+", line)
    if fence is None:
        return line
    closing = re.compile(rf"(?<!`){fence[0]}(?!`)").search(line, fence.end())
    assert closing, "a code span that does not end"
    return line[: fence.start()] + spans(line[closing.end() :])


@pytest.mark.slow
@given(value=hostile)
@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_no_value_is_markup_in_markdown(packet, value):
    made = spoilt(packet, value)
    lines = markdown(made).split("\n")
    assert re.match(r"### Approval .*: `\w+`$", lines[0])
    for line in lines[1:]:
        assert line == "" or line.startswith(("- **", "  - "))
        plain = re.sub(r"\\.", "", spans(line)).replace("**", "")
        assert not re.search(r"[`<>\[\]&@]", plain)
        assert "://" not in plain
    labels = [found for line in lines if (found := re.match(r"- \*\*([\w ]+):\*\*", line))]
    assert len(labels) == len({label[1] for label in labels})


@pytest.mark.slow
@given(value=hostile)
@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_every_packet_is_json(packet, value):
    record = spoilt(packet, value).record()
    assert json.loads(json.dumps(record)) == record


@given(st.text())
def test_visible_text_is_one_line_that_hides_nothing(said):
    shown = visible(said)
    assert shown.replace("\u3000", "").isprintable()
    assert visible(shown) == shown


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(json_values)
def test_every_value_is_told_once_and_by_its_place(value):
    from counterseal.canonical import at

    told = list(leaves(value))
    assert len({place for place, _ in told}) == len(told)
    for place, item in told:
        assert at(value, place) == item


def test_a_packet_is_made_of_any_contract_with_any_effect(contract, demand):
    from counterseal.contract.effects import Effect

    for effect in Effect:
        made = contract(effect=effect, transactional={})
        assert isinstance(made, Contract)
        assert text(
            make_packet(
                made,
                demand(),
                approval_id="a",
                trace_id="t",
                tenant="acme",
                agent="b",
                user=None,
                arguments={},
                fingerprint="f",
                created_at=0,
                redact=redact,
            )
        )


def test_a_name_is_never_cut_without_saying_so():
    assert name_of("case_id") == "case_id"
    assert name_of("a b") == '"a b"'
    assert name_of("x" * 100) == f'"{"x" * 60}" … and 40 more characters, not shown'


# Text as text ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("Dear Ann,\n\nyour order is here.", "Dear Ann,\n\nyour order is here."),
        ("a\tb", "a    b"),
        ("It is 7.", "It is 7."),
        ("7", '"7"'),
        ("null", '"null"'),
        ("true", '"true"'),
        ('{"a": 1}', '"{\\"a\\": 1}"'),
        ("", '""'),
        (" a", '" a"'),
        ("a\n", '"a\\n"'),
        (f"a{RLO}b\nc{ZWSP}", "a[U+202E]b\nc[U+200B]"),
        (f"a{' ' * 40}b", "a[40 blanks]b"),
        (f"a{chr(10) * 30}b", "a\n[29 empty lines]\nb"),
    ],
)
def test_a_text_is_shown_as_text_unless_it_could_be_another_value(value, text):
    assert shown_text(value) == text
    assert value_parts(value, 1000, quoted=False) == [(text, True)]
    assert value_parts(value, 1000)[0].text.startswith('"')


def test_values_that_are_no_text_stay_json():
    assert value_parts([1, "a"], 10, quoted=False) == [('[1, "a"]', True)]
    assert value_parts(None, 10, quoted=False) == [("null", True)]
    cut = value_parts("line\n" * 100, 9, quoted=False)
    assert [part.text for part in cut] == ["line\nline", " … and 491 more characters, not shown"]
