"""`counterseal validate`: whether a folder holds a module that another program can load."""

from __future__ import annotations

import importlib
import inspect
import json
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer
from typer import Argument, Option

from counterseal.cli.render import counted, fail, one_line, print_json

_GROUP = "amplifier.modules"
_CHANNEL = "observability.events"


class Check(NamedTuple):
    """One thing that was checked. A warning does not fail the module."""

    name: str
    passed: bool
    message: str
    severity: str = "error"

    def line(self) -> str:
        mark = "ok" if self.passed else self.severity
        return f"{mark:<8} {self.name:<20} {one_line(self.message)}"


def validate(
    path: Annotated[Path, Argument(metavar="PATH", help="The module's folder.")],
    form: Annotated[Literal["amplifier"], Option("--as", help="What it should be.")],
    config: Annotated[str, Option(help="Its `config` in a mount plan, as JSON.")] = "{}",
    execute: Annotated[
        bool, Option("--execute", help="Also call each tool, without arguments.")
    ] = False,
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check a tool module of Amplifier: its entry point, its mount(), and the tools it mounts.

    The module is imported and mounted in a session that does nothing, that is executed. Exits with
    1 if a check fails that Amplifier requires; what it only recommends is a warning.
    """
    import asyncio

    if not path.is_dir():
        fail(f"{path} is not a folder.", "Give the folder that holds the module's pyproject.toml.")
    try:
        given = json.loads(config)
    except ValueError as error:
        fail(f"--config is not JSON: {error}.", """Write it like '{"max_size": 100}'.""")
    with redirect_stdout(sys.stderr):  # what the module prints is no result
        checks = asyncio.run(check_module(path, given, execute=execute))
    failed = [check for check in checks if not check.passed]
    errors = [check for check in failed if check.severity == "error"]
    summary = {"checks": len(checks), "errors": len(errors), "warnings": len(failed) - len(errors)}
    if as_json:
        print_json({"form": form, "checks": [one._asdict() for one in checks], "summary": summary})
    else:
        for check in checks:
            print(check.line())
        print(f"\n{counted(summary['errors'], 'error')}, {counted(summary['warnings'], 'warning')}")
    if errors:
        raise typer.Exit(1)


async def check_module(path: Path, config: Any, *, execute: bool = False) -> list[Check]:
    """Return the checks of a module in a folder."""
    with _on_path(path):
        checks: list[Check] = []
        target = _entry_point(path, checks)
        module = None if target is None else _imported(target[0], checks)
        mount = None if target is None or module is None else _mount(module, target[1], checks)
        if mount is not None:
            await _check_tools(mount, config, checks, execute=execute)
        return checks


def _entry_point(path: Path, checks: list[Check]) -> tuple[str, str] | None:
    """Return module and name of the mount function that pyproject.toml declares."""
    name = "entry_point"
    try:
        project = tomllib.loads((path / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        (declared,) = project["entry-points"][_GROUP].values()
        module, _, function = declared.partition(":")
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        message = f'pyproject.toml needs one entry in [project.entry-points."{_GROUP}"]'
        checks.append(Check(name, passed=False, message=message))
        return None
    checks.append(Check(name, passed=True, message=str(declared)))
    return module, function or "mount"


def _imported(name: str, checks: list[Check]) -> Any:
    try:
        module = importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - the module's own code
        message = f"{name} can't be imported: {type(error).__name__}: {error}"
        checks.append(Check("module_importable", passed=False, message=message))
        return None
    checks.append(Check("module_importable", passed=True, message=name))
    ready = getattr(module, "on_session_ready", None)
    if ready is not None:
        fits = inspect.iscoroutinefunction(ready) and _takes(ready, 1)
        message = "on_session_ready(coordinator) is async"
        checks.append(Check("on_session_ready", fits, message if fits else f"expected: {message}"))
    return module


def _mount(module: Any, name: str, checks: list[Check]) -> Callable[..., Any] | None:
    mount = getattr(module, name, None)
    if not callable(mount):
        message = f"{module.__name__} has no function {name}()"
        checks.append(Check("mount_exists", passed=False, message=message))
        return None
    fits = inspect.iscoroutinefunction(mount) and _takes(mount, 2)
    message = f"async def {name}(coordinator, config)"
    checks.append(Check("mount_signature", fits, message if fits else f"expected: {message}"))
    return mount if fits else None


def _takes(function: Callable[..., Any], number: int) -> bool:
    try:
        inspect.signature(function).bind(*range(number))
    except TypeError:
        return False
    return True


async def _check_tools(
    mount: Callable[..., Any], config: Any, checks: list[Check], *, execute: bool
) -> None:
    from counterseal.testing import TestCoordinator

    coordinator = TestCoordinator()
    result = None
    try:
        result = await mount(coordinator, config)
        tools = dict(coordinator.mount_points["tools"])
        if not tools and hasattr(result, "execute"):
            tools = {str(getattr(result, "name", "")): result}
        checks.append(_mounted(tools, result))
        for name, tool in tools.items():
            checks.extend(_tool_checks(name, tool))
            if execute:
                checks.append(await _executed(name, tool))
        fits = bool(coordinator.channels.get(_CHANNEL))
        message = "registers its events" if fits else f"registers no events for {_CHANNEL}"
        checks.append(Check("observability", fits, message, "warning"))
    except Exception as error:  # noqa: BLE001 - the module's own code
        message = f"mount() raised {type(error).__name__}: {error}"
        checks.append(Check("mount_succeeds", passed=False, message=message))
    finally:
        if callable(result):
            coordinator.register_cleanup(result)
        try:
            await coordinator.cleanup()
        except Exception as error:  # noqa: BLE001 - the module's own code
            message = f"the cleanup raised {type(error).__name__}: {error}"
            checks.append(Check("cleanup", passed=False, message=message, severity="warning"))


def _mounted(tools: dict[str, Any], result: Any) -> Check:
    name = "protocol_compliance"
    if tools:
        return Check(name, passed=True, message=f"mounts {', '.join(tools)}")
    if callable(result):
        message = "mount() returns a cleanup and mounts no tool; it may need --config"
        return Check(name, passed=False, message=message, severity="warning")
    message = "mount() neither mounts nor returns a tool; it may need --config"
    return Check(name, passed=False, message=message)


def _tool_checks(name: str, tool: Any) -> Iterator[Check]:
    own = getattr(tool, "name", None)
    fits = isinstance(own, str) and bool(own)
    yield Check("tool_name", fits, f"{name}: name is {own!r}, expected a text")
    text = getattr(tool, "description", None)
    if text is None:
        yield Check("tool_description", passed=False, message=f"{name} has no description")
    else:
        fits = isinstance(text, str) and bool(text)
        message = f"{name} has a description" if fits else f"{name}: description is empty"
        yield Check("tool_description", fits, message, "warning")
    run = getattr(tool, "execute", None)
    fits = inspect.iscoroutinefunction(run) and _takes(run, 1)
    message = "async def execute(self, input)"
    yield Check("tool_execute", fits, f"{name}: {message if fits else f'expected {message}'}")
    schema, getter = getattr(tool, "input_schema", None), getattr(tool, "get_schema", None)
    if not schema and callable(getter):
        schema = getter()
    fits = isinstance(schema, dict) and bool(schema)
    message = "has an input schema" if fits else "has no input_schema and no get_schema()"
    yield Check("tool_schema", fits, f"{name} {message}", "warning")


async def _executed(name: str, tool: Any) -> Check:
    check = "tool_result"
    try:
        result = await tool.execute({})
    except Exception as error:  # noqa: BLE001 - the module's own code
        message = f"{name} raised {type(error).__name__}; expected a result with success=False"
        return Check(check, passed=False, message=message)
    fits = all(hasattr(result, field) for field in ("success", "output", "error"))
    kind = type(result).__name__
    return Check(check, fits, f"{name} returned a {kind}; expected a ToolResult")


@contextmanager
def _on_path(folder: Path) -> Iterator[None]:
    """Let modules of the folder, or of its `src`, be imported."""
    before = list(sys.path)
    sys.path[:0] = [str(folder.resolve()), str((folder / "src").resolve())]
    try:
        yield
    finally:
        sys.path[:] = before
