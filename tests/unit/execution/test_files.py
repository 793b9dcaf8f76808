"""A tool's own directory: what it can do with files, and that no path leads out of it."""

import os
import socket
import stat
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterseal.errors import FilesError
from counterseal.execution.files import Files, directory_for

SECRET = "from outside"


def names_in(folder):
    return sorted(path.name for path in Path(folder).iterdir())


def make_outside(folder):
    """A directory beside the tool's, with a file that it must never see or touch."""
    outside = folder / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text(SECRET)
    return outside


@pytest.fixture
def outside(tmp_path):
    return make_outside(tmp_path)


@pytest.fixture
def files(tmp_path, outside):
    return Files(tmp_path / "base" / "tool")


# --- what it is for -------------------------------------------------------------------------------


def test_what_is_written_can_be_read(files):
    files.write_text("notes/today.txt", "grüezi")
    files.write_bytes("raw", b"\0\xff")
    assert files.read_text("notes/today.txt") == "grüezi"
    assert files.read_text("notes/today.txt", encoding="latin-1") == "grÃ¼ezi"
    assert files.read_bytes("raw") == b"\0\xff"
    assert files.size("notes/today.txt") == 7


def test_the_directory_is_made_by_the_first_write_and_is_private(files):
    assert files.list() == []
    assert not files.exists("a/b.txt")
    assert not files.root.parent.exists()
    files.write_text("a/b.txt", "x")
    for made in (files.root.parent, files.root, files.root / "a"):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert stat.S_IMODE((files.root / "a/b.txt").stat().st_mode) == 0o600


def test_files_are_listed_in_order_and_by_prefix(files):
    for path in ("b.txt", "a/2.txt", "a/1.txt", "a/deep/er.txt", "ab.txt"):
        files.write_text(path, path)
    assert files.list() == ["a/1.txt", "a/2.txt", "a/deep/er.txt", "ab.txt", "b.txt"]
    assert files.list("a/") == ["a/1.txt", "a/2.txt", "a/deep/er.txt"]
    assert files.list("../") == []


def test_a_file_can_be_written_bit_by_bit_and_appended_to(files):
    with files.open("log/lines.txt", "w") as file:
        file.write("one\n")
    with files.open("log/lines.txt", "ab") as file:
        file.write(b"two\n")
    with files.open("log/lines.txt", "a", encoding="latin-1") as file:
        file.write("drü\n")
    with files.open("log/lines.txt") as file:
        assert file.readlines() == [b"one\n", b"two\n", b"dr\xfc\n"]
    with files.open("log/lines.txt", "wb") as file:
        file.write(b"new")
    with files.open("log/lines.txt", "r") as file:
        assert file.read() == "new"


def test_a_deleted_file_is_gone(files):
    files.write_text("a.txt", "x")
    assert files.exists("a.txt")
    files.delete("a.txt")
    assert not files.exists("a.txt")
    assert files.list() == []


@pytest.mark.parametrize("read", ["read_bytes", "read_text", "open", "size", "delete"])
def test_a_file_that_is_not_there_is_an_ordinary_error(files, read):
    for path in ("none.txt", "none/at/all.txt"):
        with pytest.raises(FileNotFoundError):
            getattr(files, read)(path)
    files.write_text("other.txt", "x")
    with pytest.raises(FileNotFoundError):
        getattr(files, read)("none.txt")


@pytest.mark.parametrize("mode", ["", "x", "r+", "wb+", "rU", "br", "rbt"])
def test_a_mode_that_it_does_not_have_is_refused(files, mode):
    with pytest.raises(ValueError, match="rb, wb, ab, r, w, a"):
        files.open("a.txt", mode)


def test_an_unknown_encoding_leaves_no_file_behind(files):
    with pytest.raises(LookupError):
        files.open("a.txt", "w", encoding="klingon")
    assert not files.root.exists()


# --- whole or not at all --------------------------------------------------------------------------


def test_a_reader_keeps_what_it_has_opened_when_the_file_is_replaced(files):
    files.write_text("a.txt", "old")
    with files.open("a.txt") as before:
        files.write_text("a.txt", "new")
        assert before.read() == b"old"
    assert files.read_text("a.txt") == "new"


def test_a_write_that_fails_leaves_nothing_behind(files):
    files.write_text("a.txt", "old")
    with pytest.raises(TypeError):
        files.write_bytes("a.txt", ["no", "bytes"])
    (files.root / "folder").mkdir()
    with pytest.raises(FilesError, match="is a directory"):
        files.write_text("folder", "x")
    assert files.read_text("a.txt") == "old"
    assert names_in(files.root) == ["a.txt", "folder"]


def test_a_write_that_was_cut_off_is_not_listed(files):
    files.write_text("a.txt", "x")
    (files.root / ".unfinished-0123456789abcdef").write_text("half")
    assert files.list() == ["a.txt"]
    with pytest.raises(FilesError, match="reserved"):
        files.read_text(".unfinished-0123456789abcdef")


# --- bounds ---------------------------------------------------------------------------------------


@pytest.fixture
def small(files):
    return Files(files.root, max_bytes=10)


def test_a_file_may_be_as_large_as_allowed_and_no_larger(small):
    small.write_bytes("a", b"x" * 10)
    assert small.read_bytes("a") == b"x" * 10
    with pytest.raises(FilesError, match="larger than 10 bytes"):
        small.write_bytes("a", b"x" * 11)
    assert small.size("a") == 10


@pytest.mark.parametrize("mode", ["wb", "ab"])
def test_a_file_that_is_written_bit_by_bit_is_bounded_too(small, mode):
    small.write_bytes("a", b"12345")
    with small.open("a", mode) as file:
        for _ in range(5):
            file.raw.write(b"x")
        for _ in range(5 if mode == "wb" else 0):
            file.raw.write(b"x")
        with pytest.raises(FilesError, match="larger than 10 bytes"):
            file.raw.write(b"x")
    assert small.size("a") == 10


def test_what_was_buffered_and_does_not_fit_is_refused_at_the_latest_when_it_is_closed(small):
    file = small.open("a", "wb")
    file.write(b"x" * 11)
    with pytest.raises(FilesError, match="larger than 10 bytes"):
        file.close()
    assert file.closed
    assert small.size("a") == 0


def test_a_hole_does_not_get_around_the_bound(small):
    with small.open("a", "wb") as file:
        file.raw.seek(100)
        with pytest.raises(FilesError):
            file.raw.write(b"x")
        with pytest.raises(FilesError):
            file.raw.truncate(100)
        file.raw.seek(9)
        file.raw.write(b"x")
    assert small.size("a") == 10


def test_a_file_that_is_too_large_is_not_read(files, small):
    files.write_bytes("a", b"x" * 11)
    for read in (small.read_bytes, small.read_text, small.open):
        with pytest.raises(FilesError, match="larger than 10 bytes"):
            read("a")


# --- no way out -----------------------------------------------------------------------------------

CALLS = {
    "read_bytes": (),
    "read_text": (),
    "write_bytes": (b"x",),
    "write_text": ("x",),
    "open": (),
    "open for writing": ("wb",),
    "open to append": ("a",),
    "exists": (),
    "size": (),
    "delete": (),
}


def call(files, name, path):
    return getattr(files, name.split()[0])(path, *CALLS[name])


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/etc/passwd",
        "//a",
        ".",
        "..",
        "../outside/secret.txt",
        "a/../../outside/secret.txt",
        "a/./b",
        "a//b",
        "a/",
        "a\0b",
        "a\\b",
        "..\\outside",
        "x" * 256,
        "ü" * 128,
        "\ud800",
        "/".join("a" * 33),
        b"bytes",
        Path("a"),
        None,
    ],
)
def test_a_path_that_may_not_be_is_refused_before_anything_happens(files, outside, name, path):
    with pytest.raises(FilesError):
        call(files, name, path)
    assert not files.root.exists()
    assert names_in(outside) == ["secret.txt"]


def test_names_that_only_look_odd_are_fine(files):
    paths = ["...", "a b", "-rf", "~", "$HOME", "*", "a\nb", "é", "x" * 255, "con", "C:", "..a"]
    for path in paths:
        files.write_text(path, path)
    assert files.list() == sorted(paths)
    assert [files.read_text(path) for path in paths] == paths


def set_traps(files, outside):
    """Ways out of the directory, made by somebody who may write into it directly."""
    files.write_text("plain.txt", "inside")
    (files.root / "link").symlink_to(outside)
    (files.root / "up").symlink_to("..")
    (files.root / "secret.txt").symlink_to(outside / "secret.txt")
    (files.root / "dangling").symlink_to(outside / "new.txt")
    (files.root / "loop").symlink_to("loop")
    (files.root / "linked").symlink_to("plain.txt")
    (files.root / "folder").mkdir()
    (files.root / "hard").hardlink_to(outside / "secret.txt")
    os.mkfifo(files.root / "pipe")


@pytest.fixture
def traps(files, outside, monkeypatch):
    set_traps(files, outside)
    with socket.socket(socket.AF_UNIX) as server, monkeypatch.context() as here:
        here.chdir(files.root)  # a socket's address has to be short
        server.bind("socket")
    return files


READS = ("read_bytes", "read_text", "open", "size")
OPENS = ("open for writing", "open to append")
TRAPS = ("secret.txt", "dangling", "loop", "linked", "hard", "pipe", "socket", "folder")


@pytest.mark.parametrize("name", [*READS, *OPENS])
@pytest.mark.parametrize("path", [*TRAPS, "link/secret.txt", "up/tool/plain.txt", "plain.txt/x"])
def test_what_is_no_plain_file_is_refused(traps, outside, name, path):
    with pytest.raises(FilesError):
        call(traps, name, path)
    assert (outside / "secret.txt").read_text() == SECRET
    assert names_in(outside) == ["secret.txt"]
    assert traps.read_text("plain.txt") == "inside"


def test_what_is_no_plain_file_is_not_listed_and_does_not_exist(traps):
    assert traps.list() == ["plain.txt"]
    assert not any(traps.exists(path) for path in TRAPS)


@pytest.mark.parametrize("path", ["secret.txt", "dangling", "loop", "linked", "hard", "pipe"])
def test_a_whole_write_replaces_a_link_and_not_what_it_leads_to(traps, outside, path):
    traps.write_text(path, "mine")
    assert traps.read_text(path) == "mine"
    assert not (traps.root / path).is_symlink()
    assert (outside / "secret.txt").read_text() == SECRET
    assert names_in(outside) == ["secret.txt"]
    assert traps.read_text("plain.txt") == "inside"


def test_deleting_a_link_leaves_what_it_leads_to(traps, outside):
    for path in ("secret.txt", "link", "hard", "pipe", "socket"):
        traps.delete(path)
    with pytest.raises(FilesError, match="is a directory"):
        traps.delete("folder")
    with pytest.raises(FilesError):
        traps.delete("up/tool/plain.txt")
    assert (outside / "secret.txt").read_text() == SECRET


def test_a_link_in_place_of_the_directory_itself_is_refused(tmp_path, outside):
    (tmp_path / "tool").symlink_to(outside)
    files = Files(tmp_path / "tool")
    for name in CALLS:
        with pytest.raises(FilesError):
            call(files, name, "secret.txt")
    assert (outside / "secret.txt").read_text() == SECRET


def test_nothing_stays_open_after_a_refusal(traps):
    refused = [(name, path) for path in (*TRAPS, "link/secret.txt") for name in (*READS, *OPENS)]
    before = len(names_in("/dev/fd"))
    for name, path in refused:
        with pytest.raises(FilesError):
            call(traps, name, path)
    assert len(names_in("/dev/fd")) == before


names = st.sampled_from(
    [".", "..", "", "link", "up", "hard", "pipe", "folder", "tool", "outside", "secret.txt", "new"]
)
paths = st.lists(names | st.text(max_size=3), min_size=1, max_size=5).map("/".join) | st.text()


@given(path=paths, name=st.sampled_from(sorted(CALLS)))
def test_any_path_stays_inside_or_is_refused(path, name):
    with TemporaryDirectory() as temporary:
        base = Path(temporary)
        outside, files = make_outside(base), Files(base / "tool")
        set_traps(files, outside)
        try:
            result = call(files, name, path)
        except (FilesError, FileNotFoundError):
            pass
        else:
            if hasattr(result, "close"):
                result.close()
            assert result not in {SECRET, SECRET.encode()}
            assert (files.root / path).parent.resolve().is_relative_to(files.root.resolve())
        assert (outside / "secret.txt").read_text() == SECRET
        assert names_in(outside) == ["secret.txt"]
        assert names_in(base) == ["outside", "tool"]


@pytest.mark.parametrize("path", ["a/secret.txt", "secret.txt"])
def test_what_is_swapped_for_a_link_while_it_is_read_never_leads_out(files, outside, path):
    files.write_text(path, "inside")
    first = path.partition("/")[0]
    here, real, link = (files.root / name for name in (first, "real", "link"))
    link.symlink_to(outside if first == "a" else outside / "secret.txt")
    round_trip = [(here, real), (link, here), (here, link), (real, here)]
    stop = threading.Event()

    def swap():
        while not stop.is_set():
            for source, target in round_trip:
                source.rename(target)

    thread = threading.Thread(target=swap)
    thread.start()
    reads = refusals = 0
    try:
        for _ in range(1_000_000):
            if min(reads, refusals) > 100:
                break
            try:
                assert files.read_text(path) == "inside"
                reads += 1
            except FilesError:
                refusals += 1
            except FileNotFoundError:
                continue  # between two steps of the swap
    finally:
        stop.set()
        thread.join()
    assert min(reads, refusals) > 100
    assert (outside / "secret.txt").read_text() == SECRET


def test_a_platform_that_cannot_keep_paths_inside_gets_no_files(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "supports_dir_fd", set())
    with pytest.raises(FilesError, match="Linux or macOS"):
        Files(tmp_path)


# --- whose directory it is ------------------------------------------------------------------------

ids = st.text(min_size=0, max_size=300) | st.sampled_from(
    ["acme", "ACME", "Acme", "a/b", "a_b", "..", ".", "", "con", "a" * 5000, "a" * 5001, "\ud800"]
)


@given(st.tuples(ids, ids, ids), st.tuples(ids, ids, ids))
def test_each_tool_of_each_run_of_each_tenant_has_a_directory_of_its_own(one, other):
    base = Path("/base")
    mine, theirs = directory_for(base, *one), directory_for(base, *other)
    assert (str(mine).lower() == str(theirs).lower()) == (one == other)
    assert mine.relative_to(base).parts == mine.parts[2:]
    for part in mine.parts[2:]:
        assert len(part) < 64
        assert all(char.isascii() and (char.isalnum() or char == "-") for char in part)


def test_a_directory_can_be_recognized_and_is_the_same_every_time(tmp_path):
    one = directory_for(tmp_path, "Acme Corp.", "run_1", "send_notice")
    assert one == directory_for(tmp_path, "Acme Corp.", "run_1", "send_notice")
    parts = one.relative_to(tmp_path).parts
    assert [part.rpartition("-")[0] for part in parts] == ["acme-corp", "run-1", "send-notice"]
