"""An SFTP server whose every answer is late: OpenSSH's own, on this process's stdin and stdout, with a pump before it.

    python slow_sftp.py SECONDS [host and flags, as sshfs gives them to ssh]

Several requests may be under way at once, as over a long or busy line: it is latency that they have, not a queue.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time

SERVER = "/usr/lib/openssh/sftp-server"


def main() -> None:
    """Ends with whoever is at the other end of stdin."""
    late_s = float(sys.argv[1])
    server = subprocess.Popen([SERVER], stdin=0, stdout=subprocess.PIPE)
    assert server.stdout is not None
    answers: queue.Queue[tuple[float, bytes]] = queue.Queue()

    def deliver() -> None:
        while True:
            due_s, data = answers.get()
            if not data:
                return
            time.sleep(max(0.0, due_s - time.monotonic()))
            try:
                while data:
                    data = data[os.write(1, data) :]
            except BrokenPipeError:
                return  # unmounted

    thread = threading.Thread(target=deliver)
    thread.start()
    while data := os.read(server.stdout.fileno(), 1 << 16):
        answers.put((time.monotonic() + late_s, data))
    answers.put((0.0, b""))
    thread.join()
    sys.exit(server.wait())


if __name__ == "__main__":
    main()
