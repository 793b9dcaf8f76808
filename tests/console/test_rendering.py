"""What is not the template's own is text, whatever it is."""

import json
import re
from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from counterseal.codes import Code
from counterseal.ledger.records import HeldStatus
from counterseal.registry import QuarantineReason
from counterseal.registry.changes import Op
from counterseal.views.attention import ACTIONS
from counterseal.web.console.rendering import WORDS, address, environment, json_lines, lines
from counterseal.web.identity import safe_next

TEMPLATES = environment(lambda name: f"/static/x/{name}")


def test_there_are_words_for_everything_that_a_page_names():
    assert set(WORDS["codes"]) == set(Code.__members__)
    assert set(WORDS["statuses"]) == {"held_for_review", *(status.value for status in HeldStatus)}
    assert set(WORDS["attention"]["kinds"]) == set(ACTIONS)
    actions = {name for names in ACTIONS.values() for name in names}
    assert set(WORDS["attention"]["actions"]) == actions
    assert set(WORDS["tools"]["quarantined"]) == {reason.value for reason in QuarantineReason}
    assert set(WORDS["tools"]["changes"]) <= {op.value for op in Op}


def rendered(source, **values):
    return TEMPLATES.from_string(source).render(**values)


@given(st.text())
def test_no_text_becomes_markup(text):
    shown = rendered('<p title="{{ it }}">{{ it }}</p><pre>{{ it|lines }}</pre>', it=text)
    assert (shown.count("<"), shown.count(">"), shown.count('"')) == (4, 4, 2)


VALUES = st.recursive(st.text() | st.integers() | st.booleans() | st.none(), st.lists)


@given(VALUES)
def test_json_is_shown_in_colours_and_never_as_markup(value):
    plain, spans = re.subn(r'<span class="json-[a-z]+">|</span>', "", json_lines(value))
    assert "<" not in plain
    assert spans % 2 == 0
    if json.dumps(value).replace("\\", "") == json.dumps(value, ensure_ascii=False):
        assert json.loads(unescape(plain)) == value


def test_invisible_characters_are_spelt_out():
    assert rendered("{{ it }}", it="gro.elpmaxe\u202e") == "gro.elpmaxe[U+202E]"
    assert rendered("{{ it }}", it="a\nb\0c") == "a[U+000A]b[U+0000]c"
    assert lines("a\nb\u200b") == "a\nb[U+200B]"
    assert "[U+200B]" in json_lines({"k\u200b": 1})


def test_a_name_that_is_not_there_is_a_mistake_and_not_a_blank():
    with pytest.raises(Exception, match="undefined"):
        rendered("{{ nothing }}")


def test_what_is_too_long_is_cut_and_says_so():
    assert "more characters, not shown" in lines("x" * 300_000)
    assert len(json_lines(["x" * 300_000])) < 250_000


@given(st.text(min_size=1, max_size=60))
def test_an_address_leads_to_its_page_and_nowhere_else(name):
    path = address("approvals", name, next=name)
    assert path.startswith("/approvals/")
    assert path.isascii()
    assert path.count("/") == 2
    assert path.count("?") == 1
    assert safe_next(path) == path
    scope = {"type": "http", "path": "/", "query_string": path.split("?")[1].encode()}
    assert Request(scope).query_params["next"] == name.encode(errors="replace").decode()
