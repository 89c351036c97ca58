"""What SIGKILL of a rank costs one and the same training under several launchers: `make bench-recovery`.

    python -m benchmarks.recovery                ten rounds of all that are installed, two with slow imports
    python -m benchmarks.recovery --quick        does every measurement work? One round of each
    python -m benchmarks.recovery --only torchrun --only guardrun
    python -m benchmarks.recovery --from-json build/recovery.json --write-docs

A round is a run of each, in random order: scripts/recover.py trains, one rank kills itself, and the run is ended once
every rank has done a step that nobody had done before. Launchers that are not installed are named and left out.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TypeVar

import msgspec

from benchmarks.docs import replace_between
from benchmarks.gym.launchers import BY_NAME, GYM, beside_python
from benchmarks.item import CannotMeasure
from benchmarks.items.supervisor_cost import read_pss_mb
from benchmarks.job import POLL_S, ROOT, TAIL_CHARS, Job, Launcher, Moment, free_port
from benchmarks.machine import Machine, describe
from benchmarks.table import number
from benchmarks.warm import ENDS, read_log

JSON = ROOT / "build" / "recovery.json"
DOCS = ROOT / "docs" / "benchmarks.md"
BEGIN = "<!-- recovery: begin (written by `python -m benchmarks.recovery --write-docs`) -->"
END = "<!-- recovery: end -->"
RANKS = 2
EVERY = 20
"""Steps from one save to the next."""
STEP_S = 0.05
SNAPSHOT_STEPS = 5
AHEAD = 5
"""Steps until the kill at least, so that the order is there in time."""
PATIENCE_S = 180.0
IMPORTS = ("transformers.trainer", "lightning")
T = TypeVar("T")


@dataclass(frozen=True)
class Contender:
    """A launcher, and what its documentation has a script do."""

    name: str
    command: tuple[str, ...]
    """Without number of ranks and script; `{}` is a free port."""
    way: str = "plain"
    """recover.py's --way."""
    environment: dict[str, str] = field(default_factory=dict)
    needs: str = ""
    """A file in the gym's folder that says that it is installed; empty: it is."""
    lighthouse: tuple[str, ...] = ()
    """torchft: its flags. Then there are two jobs of one rank each."""

    @property
    def is_there(self) -> bool:
        return not self.needs or (GYM / self.needs).exists()


def by_gym(name: str, title: str, needs: str = "", program: Sequence[str] = (), way: str = "plain") -> Contender:
    """A launcher as the gym starts it; program: where another version of it lies."""
    found = BY_NAME[name]
    command = (*(program or [str(found.program)]), found.port_flag, *found.flags)
    return Contender(title, command, way, found.environment, needs)


def guardrun(title: str, way: str = "plain", **settings: str) -> Contender:
    """guardrun with settings by its environment variables."""
    environment = {f"GUARDRUN_{name.upper()}": value for name, value in settings.items()}
    return Contender(title, (str(beside_python("guardrun")), "--master-port={}"), way, environment)


def torchft(title: str, *flags: str) -> Contender:
    """torchft as its README starts it; flags: of its lighthouse, beside those."""
    command = (str(GYM / "torchft" / "bin" / "python"), "-m", "torch.distributed.run", "--master-port={}")
    own = ("--min_replicas", "1", "--quorum_tick_ms", "100", "--join_timeout_ms", "10000", *flags)
    return Contender(title, (*command, "--max-restarts=10"), "torchft", needs="torchft/.stamp", lighthouse=own)


WARM = "guardrun, save_with, warm"
NVRX = (str(GYM / "nvrx" / "bin" / "python"), "-m", "nvidia_resiliency_ext.fault_tolerance.launcher")
CONTENDERS = (
    by_gym("torchrun", "torchrun"),
    by_gym("ft_launcher", "ft_launcher 0.4.1", "venv/.stamp", way="heartbeats"),
    by_gym("ft_launcher", "ft_launcher 0.6.0", "nvrx/.stamp", NVRX, way="heartbeats"),
    torchft("torchft 0.2.0"),
    torchft("torchft, 1 s to notice", "--heartbeat_timeout_ms", "1000"),
    guardrun("guardrun"),
    guardrun("guardrun, snapshot", "snapshot", checkpoint_snapshot_steps=str(SNAPSHOT_STEPS)),
    guardrun("guardrun, save_with", "save_with"),
    guardrun(WARM, "save_with", launcher_warm="auto"),
)
IMPORTING = ("torchrun", "ft_launcher 0.4.1", "torchft 0.2.0", "guardrun", WARM)
"""Where slow imports are measured, too: what is left out starts its ranks as one of these does."""


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds from the kill, and what it cost."""

    first_s: float
    """To the script's first line, in the last rank that was started anew."""
    imported_s: float
    """To the end of its imports."""
    new_s: float
    """To the first step that no rank had finished before."""
    all_s: float
    """To the same in every rank."""
    again: int
    """Steps that were done a second time."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    contender: str
    has_imports: bool
    recovery: Recovery | None
    """None: it did not go on."""
    save_s: list[float] = []
    """What the rank stood for each of its own saves, before the kill."""
    copy_s: list[float] = []
    """The same for copies into memory."""
    beside_mb: float = 0.0
    """PSS of all its processes but the ranks, before the kill; 10^6 bytes."""


class Report(msgspec.Struct, kw_only=True):
    """All of it."""

    machine: Machine
    command: str
    samples: list[Sample]
    missing: list[str]


def find_steps(moments: Sequence[Moment]) -> list[tuple[Moment, int]]:
    """Every step that a rank has finished."""
    return [(moment, int(moment.what.split()[1])) for moment in moments if moment.what.startswith("step ")]


def find_recovery(moments: Sequence[Moment], ranks: int = RANKS) -> Recovery | None:
    """What became of a run one of whose ranks was killed; None as long as not every rank has done a new step."""
    killed_ns = next((moment.at_ns for moment in moments if moment.what == "killed"), None)
    if killed_ns is None:
        return None
    steps = find_steps(moments)
    before = {(moment.rank, step) for moment, step in steps if moment.at_ns < killed_ns}
    after = [(moment, step) for moment, step in steps if moment.at_ns > killed_ns]
    done = max((step for _, step in before), default=0)
    news: dict[int, int] = {}
    for moment, step in sorted(after, key=lambda one: one[0].at_ns):
        if step > done:
            news.setdefault(moment.rank, moment.at_ns)
    if len(news) < ranks:
        return None
    began = {
        what: max(moment.at_ns for moment in moments if moment.what == what and moment.at_ns > killed_ns)
        for what in ("first", "imported")
    }
    return Recovery(
        first_s=(began["first"] - killed_ns) / 1e9,
        imported_s=(began["imported"] - killed_ns) / 1e9,
        new_s=(min(news.values()) - killed_ns) / 1e9,
        all_s=(max(news.values()) - killed_ns) / 1e9,
        again=len({step for moment, step in after if (moment.rank, step) in before}),
    )


def find_durations(moments: Sequence[Moment], what: str) -> list[float]:
    """Seconds of what one rank began and ended several times."""
    began_ns: dict[int, int] = {}
    took_s = []
    for moment in moments:
        if moment.what == f"{what} began":
            began_ns[moment.pid] = moment.at_ns
        elif moment.what == f"{what} ended" and moment.pid in began_ns:
            took_s.append((moment.at_ns - began_ns.pop(moment.pid)) / 1e9)
    return took_s


class ContenderJob(Job):
    """One run of a contender."""

    def __init__(self, contender: Contender, imports: Sequence[str]) -> None:
        self._contender = contender
        arguments = ["--way", contender.way, "--every", str(EVERY), "--step-s", str(STEP_S), "--imports", *imports]
        super().__init__(Launcher.TORCHRUN, "recover.py", arguments, environment=contender.environment, ranks=RANKS)

    def _start(self, launcher: list[str], script: list[str]) -> subprocess.Popen[bytes]:
        groups: Sequence[dict[str, str]] = [{}]
        if self._contender.lighthouse:
            address = f"127.0.0.1:{free_port()}"
            program = str(GYM / "torchft" / "bin" / "torchft_lighthouse")
            self._add([program, "--bind", address, *self._contender.lighthouse], {})
            own = {"TORCHFT_LIGHTHOUSE": f"http://{address}", "NUM_REPLICA_GROUPS": str(RANKS)}
            groups = [{**own, "REPLICA_GROUP_ID": str(group)} for group in range(RANKS)]
        for group in groups:
            command = [part.format(free_port()) for part in self._contender.command]
            self._add([*command, f"--nproc-per-node={RANKS // len(groups)}", *script], group)
        return self._others.pop()

    def _add(self, command: list[str], environment: dict[str, str]) -> None:
        with self._output.open("ab") as output:
            self._others.append(
                subprocess.Popen(
                    command,
                    cwd=self.folder,
                    env=self._environment | environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def trouble(self, text: str) -> CannotMeasure:
        return CannotMeasure(f"{self._contender.name}: {text}\n{self.output[-TAIL_CHARS:]}".rstrip())

    def wait_until(self, what: str, look: Callable[[], T | None]) -> T:
        """Wait until there is something to be seen. Raises CannotMeasure where that does not come."""
        deadline_s = time.monotonic() + PATIENCE_S
        while (found := look()) is None:
            if time.monotonic() > deadline_s or self.process.poll() is not None:
                raise self.trouble(f"{what} has not come")
            time.sleep(POLL_S)
        return found

    def last_step(self) -> int | None:
        """The last that every rank has done; with torchft one may leave out some that the other has done."""
        last = {moment.rank: step for moment, step in find_steps(self.all_moments())}
        return min(last.values()) if len(last) == RANKS else None

    def order_kill(self, rank: int) -> None:
        """Have a rank die within one interval of saves, at random."""
        step = max(step for _, step in find_steps(self.all_moments())) + AHEAD + random.randrange(EVERY)
        order = self.folder / "die.part"
        order.write_text(f"{rank} {step} {random.uniform(0, STEP_S):.3f}")
        order.rename(self.folder / "die")

    def measure_beside_mb(self) -> float:
        """PSS of all its processes but the ranks."""
        ranks = {moment.pid for moment in self.moments("first", attempt=None)}
        found = 0.0
        for process in self.find(""):
            if process.pid not in ranks:
                try:
                    found += read_pss_mb(process.pid)
                except CannotMeasure:  # it has just ended
                    continue
        return found


def play(contender: Contender, rank: int, imports: Sequence[str]) -> Sample:
    """One run. Raises CannotMeasure where it does not get as far as the kill."""
    with ContenderJob(contender, imports) as job:
        job.wait_until(f"step {2 * EVERY}", lambda: (job.last_step() or 0) >= 2 * EVERY or None)
        if contender.way == "snapshot":
            job.wait_for("copy ended", ranks=1)
        if contender.name == WARM:
            wait_for_warm(job)
        beside_mb = job.measure_beside_mb()
        job.order_kill(rank)
        killed_ns = job.wait_for("killed", attempt=None, ranks=1)[0].at_ns
        try:
            recovery = job.wait_until("a new step", lambda: find_recovery(job.all_moments()))
        except CannotMeasure as error:
            tell(str(error))
            recovery = None
        before = [moment for moment in job.all_moments() if moment.at_ns < killed_ns]
        return Sample(
            contender=contender.name,
            has_imports=bool(imports),
            recovery=recovery,
            save_s=find_durations(before, "save"),
            copy_s=find_durations(before, "copy"),
            beside_mb=beside_mb,
        )


def wait_for_warm(job: ContenderJob) -> None:
    """Raises CannotMeasure where there is no warm process."""
    ends = job.wait_until(
        "a warm process", lambda: [line for line in read_log(job.folder) if line["event"] in ENDS] or None
    )
    if ends[0]["event"] != "warm_ready":
        raise job.trouble(f"no warm process: {ends[0]}")


def spread(values: Sequence[float], unit: str = "") -> str:
    """Median, least and most."""
    if not values:
        return "–"
    show = "{:g}".format if all(isinstance(value, int) for value in values) else number
    shown = f"{show(median(values))}{unit and ' ' + unit}"
    return shown if len(values) == 1 else f"{shown} ({show(min(values))} … {show(max(values))})"


def as_table(samples: Sequence[Sample]) -> str:
    """A line for each contender, in Markdown."""
    headings = ["", "runs", "first line", "after imports", "new step", "of all ranks", "steps again"]
    headings += ["stands a save", "memory beside"]
    lines = [f"| {' | '.join(headings)} |", f"|---{'|---:' * (len(headings) - 1)}|"]
    for contender in CONTENDERS:
        own = [sample for sample in samples if sample.contender == contender.name]
        if not own:
            continue
        found = [sample.recovery for sample in own if sample.recovery is not None]
        times = [
            spread([getattr(recovery, name) for recovery in found], "s")
            for name in ("first_s", "imported_s", "new_s", "all_s")
        ]
        runs = str(len(own)) if len(found) == len(own) else f"{len(own)}, {len(own) - len(found)} not gone on"
        stands = spread([1000 * took_s for sample in own for took_s in sample.save_s], "ms")
        if copies := [1000 * took_s for sample in own for took_s in sample.copy_s]:
            stands += f"; a copy {spread(copies, 'ms')}"
        again = spread([recovery.again for recovery in found])
        beside = spread([sample.beside_mb for sample in own], "MB")
        lines.append(f"| {' | '.join([contender.name, runs, *times, again, stands, beside])} |")
    return "\n".join(lines) + "\n"


def render(report: Report) -> str:
    """What stands between the page's markers."""
    machine = report.machine
    text = f"`{report.command}` on {machine.date} UTC: {machine}; load {machine.load_1m:g} as it began.\n\n"
    text += as_table([sample for sample in report.samples if not sample.has_imports])
    importing = [sample for sample in report.samples if sample.has_imports]
    if importing:
        text += f"\nWith `import {', '.join(IMPORTS)}` in the script:\n\n{as_table(importing)}"
    return text + "".join(f"\nNot measured: {name}.\n" for name in report.missing)


def measure(report: Report, contenders: Sequence[Contender], rounds: int, import_rounds: int, file: Path) -> None:
    """Add samples to the report, and to the file after each. The first rounds are those with slow imports, too."""
    file.parent.mkdir(parents=True, exist_ok=True)
    importing = [contender for contender in contenders if contender.name in IMPORTING]
    for turn in range(max(rounds, import_rounds)):
        runs: list[tuple[Contender, Sequence[str]]] = [(contender, ()) for contender in contenders if turn < rounds]
        runs += [(contender, IMPORTS) for contender in importing if turn < import_rounds]
        for contender, imports in random.sample(runs, len(runs)):
            name = f"round {turn + 1}{', with imports' if imports else ''} of {contender.name}"
            try:
                sample = play(contender, turn % RANKS, imports)
            except CannotMeasure as error:
                tell(f"{name}: {error}")
                report.missing.append(name)
                continue
            report.samples.append(sample)
            file.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
            tell(f"{name}: {sample.recovery}")


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 1 where something did not go on, or was not measured though it is installed."""
    parser = argparse.ArgumentParser(description="SIGKILL of a rank, under several launchers")
    names = [contender.name for contender in CONTENDERS]
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--import-rounds", type=int, default=2, help="in so many of them once more, with slow imports")
    parser.add_argument("--quick", action="store_true", help="one round of each")
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help=f"one of: {'; '.join(names)}")
    parser.add_argument("--json", type=Path, default=JSON, metavar="FILE", help="where the samples go")
    parser.add_argument("--from-json", type=Path, metavar="FILE", help="show an earlier run instead of measuring")
    parser.add_argument("--write-docs", action="store_true", help="put the tables into docs/benchmarks.md")
    arguments = parser.parse_args(argv)
    if arguments.from_json:
        report = msgspec.json.decode(arguments.from_json.read_bytes(), type=Report)
    else:
        wanted = [one for one in CONTENDERS if not arguments.only or one.name in arguments.only]
        missing = [f"{one.name} (not installed: `make bench-recovery` does)" for one in wanted if not one.is_there]
        given = ["python", "-m", "benchmarks.recovery", *(sys.argv[1:] if argv is None else argv)]
        report = Report(machine=describe(), command=shlex.join(given), samples=[], missing=missing)
        rounds, import_rounds = (1, 1) if arguments.quick else (arguments.rounds, arguments.import_rounds)
        measure(report, [one for one in wanted if one.is_there], rounds, import_rounds, arguments.json)
    print(render(report))
    if arguments.write_docs:
        DOCS.write_text(replace_between(DOCS.read_text(), render(report), BEGIN, END))
    went_on = all(sample.recovery is not None for sample in report.samples)
    return 0 if went_on and not any(name.startswith("round") for name in report.missing) else 1


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    # Leave through every `with`, so that no rank is left behind.
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    os.chdir(ROOT)
    sys.exit(main())
