"""Runs the fenced examples of a Markdown page, from top to bottom, as its reader would.

A `python` block is executed (top-level `await` works), a `console` block is a shell session whose
output must match, and a block with `title="name"` becomes that file. The blocks of a page share one
namespace, one event loop, one folder and one shell. Which pages there are is `test_examples.py`'s
business, what their commands do is `session.py`'s.
"""

import ast
import asyncio
import builtins
import contextlib
import difflib
import inspect
import re
import sys
import traceback
import types
from dataclasses import dataclass, replace
from pathlib import Path

from .session import HangsError, Session, matches

FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<info>[^`]*)$")
INFO = re.compile(r'^(?P<language>\S*)(?:\s+(?:(?P<no_run>no-run)|title="(?P<title>[^"]+)"))?$')
REASON = re.compile(r"^<!-- no-run: \S.* -->$")
# These would look like examples and never be run.
OTHER_NAMES = {"py": "python", "python3": "python", "pycon": "python"} | dict.fromkeys(
    ["bash", "sh", "shell"], "console"
)


class ExampleError(AssertionError):
    """An example that does not do what its page says."""

    def __init__(self, page, line, problem):
        super().__init__(f"{page}:{line}: {problem}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    page: Path
    line: int  # of the first line inside the fence
    language: str
    title: str | None
    no_run: bool
    has_reason: bool
    text: str


def read_blocks(page):
    lines = page.read_text(encoding="utf-8").splitlines()
    blocks, start = [], 0
    while start < len(lines):
        opening = FENCE.match(lines[start])
        if opening is None:
            start += 1
            continue
        closing = re.compile(rf" *{opening['fence']}{opening['fence'][0]}* *")
        end = next((n for n in range(start + 1, len(lines)) if closing.fullmatch(lines[n])), None)
        if end is None:
            raise ExampleError(page, start + 1, "this block is never closed")
        blocks.append(_block(page, lines, start, end, opening))
        start = end + 1
    return blocks


def _block(page, lines, start, end, opening):
    info = INFO.match(opening["info"].strip())
    if info is None:
        raise ExampleError(page, start + 1, f"cannot read the block's info {opening['info']!r}")
    if info["language"] in OTHER_NAMES:
        better = OTHER_NAMES[info["language"]]
        raise ExampleError(page, start + 1, f"call it {better}, so that it is run")
    above = lines[start - 1].strip() if start else ""
    body = [line.removeprefix(opening["indent"]) for line in lines[start + 1 : end]]
    return Block(
        page=page,
        line=start + 2,
        language=info["language"],
        title=info["title"],
        no_run=info["no_run"] is not None,
        has_reason=REASON.match(above) is not None,
        text="".join(f"{line}\n" for line in body),
    )


def run_page(page, folder, stand_ins=None, programs=None):
    """Run the page's examples in `folder`; the first that fails raises ExampleError.

    `stand_ins` is given the text of them all, and says what to put in the place of what. `programs`
    is a folder in which commands are looked for first.
    """
    module = types.ModuleType("docs_page")
    # Type hints of classes and functions are looked up in their module by name.
    sys.modules[module.__name__] = module
    blocks = [block for block in read_blocks(page) if not block.no_run]
    instead = stand_ins("".join(block.text for block in blocks)) if stand_ins else {}
    try:
        with asyncio.Runner() as loop, contextlib.chdir(folder), Session(programs) as session:
            for block in blocks:
                _run_block(_with(block, instead), module, loop, session)
    finally:
        del sys.modules[module.__name__]


def _with(block, instead):
    text = block.text
    for said, meant in instead.items():
        text = text.replace(said, meant)
    return replace(block, text=text)


def _run_block(block, module, loop, session):
    if block.title:
        path = Path(block.title)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, encoding="utf-8")
    elif block.language == "python":
        _run_python(block, module, loop)
    elif block.language == "console":
        for line, command, expected in _commands(block):
            _run_command(session, block.page, line, command, expected)


def _run_python(block, module, loop):
    # Blank lines in front make the line numbers those of the page.
    source = "\n" * (block.line - 1) + block.text
    name = str(block.page)
    try:
        code = compile(source, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        module.__dict__.setdefault("__builtins__", builtins)  # extension modules look it up
        result = types.FunctionType(code, module.__dict__)()
        if inspect.iscoroutine(result):
            loop.run(result)
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == name]
        line = lines[-1] if lines else getattr(error, "lineno", None) or block.line
        raise ExampleError(name, line, f"{type(error).__name__}: {error}") from error


def _commands(block):
    """Split a session into (line, command, expected output lines)."""
    commands = []
    for line, text in enumerate(block.text.splitlines(), block.line):
        unfinished = commands and commands[-1][1].endswith("\\") and not commands[-1][2]
        if unfinished:  # a command that goes on in the next line
            first, command, expected = commands[-1]
            commands[-1] = (first, f"{command[:-1]}{text.strip()}", expected)
        elif text.startswith("$ "):
            commands.append((line, text[2:], []))
        elif commands:
            commands[-1][2].append(text.rstrip())
        else:
            raise ExampleError(block.page, line, "a console block starts with a `$ ` line")
    return commands


def _run_command(session, page, line, command, expected):
    while expected and not expected[-1]:
        expected.pop()
    try:
        code, actual = session.run(command, expected)
    except (OSError, HangsError) as error:
        raise ExampleError(page, line, str(error)) from error
    if not matches(expected, actual):
        difference = "\n".join(difflib.unified_diff(expected, actual, "page", "real", lineterm=""))
        raise ExampleError(page, line, f"`{command}` printed something else\n{difference}")
    # A page that shows what a failure prints means it; any other failure is a surprise.
    if code and all(text == "..." for text in expected):
        shown = "\n".join(actual)
        raise ExampleError(page, line, f"`{command}` exited with {code}\n{shown}")
