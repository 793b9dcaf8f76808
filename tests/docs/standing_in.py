"""What stands in for the ports and databases that pages name, so that no two pages meet.

A page says `8787` and `postgresql://counterseal@127.0.0.1/counterseal`, as its reader would. When
its examples are run, each port is a free one, and each database a new one on the tests' own server.
"""

import re
import socket

from tests.postgres_server import fresh_database

PORTS = ("8787", "8788")
DATABASE = re.compile(r"postgresql://counterseal@127\.0\.0\.1/\w+")


def stand_ins(text):
    """What to put in the place of what, for a page whose examples say `text`."""
    ports = {port: _free_port() for port in PORTS if port in text}
    if PORTS[0] in ports:  # the default, which commands need not name
        ports["counterseal serve"] = f"counterseal serve --port {ports[PORTS[0]]}"
    return ports | {url: fresh_database() for url in sorted(set(DATABASE.findall(text)))}


def _free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return str(taken.getsockname()[1])
