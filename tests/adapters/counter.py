"""The world outside: a process that counts effects, so that no crash of an agent can lose one.

`python counter.py` prints its port. POST adds the body, a JSON list, to the effects and GET returns
them; DELETE forgets them. It ends when its stdin is closed.
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

effects = []
lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with lock:
            effects.append(json.loads(body))
        self._answer([])

    def do_GET(self):
        with lock:
            self._answer(effects)

    def do_DELETE(self):
        with lock:
            effects.clear()
        self._answer([])

    def _answer(self, content):
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()
