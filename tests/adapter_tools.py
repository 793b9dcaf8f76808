"""Environments with agent frameworks, one each: their dependencies conflict with one another.

`python -m tests.adapter_tools` makes them before the tests begin, because it fetches packages;
names after it choose some, `all` all of them. They are kept in `.venv-adapters/NAME`, with this
checkout in them, and made anew when their packages or the project's dependencies change.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOME = ROOT / ".venv-adapters"
FRAMEWORKS = {
    "agent-framework": ["mcp", "tenacity"],
    "amplifier": ["mcp"],
    "claude-agent-sdk": [],
    "crewai": [],
    "google-adk": ["aiosqlite", "mcp"],
    "inspect-ai": [],
    "langgraph": ["langgraph-checkpoint-sqlite>=3", "langchain-mcp-adapters>=0.3"],
    "llama-index": ["llama-index-tools-mcp"],
    "openai-agents": [],
    "pydantic-ai": ["pydantic-ai-slim[mcp]"],
    "strands": [],
}
"""By extra: what its tests need beside the extra itself."""
FAST = ("langgraph", "openai-agents", "pydantic-ai")
"""Those that every whole run of the tests includes."""


def fast() -> list[str]:
    return [name for name in FAST if name in FRAMEWORKS]


def adapter_python(name: str) -> Path:
    """The interpreter of a framework's environment; the first caller makes it."""
    HOME.mkdir(exist_ok=True)
    env = HOME / name
    with (HOME / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted, stamp = _wanted(name), HOME / f"{name}.stamp"
        if not stamp.exists() or stamp.read_text() != wanted or not env.exists():
            stamp.unlink(missing_ok=True)
            _make(env, [f"{ROOT}[{name}]", *FRAMEWORKS[name]])
            stamp.write_text(wanted)
    return env / "bin" / "python"


def _wanted(name: str) -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = project["optional-dependencies"][name]
    parts = [project["dependencies"], extra, FRAMEWORKS[name], sys.version, str(ROOT)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _make(env: Path, packages: list[str]) -> None:
    editable = ["--editable", packages[0], *packages[1:]]
    uv = shutil.which("uv")
    if uv is None:
        subprocess.run([sys.executable, "-m", "venv", "--clear", env], check=True)
        install = [env / "bin" / "python", "-m", "pip", "install", "-qq", *editable]
        subprocess.run(install, check=True)
        return
    setting = {**os.environ, "UV_PYTHON_DOWNLOADS": "never"}
    venv = [uv, "venv", "--quiet", "--clear", "--python", sys.executable, env]
    subprocess.run(venv, check=True, env=setting)
    install = [uv, "pip", "install", "--quiet", "--python", env / "bin" / "python", *editable]
    subprocess.run(install, check=True, env=setting)


if __name__ == "__main__":
    chosen = list(FRAMEWORKS) if sys.argv[1:] == ["all"] else sys.argv[1:]
    for one in chosen or fast():
        adapter_python(one)
