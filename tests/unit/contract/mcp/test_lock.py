"""The lock: what it says of a listing, and that no accept is ever lost."""

import json
import os
import stat
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterseal.contract.sources.mcp.definition import Definition, read_listing
from counterseal.contract.sources.mcp.lock import Lock, LockError, PinState

NAMES = st.sampled_from(["a", "b", "c/d", "e"])
TEXTS = st.text("x\u200b\u202e\u00e9\U000e0041\U0001f600\n", max_size=5)
LISTING = st.dictionaries(NAMES, TEXTS, max_size=4)


def definition(name, text="Does it."):
    return Definition.of(
        {"name": name, "description": text, "inputSchema": {"type": "object", "properties": {}}}
    )


def pinned(*names, text="Does it."):
    lock = Lock()
    for name in names:
        lock = lock.accept("git", definition(name, text), by="ann", at="2026-01-02T03:04:05Z")
    return lock


# --- comparing ------------------------------------------------------------------------------------


def test_a_listing_is_compared_by_name():
    lock = pinned("same", "other", "gone")
    seen = [definition("new"), definition("other", "Does more."), definition("same")]
    found = lock.compare("git", seen)
    assert [(one.tool, one.state) for one in found] == [
        ("gone", PinState.GONE),
        ("new", PinState.NEW),
        ("other", PinState.CHANGED),
        ("same", PinState.ACCEPTED),
    ]
    gone, new, other, _ = found
    assert gone.definition is None
    assert gone.pin is not None
    assert new.pin is None
    assert other.pin.definition == definition("other")
    assert other.definition == definition("other", "Does more.")
    assert {one.server for one in found} == {"git"}


def test_pins_of_another_server_do_not_count():
    found = pinned("a").compare("crm", [definition("a")])
    assert [one.state for one in found] == [PinState.NEW]


def test_of_two_tools_with_one_name_the_first_counts_and_the_other_is_named():
    listed = [definition("a", text).record() for text in ("First.", "Second.", "Third.")]
    definitions, unusable = read_listing([*listed, {"name": "b"}, "c"])
    assert [each.description for each in definitions.values()] == ["First."]
    assert [name for name, _ in unusable] == ["a", "a", "b", "None"]
    assert unusable[0][1] == "it is listed twice; only the first is used"


@given(accepted=LISTING, seen=LISTING)
def test_after_accepting_all_that_is_seen_nothing_is_new_or_changed(accepted, seen):
    lock = Lock()
    for name, text in {**accepted, **seen}.items():
        lock = lock.accept("git", definition(name, text), by="ann", at="now")
    found = lock.compare("git", [definition(name, text) for name, text in seen.items()])
    assert [one.tool for one in found] == sorted({*accepted, *seen})
    for one in found:
        assert one.state is (PinState.ACCEPTED if one.tool in seen else PinState.GONE)


# --- accepting ------------------------------------------------------------------------------------


def test_each_accepted_change_is_a_revision():
    lock = pinned("a")
    assert lock.pin("git", "a").revision == 1
    changed = lock.accept("git", definition("a", "Other."), by="bob", at="later")
    assert changed.pin("git", "a") == (definition("a", "Other."), 2, "later", "bob")
    assert lock.pin("git", "a").revision == 1  # a lock does not change


def test_accepting_what_is_accepted_changes_nothing():
    lock = pinned("a")
    assert lock.accept("git", definition("a"), by="bob", at="later") is lock


def test_a_forgotten_tool_is_new_again():
    lock = pinned("a", "b").forget("git", "a")
    assert lock.pin("git", "a") is None
    assert lock.pin("git", "b") is not None
    assert lock.forget("git", "b").servers == {}
    assert lock.forget("crm", "x") == lock


# --- the file -------------------------------------------------------------------------------------


def test_without_a_file_there_are_no_pins(tmp_path):
    assert Lock.load(tmp_path / "counterseal.lock") == Lock()


@given(texts=LISTING, by=TEXTS)
def test_what_is_saved_is_what_is_loaded(tmp_path_factory, texts, by):
    lock = Lock()
    for name, text in texts.items():
        lock = lock.accept("git", definition(name, text), by=by, at="2026-01-02T03:04:05Z")
    file = tmp_path_factory.mktemp("lock") / "counterseal.lock"
    Lock.update(file, lambda _: lock)
    assert Lock.load(file) == lock


def test_the_file_is_the_same_whatever_the_order_of_accepting(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    Lock.update(one, lambda _: pinned("a", "b"))
    Lock.update(other, lambda _: pinned("b", "a"))
    assert one.read_bytes() == other.read_bytes()
    assert one.read_bytes().endswith(b"}\n")


def test_invisible_characters_are_written_as_escapes(tmp_path):
    file = tmp_path / "counterseal.lock"
    Lock.update(file, lambda _: pinned("a", text="Caf\u00e9 \u200b\u202e\U000e0041 \U0001f600"))
    text = file.read_text(encoding="utf-8")
    assert "Caf\u00e9 \\u200b\\u202e\\udb40\\udc41 \U0001f600" in text


def test_the_file_keeps_its_mode_and_its_place_behind_a_link(tmp_path):
    file, link = tmp_path / "real.lock", tmp_path / "counterseal.lock"
    Lock.update(file, lambda _: pinned("a"))
    file.chmod(0o640)
    link.symlink_to(file)
    Lock.update(link, lambda _: pinned("a", "b"))
    assert link.is_symlink()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert len(Lock.load(file).servers["git"]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["counterseal.lock", "real.lock"]


def test_a_new_file_is_as_open_as_the_umask_says(tmp_path):
    file = tmp_path / "counterseal.lock"
    before = os.umask(0o027)
    try:
        Lock.update(file, lambda _: pinned("a"))
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_a_file_that_can_not_be_written_is_told(tmp_path):
    with pytest.raises(LockError, match=r"counterseal\.lock: can't be written: No such file"):
        Lock.update(tmp_path / "missing" / "counterseal.lock", lambda _: pinned("a"))


def edited(tmp_path, change):
    file = tmp_path / "counterseal.lock"
    Lock.update(file, lambda _: pinned("a"))
    data = json.loads(file.read_text(encoding="utf-8"))
    change(data, data["servers"]["git"]["a"])
    file.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(LockError) as refused:
        Lock.load(file)
    return str(refused.value).removeprefix(f"{file}: ")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda _, pin: pin["definition"].update(description="Does more."),
            "git a: the hash does not match the edited definition; restore the file",
        ),
        (
            lambda _, pin: pin.update(hash="sha256:0"),
            "git a: the hash does not match",
        ),
        (lambda _, pin: pin["definition"].update(name="b"), "git a: the definition is not in its"),
        (lambda _, pin: pin["definition"].update(icons=[]), "git a: the definition is not in its"),
        (
            lambda _, pin: pin["definition"].pop("inputSchema"),
            "git a: invalid definition: input",
        ),
        (lambda _, pin: pin.update(revision=0), "git a: revision must be 1 or more"),
        (lambda _, pin: pin.update(revision=True), "git a: revision must be 1 or more"),
        (lambda _, pin: pin.pop("accepted_by"), "git a: a pin needs exactly accepted_at"),
        (lambda _, pin: pin.update(approved=True), "git a: a pin needs exactly accepted_at"),
        (lambda data, _: data.update(version=2), "format version 2; this counterseal reads 1"),
        (lambda data, _: data.pop("servers"), "not a lock file"),
        (lambda data, _: data["servers"].update(git=[]), "git: must be an object"),
    ],
)
def test_a_lock_that_was_edited_by_hand_is_refused_with_its_place(tmp_path, change, said):
    assert edited(tmp_path, change).startswith(said)


@pytest.mark.parametrize("text", ["", "{", "<<<<<<< HEAD\n{}", '{"a": 1, "a": 2}', "[" * 100_000])
def test_a_file_that_is_no_json_is_refused(tmp_path, text):
    file = tmp_path / "counterseal.lock"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(LockError, match="not valid JSON"):
        Lock.load(file)


# --- two at once ----------------------------------------------------------------------------------


def test_update_changes_the_file_and_returns_what_is_in_it(tmp_path):
    file = tmp_path / "counterseal.lock"
    Lock.update(file, lambda _: pinned("a"))
    after = Lock.update(file, lambda lock: lock.accept("git", definition("b"), by="ann", at="now"))
    assert sorted(after.servers["git"]) == ["a", "b"]
    assert Lock.load(file) == after


def test_an_update_that_fails_leaves_the_file_alone(tmp_path):
    file = tmp_path / "counterseal.lock"
    Lock.update(file, lambda _: pinned("a"))
    before = file.read_bytes()

    def fail(lock):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Lock.update(file, fail)
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["counterseal.lock"]


ACCEPTING = """
import sys
from counterseal.contract.sources.mcp.definition import Definition
from counterseal.contract.sources.mcp.lock import Lock
for number in range(10):
    name = f"tool_{sys.argv[2]}_{number}"
    new = Definition.of({"name": name, "inputSchema": {"type": "object"}})
    Lock.update(sys.argv[1], lambda lock: lock.accept("git", new, by="ann", at="now"))
"""


@pytest.mark.slow
def test_of_processes_that_accept_at_once_none_loses_its_pins(tmp_path):
    file = tmp_path / "counterseal.lock"
    workers = [
        subprocess.Popen([sys.executable, "-c", ACCEPTING, str(file), str(n)]) for n in range(4)
    ]
    assert [worker.wait(120) for worker in workers] == [0, 0, 0, 0]
    assert len(Lock.load(file).servers["git"]) == 40


def test_an_edited_pin_is_not_mended_by_a_command_that_can_not_read_it(tmp_path):
    def edit(_, pin):
        pin["definition"].update(description="Does more.")

    said = edited(tmp_path, edit)
    assert "remove this pin from it and accept the tool again: `counterseal diff --accept`" in said
