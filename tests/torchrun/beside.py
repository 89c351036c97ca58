"""The same command line under guardrun and under torchrun, at the same time, each in a folder of its own."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guardrun.launcher.base.rank_environment import DEFAULTS
from tests.support.guardrun_run import MARK, Finished, GuardrunRun, GuardrunStarter
from tests.support.waiting import wait_until

PROBE = Path(__file__).with_name("probe.py")

GUARDRUN = [sys.executable, "-m", "guardrun"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]

ADDITIONS = {name for default in DEFAULTS for name in default.names} | {"GUARDRUN_RUN_ID", "GUARDRUN_TOKEN"}
"""What docs/environment.md names, and nothing else: ranks may see no other variable that torchrun does not give."""

STEERING = {MARK, "GUARDRUN_DIR", "TMPDIR", "PWD", "OLDPWD", "_", "SHLVL"}
"""Set by these tests or a shell, for each side its own."""

Seen = dict[str, dict[str, Any]]

RESTARTS = "--max-restarts=0"
"""guardrun's default is 10, torchrun's 0: tests that compare say which."""


@dataclass
class Pair:
    """Two runs, or what came of them."""

    ours: Any
    theirs: Any

    def __iter__(self) -> Any:
        return iter((self.ours, self.theirs))


class Beside:
    """Runs pairs; `folder` holds `ours` and `theirs`, the working folders."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.starters: dict[str, GuardrunStarter] = {}
        for name, program in (("ours", GUARDRUN), ("theirs", TORCHRUN)):
            place = folder / name
            (place / "t").mkdir(parents=True)
            shutil.copy(PROBE, place / "probe.py")
            self.starters[name] = GuardrunStarter(place, program)

    def write(self, name: str, text: str, mode: int = 0o644) -> None:
        """Write a file into both working folders."""
        for starter in self.starters.values():
            path = starter.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(mode)

    def use_shell(self, before: str) -> None:
        """Have a shell run `before`, then become the launcher."""
        shell = ["bash", "-c", f'{before}; exec "$@"', "sh"]
        self.use_programs([*shell, *GUARDRUN], [*shell, *TORCHRUN])

    def use_programs(self, ours: list[str], theirs: list[str]) -> None:
        """Run these in the launchers' place."""
        for name, program in (("ours", ours), ("theirs", theirs)):
            self.starters[name].close()
            self.starters[name] = GuardrunStarter(self.folder / name, program)

    def start(self, arguments: list[str], own: list[str] | None = None, **options: Any) -> Pair:
        """Start both. own: flags for guardrun alone; options as GuardrunStarter.start's."""
        environment: dict[str, str | None] = options.pop("env", None) or {}
        runs = {
            name: starter.start(
                [*(own or []), *arguments] if name == "ours" else arguments,
                env={"TMPDIR": str(starter.folder / "t"), **environment},
                **options,
            )
            for name, starter in self.starters.items()
        }
        return Pair(**runs)

    def start_each(self, arguments: list[list[str]], **options: Any) -> Pair:
        """Start both, each with arguments of its own."""
        starters = (self.starters["ours"], self.starters["theirs"])
        return Pair(
            *(
                starter.start(words, env={"TMPDIR": str(starter.folder / "t")}, **options)
                for starter, words in zip(starters, arguments, strict=True)
            )
        )

    def run(self, arguments: list[str], own: list[str] | None = None, **options: Any) -> Pair:
        """Run both to their ends."""
        timeout_s = options.pop("timeout_s", 140.0)
        runs = self.start(arguments, own, **options)
        return Pair(*(run.wait(timeout_s) for run in runs))

    def seen(self) -> Pair:
        """What the probes of each side saw, by RANK-ATTEMPT, made comparable."""
        return Pair(*(read_seen(self.starters[name].folder) for name in ("ours", "theirs")))

    def close(self) -> None:
        for starter in self.starters.values():
            starter.close()


def read_seen(folder: Path) -> Seen:
    found: Seen = {}
    for path in sorted(folder.glob("seen-*.json")):
        text = path.read_text().replace(str(folder), "FOLDER")
        seen: dict[str, Any] = json.loads(text)
        environment = seen["environment"]
        seen["environment"] = {
            name: anonymous(name, value)
            for name, value in environment.items()
            if name not in STEERING and not name.startswith("PYTEST_")
        }
        found[path.stem.removeprefix("seen-")] = seen
    return found


def anonymous(name: str, value: str) -> str:
    """The value without what is different in every run: ports, ids, the names of temporary folders."""
    if name == "MASTER_PORT":
        return "PORT"
    value = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UUID", value)
    return re.sub(r"(torchelastic_|UUID_|_)[a-z0-9_]{8}(?=/|$)", r"\1RANDOM", value)


def without_additions(seen: Seen) -> Seen:
    """What guardrun's ranks saw, without the environment that it documents to add."""
    return {
        who: what | {"environment": {k: v for k, v in what["environment"].items() if k not in ADDITIONS}}
        for who, what in seen.items()
    }


def check_same(our_ranks: Seen, their_ranks: Seen) -> None:
    """Compare piece by piece, so that a difference can be read."""
    assert set(our_ranks) == set(their_ranks)
    filtered = without_additions(their_ranks)  # what the user sets of it himself
    for who, ours in without_additions(our_ranks).items():
        theirs = filtered[who]
        differences = {
            name: (ours["environment"].get(name), theirs["environment"].get(name))
            for name in ours["environment"] | theirs["environment"]
            if ours["environment"].get(name) != theirs["environment"].get(name)
        }
        assert differences == {}, f"rank-attempt {who}, guardrun's and torchrun's: {differences}"
        others = {name: (ours[name], theirs[name]) for name in ours if ours[name] != theirs[name]}
        assert others == {}, f"rank-attempt {who}, guardrun's and torchrun's: {others}"


def is_launchers(line: str) -> bool:
    return line.startswith("guardrun: ") or re.match(r"[WIE]\d{4} \d\d:\d\d:", line) is not None


def ranks_words(text: str) -> list[str]:
    """The lines that ranks wrote, in no order: those of two ranks come as they come."""
    return sorted(line for line in text.splitlines() if not is_launchers(line))


def read_logs(folder: Path) -> dict[str, str]:
    """The files below a log folder and what they hold, random names left out."""
    return {
        anonymous("", "/".join(path.relative_to(folder).parts)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


LOOKS_ASLEEP = 5
"""In a row: who starts processes sleeps for moments, too."""


def wait_for_probes(run: GuardrunRun, world_size: int, attempt: int = 0) -> list[int]:
    """Wait until all ranks wait, and whoever started them is through with that; their pids.

    A launcher that is signalled before has no ranks yet to pass the signal on to, torchrun's no less than ours.
    """
    looks_asleep = 0

    def ready() -> list[int]:
        paths = [run.folder / f"waiting-{rank}-{attempt}" for rank in range(world_size)]
        return [int(path.read_text()) for path in paths] if all(path.exists() for path in paths) else []

    def sleeps() -> bool:
        """What starts processes runs, or is about to; what watches them sleeps between its looks."""
        nonlocal looks_asleep
        others = [one for one in run.alive() if "guardrund" not in one.command]
        looks_asleep = looks_asleep + 1 if all(one.state == "S" for one in others) else 0
        return looks_asleep >= LOOKS_ASLEEP

    pids = wait_until(ready, 60, f"{world_size} ranks of attempt {attempt} to wait")
    wait_until(sleeps, 60, "the launcher to watch its ranks")
    return pids


def check_ended_well(pair: Pair) -> tuple[Finished, Finished]:
    ours, theirs = pair
    assert ours.returncode == 0, ours
    assert theirs.returncode == 0, theirs
    return ours, theirs
