"""The CEL library is loaded without its command line. Rules of expressions: tests of policies."""

import subprocess
import sys


def test_an_expression_loads_no_command_line_and_leaves_the_librarys_own_usable():
    code = (
        "import sys\n"
        "from counterseal.expressions import Expression\n"
        "assert Expression('a > 1', names=['a']).holds({'a': 2})\n"
        "print([name for name in ('cel.cli', 'prompt_toolkit', 'rich') if name in sys.modules])\n"
        "from cel import cli\n"
        "print(hasattr(cli, 'app'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n") == ["[]", "True", ""]
