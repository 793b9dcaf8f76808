"""`dev.py`: options reach the program that they are for, and newer CPythons are found."""

import importlib.util
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "dev.py"


@pytest.fixture
def dev(monkeypatch, tmp_path):
    spec = importlib.util.spec_from_file_location("dev_py", FILE)
    dev = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(dev)
    monkeypatch.setattr(dev.Environment, "ensure", lambda *_: None)
    monkeypatch.setattr(dev, "activate", lambda: None)
    for name in ("PATH", "HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    return dev


@pytest.mark.parametrize("words", [["--auto", "--postgres"], ["--", "--auto", "--postgres"]])
def test_options_of_the_demo_are_handed_on(dev, words, monkeypatch):
    started = []
    monkeypatch.setattr(dev, "run_program", lambda given: started.append(given) or 0)
    monkeypatch.setattr(sys, "argv", ["dev.py", "demo", *words])
    assert dev.main() == 0
    assert started == [["examples/case_assistant", "--auto", "--postgres"]]


def test_progress_of_pip_says_how_many_packages_are_found_and_installed(dev, tmp_path, capsys):
    packages = tmp_path / "lib/python3.11/site-packages"
    (packages / "pip-25.0.dist-info").mkdir(parents=True)
    progress = dev.PipProgress(tmp_path)

    def output():
        yield "Collecting httpx>=0.28 (from counterseal)\n"
        yield "Collecting rich>=14 (from counterseal)\n"
        progress.tell()
        yield "Installing collected packages: httpx, rich, counterseal\n"
        (packages / "httpx-0.28.dist-info").mkdir()

    progress.follow(output())
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith("found 2 packages; now rich")
    assert lines[-1].endswith("installed 1 of 3 packages")


def interpreter(folder, version, *, says=None):
    """A program that says which Python it is, or fails as a shim of pyenv does."""
    file = folder / f"python{version}"
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\necho {says}\n" if says else "#!/bin/sh\nexit 127\n")
    file.chmod(0o755)
    return file


def test_the_newest_cpython_is_chosen_wherever_it_was_installed(dev, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "version_info", (3, 11, 7))
    assert dev.newer_environment() is None
    interpreter(tmp_path, "3.12", says="cpython 3.12")
    assert dev.newer_environment().interpreter == str(tmp_path / "python3.12")
    interpreter(tmp_path, "3.13")  # a shim that leads nowhere
    interpreter(tmp_path, "3.14", says="pypy 3.14")
    real = interpreter(tmp_path / ".pyenv/versions/3.13.9/bin", "3.13", says="cpython 3.13")
    newer = dev.newer_environment()
    assert (newer.interpreter, newer.folder.name) == (str(real), ".venv-3.13")


def test_a_machine_without_a_newer_cpython_says_so(dev, monkeypatch):
    notes = []
    monkeypatch.setattr(dev, "newer_environment", lambda: None)
    monkeypatch.setattr(dev, "find_browser", lambda: "chromium")
    monkeypatch.setattr(dev, "run_steps", lambda _, more: notes.extend(more) or 0)
    monkeypatch.setattr(sys, "argv", ["dev.py", "test"])
    monkeypatch.setenv("COUNTERSEAL_TEST_BROWSER", "restored afterwards")
    assert dev.main() == 0
    assert notes == ["no CPython newer than 3.11 found: the quick suite was not run on one"]
