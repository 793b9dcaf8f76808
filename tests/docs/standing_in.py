"""What stands in for the ports and databases that pages name, so that no two pages meet.

A page says `8787` and `postgresql://counterseal@127.0.0.1/counterseal`, as its reader would. When
its examples are run, each port is a free one, and the database a new one on the tests' own server.
"""

import socket

from tests.postgres_server import fresh_database

PORTS = ("8787", "8788")
DATABASE = "postgresql://counterseal@127.0.0.1/counterseal"


def stand_ins(text):
    """What to put in the place of what, for a page whose examples say `text`."""
    made = {port: _free_port() for port in PORTS if port in text}
    if DATABASE in text:
        made[DATABASE] = fresh_database()
    return made


def _free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return str(taken.getsockname()[1])
