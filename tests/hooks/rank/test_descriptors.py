"""Scripts that close, use up or limit descriptors: the hooks' own among them."""

from __future__ import annotations

from pathlib import Path

import pytest

from guardrun.hooks.wire.messages import Beat, Hello
from tests.hooks.bed import Bed

CLOSE = "import os, time\n{first}\nos.closerange(3, 1024)\n"


@pytest.mark.parametrize("first", ["", "time.sleep(0.8)"], ids=["at once", "after the first beat"])
def test_a_script_may_close_every_descriptor(bed: Bed, tmp_path: Path, first: str) -> None:
    """Its own files then have the numbers that were ours: nobody writes to them, or closes them in a child."""
    code = CLOSE.format(first=first) + (
        f"files = [open(f'{tmp_path}/{{n}}', 'w') for n in range(12)]\n"
        "if os.fork() == 0:\n"
        "    for n, file in enumerate(files): print('child', n, file=file, flush=True)\n"
        "    os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1]))\n"
        "from guardrun.hooks.rank.rank import active\n"
        "from guardrun.hooks.wire.board import Field\n"
        "for _ in range(2):\n"
        "    now = active.words[Field.HEART_NS]\n"
        "    while active.words[Field.HEART_NS] == now: time.sleep(0.05)\n"
        "for n, file in enumerate(files): print('rank', n, file=file, flush=True)\n"
        "print('trained')\n"
    )
    done = bed.run(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "7\ntrained\n", "")
    assert [(tmp_path / str(n)).read_text() for n in range(12)] == [f"child {n}\nrank {n}\n" for n in range(12)]
    assert bed.wait_for(Hello)
    assert len(bed.hear_all(Beat)) >= 2


def test_a_script_may_be_left_without_descriptors(bed: Bed) -> None:
    code = """
import resource, time
resource.setrlimit(resource.RLIMIT_NOFILE, (7, 7))
time.sleep(0.8)
print('trained')
"""
    done = bed.run(code)
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert done.stderr.count("\n") <= 1


def test_a_script_may_be_left_without_threads(bed: Bed) -> None:
    """Ours is there from the start, and starts no other."""
    code = """
import os, time
time.sleep(0.8)
print(len(os.listdir('/proc/self/task')))
"""
    assert bed.run(code).stdout == "2\n"
