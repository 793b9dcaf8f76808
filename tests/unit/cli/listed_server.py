"""An MCP server that lists what a file says, and can do nothing else. Small, so that it starts fast."""

import json
import sys
from pathlib import Path


def answer(asked):
    if asked["method"] == "initialize":
        return {
            "protocolVersion": asked["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "listed", "version": "1"},
        }
    if asked["method"] == "tools/list":
        return {"tools": json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))}
    return None


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        result = answer(request)
        said = {"error": {"code": -32601, "message": "no"}} if result is None else {"result": result}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **said}), flush=True)
