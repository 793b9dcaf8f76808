"""The public names are a promise."""

import subprocess
import sys

import counterseal

PUBLIC = {
    "DROP_STEP",
    "ApprovalError",
    "Blocks",
    "Budgets",
    "Code",
    "Config",
    "ConfigParam",
    "Context",
    "Contract",
    "ContractError",
    "Conversation",
    "CountersealError",
    "Effect",
    "Grant",
    "GrantError",
    "Invariant",
    "KeyRing",
    "NeedsAttention",
    "NotDoneError",
    "NotSentError",
    "Observation",
    "Partial",
    "Path",
    "Plan",
    "PlanRule",
    "Policy",
    "Principal",
    "Problem",
    "Progress",
    "Project",
    "Proposal",
    "ProposedCall",
    "Reconciler",
    "Registry",
    "RepairLoop",
    "RiskClass",
    "Run",
    "RunError",
    "Runtime",
    "Secret",
    "State",
    "StateEffect",
    "StateRead",
    "StoreError",
    "Tenant",
    "Tool",
    "Trust",
    "Voter",
    "Webhook",
    "__version__",
    "lint",
    "load_contracts",
    "open_project",
    "sync",
    "tool",
}


def test_the_public_names_are_these_and_all_of_them_load():
    assert set(counterseal.__all__) == PUBLIC == set(dir(counterseal))
    for name in PUBLIC:
        assert getattr(counterseal, name) is not None


def test_the_version_is_the_packages_own():
    from importlib.metadata import version

    assert counterseal.__version__ == version("counterseal")


def test_importing_the_package_loads_none_of_its_rooms():
    code = (
        "import sys, counterseal;"
        "print([name for name in sys.modules if name.startswith(('counterseal.', 'pydantic'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
