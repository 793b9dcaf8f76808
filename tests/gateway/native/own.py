"""What the project has beside its tools, as a server of the SDK in the same process.

Resources, prompts and completion are passed on by Counterseal, which has none of its own; so are
two tools that change this server's lists.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from conformance_fixture import make_server

server = make_server(["test_trigger_prompt_change", "test_trigger_tool_change"])
