"""What `[guards]` does on a real GPU, and what it must not do: part of `make gpu-check`.

Each row is one training (guarded.py) beside the same one without guardrun: under torchrun, where the bad step was left
out by hand, where guardrun has to leave it out. Parameters have to end with the same bits.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.jobs import environment_of, said

SCRIPT = Path(__file__).with_name("guarded.py")
BAD_AT = 67
RESUME = '[checkpoint]\ndir = "{folder}"\nresume_args = ["--resume", "{{path}}"]\n'
LIMIT_S = 120.0
LONG = ("--steps=1000", "--step-s=0.003")
"""Long enough for fifty looks, each at one step in ten; and for the hooks' thread to send what they found."""


@dataclass(frozen=True)
class Case:
    """One training under guardrun, and what is to be said of it."""

    name: str
    guards: str
    arguments: tuple[str, ...]
    told: tuple[str, ...] = ()
    """All that guardrun says of it, a part of each sentence; none: nothing."""
    ranks: int = 2
    others: tuple[str, ...] | None = None
    """Arguments of the same training without guardrun; None: the same ones."""
    config: str = ""


SKIP, DEEP = 'numeric = "skip"', 'detect = "deep"'
NAN = ("--fault=nan", f"--at={BAD_AT}")
LEFT_OUT = f"step {BAD_AT} was left out on both ranks"
RESTARTED = ("resuming from", "training is past incident")
CASES = (
    Case("skip_ddp", SKIP, ("--way=ddp", *NAN, "--may-wait"), (LEFT_OUT,),
         others=("--way=ddp", f"--leave-out={BAD_AT}")),
    Case("skip_fsdp", SKIP, ("--way=fsdp", *NAN, "--may-wait"), (LEFT_OUT,),
         others=("--way=fsdp", f"--leave-out={BAD_AT}", "--may-wait")),
    Case("skip_scaled", f"{SKIP}\n{DEEP}", ("--way=scaled", *NAN, "--may-wait")),
    Case("rollback", 'numeric = "rollback"', ("--way=ddp", *NAN, "--save-every=20", "--step-s=0.1", "--may-wait"),
         (f"the loss is NaN since step {BAD_AT}", f"back to a checkpoint from before step {BAD_AT}",
          "it was written when training had gone wrong", *RESTARTED), others=("--way=ddp",), config=RESUME),
    Case("memory_save", 'memory = "save"',
         ("--way=ddp", "--fault=leak", "--asked", "--steps=900", "--step-s=0.05", "--may-wait"),
         ("more device memory every hour", "the ranks are asked to save", "restarting from it before memory runs out",
          *RESTARTED),
         others=("--way=ddp", "--steps=900"), config=f"{RESUME}[leaks]\nmemory_window_s = 1.5\n"),
    Case("deep_none", DEEP, ("--way=ddp", *LONG)),
    Case("deep_fsdp", DEEP, ("--way=fsdp", *LONG, "--may-wait")),
    Case("deep_dead", DEEP, ("--way=ddp", "--fault=dead", "--at=150", *LONG), ("all zeros",)),
    Case("deep_blank", DEEP, ("--way=ddp", "--fault=blank", *LONG), ("one number all over",)),
    Case("graph", f"{SKIP}\n{DEEP}", ("--way=graph", *LONG), ranks=1),
    Case("compiled", SKIP, ("--way=compiled", "--may-wait", *LONG), ranks=1),
    Case("compiled_deep", f"{SKIP}\n{DEEP}", ("--way=compiled", "--may-wait", *LONG), ranks=1),
)  # fmt: skip


def play_guards(out: Path, is_wanted: Callable[[str, str], bool]) -> Iterator[dict[str, Any]]:
    """A row for each case that is wanted."""
    cases = [case for case in CASES if is_wanted(case.name, "guards")]
    with ThreadPoolExecutor(4) as pool:
        yield from pool.map(lambda case: _play(case, out), cases)


def _play(case: Case, out: Path) -> dict[str, Any]:
    ours = _train(case, out / case.name / "ours", case.arguments, case.guards)
    theirs = _train(case, out / case.name / "theirs", case.arguments if case.others is None else case.others, None)
    told = said(out / case.name / "ours")
    missing = [part for part in case.told if not any(part in text for text in told)]
    more = [text for text in told if not any(part in text for part in case.told)]
    ends = [_ends(out / case.name / whose, case.ranks) for whose in ("ours", "theirs")]
    right = {
        "ended": (ours, theirs) == (0, 0),
        "told": not missing and not more,
        "finite": all(end.get("is_finite") for end in ends[0]),
        "same bits": len({end.get("parameters") for end in (*ends[0], *ends[1])}) == 1,
    }
    return {
        "name": f"guards_{case.name}",
        "status": [ours, theirs],
        "seen": "as it should be" if all(right.values()) else f"NOT {', '.join(k for k, v in right.items() if not v)}",
        "step_us": [ends[0][0].get("step_us"), ends[1][0].get("step_us")],
        "said": told,
    }


def _train(case: Case, folder: Path, arguments: tuple[str, ...], guards: str | None) -> int | str:
    """Its exit status. guards: lines of the section of guardrun's configuration; None: under torchrun."""
    folder.mkdir(parents=True)
    module, flags = "torch.distributed.run", []
    if guards is not None:
        module = "guardrun"
        (folder / "guardrun.toml").write_text(f"[guards]\n{guards}\n{case.config.format(folder=folder)}")
        flags = ["--guard-dir", str(folder / "runs"), "--guard-config", str(folder / "guardrun.toml")]
    command = [
        sys.executable, "-m", module, "--standalone", f"--nproc-per-node={case.ranks}", *flags,
        str(SCRIPT), *arguments, "--out", str(folder),
    ]  # fmt: skip
    environment = environment_of(case.ranks)
    with (folder / "output.txt").open("wb") as output:
        try:
            done = subprocess.run(
                command, stdout=output, stderr=subprocess.STDOUT, env=environment, timeout=LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return "does not end"
    return done.returncode


def _ends(folder: Path, ranks: int) -> list[dict[str, Any]]:
    files = [folder / f"end_rank{rank}.json" for rank in range(ranks)]
    return [json.loads(file.read_text()) if file.exists() else {} for file in files]
