"""What a rank is to leave out after a rollback, as the launcher says by a file beside the boards."""

from __future__ import annotations

import json
import os
from typing import Any

from guardrun.hooks.rank.rank import Rank


class Order:
    """Batches of this rank, one after the other: actions.SkipOrder's."""

    def __init__(self, fields: dict[str, Any], rank: int) -> None:
        own = fields["ranks"].get(str(rank)) or {}
        self.id: str = fields["id"]
        self.step: int = fields["step"]
        self.batches: list[list[int]] = own.get("batches", [])
        """Empty on all ranks alike: they are not known."""
        self.before: list[int] | None = own.get("before")
        self.is_first: bool = own.get("is_first", False)
        self.loader: str = own.get("loader", "")
        self.epoch: int = own.get("epoch", -1)


def orders_of(rank: Rank) -> list[Order]:
    """Those of this rank that have not been tried yet; whoever does takes one off the list."""
    if rank.orders is None:
        rank.orders = []
        name = rank.settings.get("skips")
        try:
            if name:
                with open(os.path.join(rank.sockets, str(name)), encoding="utf-8") as file:
                    rank.orders = [Order(fields, rank.global_rank) for fields in json.load(file)]
        except Exception as error:
            rank.fail("skipping", error)
    return rank.orders


def hand_over(rank: Rank) -> list[tuple[int, list[list[int]]]]:
    """What is to be left out (step, batches), which is the script's own business from now on."""
    orders = orders_of(rank)
    handed = [(order.step, order.batches) for order in orders]
    orders.clear()
    return handed
