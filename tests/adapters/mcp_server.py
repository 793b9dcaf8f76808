"""An MCP server on stdio with one tool, `post`, that acts at the counter. No SDK: both majors of it
are in use among the frameworks."""

import json
import sys
import urllib.request

TOOL = {
    "name": "post",
    "description": "Post a text.",
    "inputSchema": {
        "type": "object",
        "properties": {"text": {"type": "string", "description": "The text."}},
        "required": ["text"],
    },
}


def answer(method, params):
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "counter", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call":
        text = params["arguments"]["text"]
        data = json.dumps(["post", text]).encode()
        urllib.request.urlopen(urllib.request.Request(sys.argv[1], data=data)).read()
        return {"content": [{"type": "text", "text": f"posted {text}"}], "isError": False}
    return {}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message and "method" in message:
        result = answer(message["method"], message.get("params") or {})
        reply = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        print(json.dumps(reply), flush=True)
