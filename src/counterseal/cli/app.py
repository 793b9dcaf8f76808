"""The Typer app: every command by its name."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Option

from counterseal import __version__
from counterseal.cli import (
    approvals,
    audit,
    call,
    diff,
    evaluate,
    explain,
    grants,
    import_openapi,
    init,
    keys,
    lint,
    metrics,
    plan,
    policy,
    reconcile,
    registry,
    replay,
    scenarios,
    serve,
    show,
    users,
    validate,
)

EPILOG = """\
Results go to stdout, notes and errors to stderr. Every command but mcp takes --json. NO_COLOR turns
colours off.

\b
Exit codes:
  0  success
  1  problems were found
  2  wrong use: an unknown option, a missing file, an unknown name
  3  the call has to be approved by a person
  4  too late: the request is decided already, or has expired
"""

app = typer.Typer(
    name="counterseal",
    help="Tool contracts for AI agents: write them, check them, try them.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    # Plain help starts twice as fast, and looks the same in a terminal, a pipe and the docs.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

app.command("init")(init.init)
app.command("lint")(lint.lint)
app.command("check")(lint.check)
app.command("validate")(validate.validate)
app.command("show")(show.show)
app.command("call")(call.call)
app.command("plan")(plan.plan)
app.command("schema")(show.schema)
app.command("evaluate")(evaluate.evaluate)
app.command("explain")(explain.explain)
app.command("serve")(serve.serve)
app.command("mcp")(serve.mcp)
app.command("diff")(diff.diff)
app.command("metrics")(metrics.metrics)
app.command("replay")(replay.replay)
app.add_typer(policy.app, name="policy")
app.add_typer(approvals.app, name="approvals")
app.add_typer(audit.app, name="audit")
app.add_typer(keys.app, name="keys")
app.add_typer(registry.app, name="registry")
app.add_typer(grants.app, name="grants")
app.add_typer(users.app, name="users")
app.add_typer(reconcile.app, name="reconcile")
app.add_typer(scenarios.app, name="scenarios")
app.add_typer(import_openapi.app, name="import")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"counterseal {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Tool contracts for AI agents: write them, check them, try them."""
