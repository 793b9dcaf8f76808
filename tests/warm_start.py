"""Starts a program in a process that `tests.warm` has ready, and stands for it until its end.

    python -I -S warm_start.py SOCKET WORD…

Streams, folder and environment of this process are the program's. Signals are passed on to it; if
this process is killed, so is the program. It ends as the program does: with its exit code, or by
the same signal. Small, to start fast.
"""

import os
import signal
import socket
import sys

PASSED_ON = (
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM),
    *(signal.SIGUSR1, signal.SIGUSR2),
)


def main():
    path, *words = sys.argv[1:]
    pids, early = [], []

    def pass_on(number, _):
        try:
            os.kill(pids[0], number)
        except IndexError:
            early.append(number)
        except ProcessLookupError:
            pass

    for number in PASSED_ON:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, pass_on)
    watched, alive = os.pipe()  # `alive` is closed by the end of this process, however it comes
    environment = [f"{name}={value}" for name, value in os.environ.items()]
    folder = os.getcwd()  # noqa: PTH109 - pathlib would take longer than all of this
    told = "\0".join([folder, str(len(words)), *words, *environment])
    message = os.fsencode(told)
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(path)
        socket.send_fds(link, [len(message).to_bytes(4, "big")], [0, 1, 2, watched])
        link.sendall(message)
        with link.makefile("r") as lines:
            pids.append(int(lines.readline()))
            for number in early:
                pass_on(number, None)
            code = int(lines.readline() or "1")
    os.close(alive)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


main()
