"""A ticket desk to try the tools with: `python service.py`. Your own service replaces it."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

CLOSED = Path(__file__).with_name("closed.txt")


class Desk(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        """Return a ticket."""
        self._send(self.path.split("/")[2])

    def do_POST(self) -> None:
        """Close a ticket."""
        ticket = self.path.split("/")[2]
        note = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["note"]
        with CLOSED.open("a", encoding="utf-8") as closed:
            closed.write(f"{ticket} {note}\n")
        self._send(ticket)

    def _send(self, ticket: str) -> None:
        is_closed = CLOSED.exists() and f"{ticket} " in CLOSED.read_text("utf-8")
        answer = {"ticket_id": ticket, "status": "closed" if is_closed else "open"}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8799
    ThreadingHTTPServer(("127.0.0.1", port), Desk).serve_forever()
