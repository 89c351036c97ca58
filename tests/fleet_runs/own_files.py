"""Files that are others on one host, as where no folder is shared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from guardrun.supervisor.engine.recovery.eviction import PAST_IMPORTS
from tests.fleet_runs.jobs import Job
from tests.fleet_runs.training import SCRIPT
from tests.support.netlab import Host


@contextmanager
def own_copy(host: Host, path: Path, content: str, folder: Path) -> Iterator[None]:
    """A file that is another one on this host, as where no folder is shared. folder: where it really lies."""
    copy = folder / f"{path.name}.{host.name}"
    copy.write_text(content)
    host.run("mount", "--bind", str(copy), str(path))
    try:
        yield
    finally:
        host.run("umount", str(path))


LACKS = """
import glob, re, time

def are_others_further():
    text = "".join(open(path).read() for path in glob.glob("{runs}/*/events.jsonl"))
    is_there = all('"type":"node_joined","node":"' + spare in text for spare in {spares})
    return is_there and any(int(bits) & {past} for bits in re.findall(r'"milestones":(\\d+)', text))

deadline = time.monotonic() + 60
while not are_others_further() and time.monotonic() < deadline:
    time.sleep(0.05)
import nobody_has_this
"""


@contextmanager
def lacking_a_module(job: Job, name: str, spares: tuple[str, ...] = ()) -> Iterator[None]:
    """The job's script imports a library, which on this host imports what is not there.

    Once the head knows that others got further: before that, nobody can tell whether they lack it, too. And once the
    spares have joined: without one that could take its place, the run is given up.
    """
    library = job.folder / "library.py"
    library.write_text("VERSION = 2\n")
    script = SCRIPT.read_text().replace("marks, out = ", "import library  # noqa\n\nmarks, out = ", 1)
    job.script = job.folder / SCRIPT.name
    job.script.write_text(script)
    lacks = LACKS.format(runs=job.folder / "guardrun-runs", past=PAST_IMPORTS, spares=spares)
    with own_copy(job.lab.host(name), library, lacks, job.marks):
        yield
