"""Jobs by chance, as NCCL would carry them out: what each rank has issued, and what is done, when one stands still.

All ranks have one program, in one order. A host issues its calls one after the other, and waits for all of them at its
synchronisations. A call is done once all its members have issued it, and their earlier calls of that group are done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from hypothesis import strategies as st

OPS = (
    "all_reduce[64]",
    "~all_reduce[64]",
    "all_gather_into_tensor[8]",
    "reduce_scatter_tensor[64]",
    "broadcast[9]",
    "barrier",
    "all_gather[3,4,5,6]",
    "all_reduce_coalesced[4,4]",
)


@dataclass(frozen=True)
class Step:
    """One call of a group's members, or an exchange of two of them."""

    group: str
    members: tuple[int, ...]
    op: str
    """Empty: the first sends to the second."""
    is_sync: bool
    """Its members wait here for all that they have issued."""

    def text_of(self, rank: int) -> str:
        if self.op:
            return self.op
        sender, receiver = self.members
        return f"{{send>{receiver}}}" if rank == sender else f"{{recv<{sender}}}"


class Outcome(NamedTuple):
    """Where a job has come to stand still."""

    script: str
    """In the notation of tests/support/recorder_script.py."""
    waiting: list[int]
    """Ranks that have issued what is not done."""


def run(
    steps: list[Step],
    *,
    stops: tuple[int, int] = (-1, 0),
    dead: int = -1,
    changed: tuple[int, int, str] = (-1, -1, ""),
) -> Outcome:
    """Let them run until nothing moves.

    stops: a rank, and the first step that it does not come to. dead: a step that is never done. changed: a step, a
    rank, and what this calls in its place; so it is never done.
    """
    at = dict.fromkeys(MEMBERS["world"], 0)
    done: set[int] = set()
    moved = True
    while moved:
        moved = False
        for rank in at:
            while at[rank] < (stops[1] if rank == stops[0] else len(steps)):
                if any(steps[n].is_sync and rank in steps[n].members and n not in done for n in range(at[rank])):
                    break
                at[rank] += 1
                moved = True
        for number, step in enumerate(steps):
            if number in done or number in (dead, changed[0]):
                continue
            earlier = [
                n for n in range(number) if steps[n].group == step.group and set(steps[n].members) & set(step.members)
            ]
            if all(at[rank] > number for rank in step.members) and done.issuperset(earlier):
                done.add(number)
                moved = True
    lines, waiting = [], set()
    for number, step in enumerate(steps):
        for rank in step.members:
            if at[rank] > number:
                op = changed[2] if (number, rank) == changed[:2] else step.text_of(rank)
                lines.append(f"{rank}/{step.group}: {op}{'' if number in done else '?'}")
                waiting |= set() if number in done else {rank}
    return Outcome("\n".join(lines), sorted(waiting))


GROUPS = {"tp0": "0,1", "tp1": "2,3", "dp0": "0,2", "dp1": "1,3"}
MEMBERS = {
    "world": (0, 1, 2, 3),
    **{name: tuple(int(rank) for rank in ranks.split(",")) for name, ranks in GROUPS.items()},
}


@st.composite
def programs(draw: st.DrawFn, most: int = 14) -> list[Step]:
    """Steps of four ranks, in five groups."""
    steps = []
    for _ in range(draw(st.integers(2, most))):
        group = draw(st.sampled_from([*MEMBERS]))
        members = MEMBERS[group]
        if draw(st.integers(0, 3)) == 0:
            members = tuple(draw(st.permutations(members))[:2])
            op = ""
        else:
            op = draw(st.sampled_from(OPS))
            op = op if group == "world" else op.replace("[3,4,5,6]", "[3,4]")
        steps.append(Step(group, members, op, draw(st.booleans())))
    return steps
