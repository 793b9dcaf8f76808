"""The benchmark house: figures, targets, comparisons, and what is shown of them. No times."""

import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[2]))  # they are no part of the package

from benchmarks._house import command
from benchmarks._house.chart import chart
from benchmarks._house.check import FLOOR, compared, uncertainty
from benchmarks._house.command import BEGIN, END, KEPT, page
from benchmarks._house.results import Missing, Results
from benchmarks._house.rows import Result, Side, Turn, p99, ratios, rounded, side, spread
from benchmarks._house.table import cells, markdown, target

ROW = Result(
    key="call/other",
    what="Other, in memory",
    better="higher",
    unit="µs",
    ratio=4.0,
    low=3.9,
    high=4.1,
    rounds=16,
    calls=100,
    reach=3.0,
    aim=5.0,
    chart=True,
    ours=Side(name="counterseal", median=50.0, p99=80.0, versions={"counterseal": "0.1.0"}),
    theirs=Side(name="Other", median=200.0, p99=None, versions={"other": "1.2"}),
    load=(0.5, 0.9),
    when="2026-11-16T12:00:00+00:00",
)
positive = st.floats(1e-6, 1e6)


def results(*rows: Result, missing: tuple[Missing, ...] = ()) -> Results:
    made = Results()
    for row in rows:
        made.add(row)
    for one in missing:
        made.miss(one)
    return made


# --- figures --------------------------------------------------------------------------------------


def test_a_ratio_is_taken_round_by_round_and_says_how_many_times_as_fast():
    ours, theirs = [Turn(1.0), Turn(2.0)], [Turn(3.0), Turn(8.0)]
    assert ratios("higher", ours, theirs) == [3.0, 4.0]
    assert ratios("lower", ours, theirs) == [1 / 3, 1 / 4]


def test_a_round_that_only_one_party_finished_does_not_count():
    assert ratios("higher", [Turn(1.0), Turn(1.0)], [Turn(2.0)]) == [2.0]


@given(st.lists(positive, min_size=1, max_size=30))
def test_the_middle_lies_between_the_quarters(values):
    low, middle, high = spread(values)
    assert min(values) <= low <= middle <= high <= max(values)


def test_p99_is_what_ninety_nine_of_a_hundred_stay_below():
    assert p99(range(1, 101)) == 99
    assert p99(range(1, 1001)) == 990


def test_few_samples_have_no_p99():
    assert p99(range(99)) is None


@given(positive)
def test_rounding_keeps_three_digits(value):
    assert rounded(value) == pytest.approx(value, rel=0.006)
    assert rounded(0.0) == 0.0


def test_a_side_tells_its_median_in_the_unit():
    seen = side("x", [Turn(1e-6), Turn(3e-6), Turn(2e-6)], "µs", {"x": "1"})
    assert (seen.median, seen.p99, seen.versions) == (2.0, None, {"x": "1"})


@pytest.mark.parametrize(
    ("better", "ratio", "reach", "aim", "verdict"),
    [
        ("higher", 5.0, 3.0, 5.0, "aim"),
        ("higher", 4.0, 3.0, 5.0, "reach"),
        ("higher", 2.0, 3.0, 5.0, "short"),
        ("higher", 2.0, None, None, ""),
        ("higher", 0.5, None, 1.0, "short"),
        ("lower", 1.1, 1.5, 1.2, "aim"),
        ("lower", 1.4, 1.5, 1.2, "reach"),
        ("lower", 1.6, 1.5, None, "short"),
    ],
)
def test_the_verdict_follows_the_targets(better, ratio, reach, aim, verdict):
    row = replace(ROW, better=better, ratio=ratio, reach=reach, aim=aim)
    assert row.verdict == verdict


# --- comparing with what was kept -----------------------------------------------------------------


def worse(before: Result, now: Result) -> bool:
    (change,) = compared({before.key: before}, {now.key: now})
    return change.worse


def test_a_ratio_that_fell_by_a_third_got_worse():
    assert worse(ROW, replace(ROW, ratio=2.7, low=2.6, high=2.8))


def test_a_ratio_that_rose_did_not():
    assert not worse(ROW, replace(ROW, ratio=8.0, low=7.9, high=8.1))


def test_of_times_more_is_worse():
    short = replace(ROW, better="lower", ratio=1.2, low=1.19, high=1.21)
    assert worse(short, replace(short, ratio=1.6, low=1.59, high=1.61))
    assert not worse(short, replace(short, ratio=1.0, low=0.99, high=1.01))


def test_what_can_be_chance_is_not_told_as_worse():
    wavering = replace(ROW, ratio=2.7, low=1.5, high=4.0, rounds=4)
    assert uncertainty(wavering) > 0.5
    assert not worse(ROW, wavering)


@given(st.floats(1 - FLOOR / 2, 1 + FLOOR))
def test_less_than_a_quarter_is_never_worse(part):
    assert not worse(ROW, replace(ROW, ratio=4.0 * part))


def test_rows_that_are_not_in_both_are_not_compared():
    assert compared({}, {ROW.key: ROW}) == []


def test_a_change_says_what_was_and_what_is():
    (change,) = compared({ROW.key: ROW}, {ROW.key: replace(ROW, ratio=2.0)})
    assert "call/other: 4x before, 2x now: 100% worse" in str(change)


# --- files ----------------------------------------------------------------------------------------


def test_what_was_written_is_read_again(tmp_path):
    path = tmp_path / "latest.json"
    results(ROW, missing=(Missing("Gone", "no wheel"),)).write(path)
    again = Results.read(path)
    assert again.rows == {ROW.key: ROW}
    assert list(again.missed.values()) == [Missing("Gone", "no wheel")]


def test_every_row_is_in_the_file_as_soon_as_it_is_known(tmp_path):
    made = Results(tmp_path / "last.json")
    made.add(ROW)
    assert list(Results.read(tmp_path / "last.json").rows) == [ROW.key]


def test_a_newer_run_replaces_its_own_rows_only():
    other = replace(ROW, key="ledger/x")
    old = results(ROW, other, missing=(Missing("Other", "x"), Missing("Third", "y")))
    both = old.merged(results(replace(ROW, ratio=9.0)))
    assert {key: row.ratio for key, row in both.rows.items()} == {ROW.key: 9.0, other.key: 4.0}
    assert list(both.missed) == ["Third"]  # the other one took part this time


def test_no_file_holds_no_rows(tmp_path):
    assert Results.read(tmp_path / "nothing.json").rows == {}


# --- what is shown --------------------------------------------------------------------------------


def test_a_row_says_its_ratio_its_target_and_both_times():
    assert cells(ROW) == (
        "Other, in memory",
        "4x as fast (3.9 to 4.1)",
        "≥ 3, aim 5 ✓",
        "50 µs",
        "80",
        "200 µs",
        "",
        "16 x 100",
        "0.5",
    )


def test_a_row_about_time_or_memory_says_so():
    assert cells(replace(ROW, better="lower"))[1].startswith("4x the time")
    assert cells(replace(ROW, better="lower", unit="MiB"))[1].startswith("4x the memory")
    assert target(replace(ROW, better="lower", aim=None)) == "≤ 3"


def test_the_page_names_versions_the_machine_and_who_is_missing():
    text = markdown(results(ROW, missing=(Missing("Gone", "no wheel"),)))
    assert "### In process, a read in memory, every gate: processor time" in text
    assert "| Other, in memory | 4x as fast" in text
    assert "counterseal 0.1.0, other 1.2" in text
    assert "Could not take part: Gone: no wheel" in text


def test_the_table_is_put_between_the_marks_and_checked(tmp_path, monkeypatch):
    for name in ("KEPT", "CHART", "PAGE", "FRONT"):
        monkeypatch.setattr(command, name, tmp_path / getattr(command, name).name)
    command.PAGE.write_text(f"# Before\n\n{BEGIN}\nold\n{END}\n\nAfter\n", encoding="utf-8")
    command.FRONT.write_text(f"# Front\n{BEGIN}{END}\n", encoding="utf-8")
    results(ROW, replace(ROW, key="call/await-langchain")).write(command.KEPT)
    assert page(check=True) == 1
    assert page(check=False) == 0
    assert page(check=True) == 0
    text = command.PAGE.read_text(encoding="utf-8")
    assert text.startswith("# Before\n")
    assert text.endswith("After\n")
    assert "old" not in text
    assert "| Other, in memory | 4x as fast |" in command.FRONT.read_text(encoding="utf-8")


def test_page_and_chart_show_the_figures_that_are_kept():
    assert Results.read(KEPT).rows
    assert page(check=True) == 0, "python3 dev.py bench --page"


SVG = "{http://www.w3.org/2000/svg}"


def drawn(*rows: Result) -> ET.Element:
    return ET.fromstring(chart(rows, "measured <here>"))


def test_the_chart_has_a_bar_and_a_goal_for_every_row_that_is_meant_for_it():
    shown = drawn(ROW, replace(ROW, key="call/b", reach=None), replace(ROW, key="c/d", chart=False))
    assert len(shown.findall(f"{SVG}rect")) == 2
    assert len(shown.findall(f"{SVG}path[@class='goal']")) == 1


def test_a_faster_row_has_a_longer_bar_and_a_slower_one_points_the_other_way():
    slow = replace(ROW, key="call/b", ratio=0.5)
    fast = replace(ROW, key="call/c", ratio=40.0)
    bars = drawn(ROW, slow, fast).findall(f"{SVG}rect")
    kinds = [bar.get("class") for bar in bars]
    assert kinds == ["faster", "slower", "faster"]
    assert float(bars[2].get("width")) > float(bars[0].get("width"))
    ends = float(bars[1].get("x")) + float(bars[1].get("width"))
    assert ends == pytest.approx(float(bars[0].get("x")), abs=0.2)


def test_text_in_the_chart_is_escaped_and_fits_any_page():
    text = chart([replace(ROW, what="A & <B>")], "measured <here>")
    assert "A &amp; &lt;B&gt;" in text
    assert "measured &lt;here&gt;" in text
    assert "prefers-color-scheme: dark" in text


def test_a_chart_of_nothing_is_still_a_picture():
    assert drawn().tag == f"{SVG}svg"
