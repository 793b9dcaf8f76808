"""An environment that has the built wheel, and no checkout: what a user who installs it has.

`python -m tests.wheel_tools` makes it before the tests begin, because it fetches packages: the
wheel with the extra that the demo names, and the third-party server that the README puts behind the
gateway. It is kept in `.venv/wheel`, and made anew when the sources or the dependencies change.
`python -m tests.wheel_tools quick` runs the quick tests on a wheel with its extras `all` and `dev`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
_HOME = Path(sys.prefix) / "wheel"
_EXTRA = "demo"
_SERVER = "mcp-server-time"
_BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE", "src")


def wheel_python() -> Path:
    """The interpreter of the environment; the first caller makes it."""
    _HOME.mkdir(parents=True, exist_ok=True)
    with (_HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted, stamp = _state_of_sources(), _HOME / "stamp"
        if not stamp.exists() or stamp.read_text() != wanted:
            stamp.unlink(missing_ok=True)
            _make(_HOME / "env", f"[{_EXTRA}]", [_SERVER])
            stamp.write_text(wanted)
    return _python(_HOME / "env")


def quick() -> int:
    """Run the quick tests on the wheel, from a folder in which no `src` lies."""
    with tempfile.TemporaryDirectory() as folder:
        there, env = Path(folder) / "there", Path(folder) / "env"
        Path(folder).chmod(0o755)  # Postgres runs as a user with fewer rights
        _make(env, "[all,dev]", [])
        for name in ("tests", "docs", "examples", "benchmarks"):
            shutil.copytree(ROOT / name, there / name, ignore=shutil.ignore_patterns("__pycache__"))
        for path in (
            *ROOT.glob("*.md"),
            ROOT / "pyproject.toml",
            ROOT / "dev.py",
            ROOT / "LICENSE",
        ):
            shutil.copy(path, there)
        chosen = ["-n", "auto", "-m", "not slow", "--hypothesis-profile=quick", *sys.argv[2:]]
        chosen.append("--ignore=tests/docs/test_site.py")  # the site is built from the checkout
        command = [_python(env), "-m", "pytest", *chosen]
        path = f"{env / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            command, cwd=there, env={**os.environ, "PATH": path}, check=False
        ).returncode


def _make(env: Path, extras: str, besides: list[str]) -> None:
    """The environment anew, with uv where it is installed: it takes a fifth of pip's time."""
    uv = shutil.which("uv")
    with tempfile.TemporaryDirectory() as folder:
        built = ["--wheel", "--out-dir" if uv else "--outdir", folder, ROOT]
        if uv:
            quiet = [uv, "build", "--quiet", "--python", sys.executable]
            venv: list[str | Path] = [uv, "venv", "--quiet", "--clear", "--python", sys.executable]
            install = [uv, "pip", "install", "--quiet", "--python", _python(env)]
        else:
            quiet = [sys.executable, "-m", "build"]
            venv = [sys.executable, "-m", "venv", "--clear"]
            install = [_python(env), "-m", "pip", "install", "-qq"]
        setting = {**os.environ, "UV_PYTHON_DOWNLOADS": "never"}
        subprocess.run([*quiet, *built], check=True, stdout=subprocess.DEVNULL, env=setting)
        (wheel,) = Path(folder).glob("*.whl")
        subprocess.run([*venv, env], check=True, env=setting)
        subprocess.run([*install, f"{wheel}{extras}", *besides], check=True, env=setting)


def _python(env: Path) -> Path:
    return env / "bin" / "python"


def _state_of_sources() -> str:
    found = hashlib.sha256(sys.version.encode())
    for path in _files():
        found.update(f"{path.relative_to(ROOT)}\0".encode())
        found.update(path.read_bytes())
    return found.hexdigest()


def _files() -> Iterable[Path]:
    for name in _BUILT_FROM:
        path = ROOT / name
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (one for one in inside if one.is_file() and "__pycache__" not in one.parts)


if __name__ == "__main__":
    if sys.argv[1:2] == ["quick"]:
        sys.exit(quick())
    wheel_python()
