"""An MCP server that lists what a file says, and can do nothing else. Small, to start fast."""

import json
import sys
from pathlib import Path

REFUSAL = {"error": {"code": -32601, "message": "no"}}


def answer(asked):
    if asked["method"] == "initialize":
        result = {
            "protocolVersion": asked["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "listed", "version": "1"},
        }
    elif asked["method"] == "tools/list":
        result = {"tools": json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))}
    else:
        return REFUSAL
    return {"result": result}


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        said = {"jsonrpc": "2.0", "id": request["id"], **answer(request)}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
