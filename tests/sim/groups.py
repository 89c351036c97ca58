"""Process groups of a virtual job: tensor-parallel neighbours, data-parallel strides, and the world.

Every step is two all_reduce in the tensor group and one in the data group. Where a rank does something of its own, its
tensor neighbours wait for it in the tensor group, and everybody else waits, in the data group, for those neighbours
(or for the rank itself).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from guardrun.supervisor.engine.model.looks import Call, Frame, GroupLook
from tests.sim import activity as act

TENSOR_LINE = Frame("forward", act.SCRIPT, 22)
DATA_LINE = Frame("train", act.SCRIPT, 60)
ODD_LINE = Frame("log_metrics", act.SCRIPT, 47)


@dataclass(frozen=True)
class Layout:
    """How a world is cut: groups of `tensor` neighbours."""

    world_size: int
    tensor: int = 8

    def tensor_group(self, rank: int) -> list[int]:
        first = rank // self.tensor * self.tensor
        return list(range(first, first + self.tensor))

    def data_group(self, rank: int) -> list[int]:
        return list(range(rank % self.tensor, self.world_size, self.tensor))

    def groups(self, rank: int, step: int, standing: Iterable[int], own_op: str) -> list[GroupLook]:
        """What a rank tells. standing: ranks that do something of their own; own_op: the collective that they are in.

        Without standing ranks everybody is in the data group's all_reduce, which does not complete.
        """
        neighbours = self.tensor_group(rank)
        is_standing, has_standing = rank in standing, any(r in standing for r in neighbours)
        tensor = self._tensor(step, is_standing, has_standing, own_op)
        is_in_data = not has_standing
        data = (
            [Call(step + 1, "all_reduce", [[4096]], "bfloat16", "issued", step + 0.9, DATA_LINE)] if is_in_data else []
        )
        return [
            _group(f"tp{neighbours[0]}", "mesh_tp", neighbours, tensor),
            _group(f"dp{rank % self.tensor}", "mesh_dp", self.data_group(rank), [_done(step, "all_reduce"), *data]),
        ]

    def _tensor(self, step: int, is_standing: bool, has_standing: bool, own_op: str) -> list[Call]:
        number = 2 * step + 1
        done = [_done(number - 1, "all_reduce"), _done(number - 2, "all_reduce")][::-1]
        if is_standing and own_op:
            return [*done, Call(number, own_op, [], "", "issued", step + 0.5, ODD_LINE)]
        if is_standing:
            return done
        state = "issued" if has_standing else "completed"
        return [*done, Call(number, "all_reduce", [[512, 64]], "bfloat16", state, step + 0.5, TENSOR_LINE)]


def _done(seq: int, op: str) -> Call:
    return Call(seq, op, [[512, 64]], "bfloat16", "completed", float(seq), TENSOR_LINE)


def _group(name: str, desc: str, ranks: list[int], calls: list[Call]) -> GroupLook:
    return GroupLook(
        name=name,
        desc=desc,
        ranks=ranks,
        issued=max((call.seq for call in calls), default=0),
        completed=max((call.seq for call in calls if call.state == "completed"), default=0),
        calls=calls,
        source="flight recorder",
    )
