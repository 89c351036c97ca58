"""Decoys: jobs that get on, and such as hang by nobody's fault, or only take their time."""

from __future__ import annotations

from tests.golden.cases.case import BLIND, MIXED, NOBODY, TWO_BY_TWO, Case

MOVING = [
    Case(
        "hosts run ahead of a device that gets on",
        """
        all: ~all_reduce[64]*100
        0: ~all_reduce[64]*30?.
        1-3: ~all_reduce[64]*10?.
        ---
        0: ~all_reduce[64]*60?
        1-3: ~all_reduce[64]*80?
        """,
        hosts=dict.fromkeys(range(4), "trains"),
    ),
    Case(
        "ranks are at different steps, and each advances",
        """
        all: all_reduce[64]*20
        0: broadcast[9]*5?.
        ---
        1-3: broadcast[9]*5
        0: all_reduce[64]*2?
        """,
        hosts=dict.fromkeys(range(4), "trains"),
    ),
    Case(
        "one rank writes while the others wait for it",
        """
        all: all_reduce[64]*5
        1-3: barrier?
        """,
        hosts={0: "writes"},
    ),
    Case(
        "what was pending at the first look is done at the second",
        """
        all: all_reduce[64]*5
        all: all_reduce[64]?.
        """,
        hosts={0: "trains"},
    ),
    Case(
        "a dump that is older than the others'",
        """
        all: all_reduce[64]*5
        all: all_reduce[64]?.
        ---
        all: all_reduce[64]?
        """,
        hosts={0: "late"},
    ),
]

BY_NOBODY = [
    Case(
        "a long kernel comes before what all have issued",
        """
        all: all_reduce[64]*5
        all: all_reduce[64]?
        """,
        hosts={2: "launch", 3: "driver"},
        **NOBODY,
    ),
    Case(
        "a dead link, and a host that sleeps after all that it has issued",
        """
        all: all_reduce[64]*5
        all: all_reduce[64]?
        """,
        hosts={2: "asleep"},
        **NOBODY,
    ),
    Case(
        "torch has given up on what all have issued",
        """
        all: all_reduce[64]*5
        all: all_reduce[64]!
        """,
        **NOBODY,
    ),
    Case(
        "hosts have run ahead by different steps of devices that stand still",
        """
        all: ~all_reduce[64]*50
        all: ~all_reduce[64]?
        0: ~all_reduce[64]*60?
        1: ~all_reduce[64]*40?
        2: ~all_reduce[64]*50?
        """,
        unlike="torch calls missing who is less far ahead, though its own device has not completed the one before",
        **NOBODY,
    ),
    Case(
        "more is pending than is read",
        """
        all: ~all_reduce[64]*5
        all: ~all_reduce[64]*650?
        1: ~all_reduce[64]*90?
        """,
        unlike="torch calls missing who is less far ahead, though its own device has not completed the one before",
        **NOBODY,
    ),
    Case(
        "half of the devices have begun",
        """
        all: all_reduce[64]*5
        0,1: all_reduce[64]>
        2,3: all_reduce[64]?
        """,
        timing=True,
        **NOBODY,
    ),
    Case(
        "one rank's device is done with it, and waits in the next that the others' have not reached",
        """
        all: all_reduce[64]*5
        0: broadcast[64]
        1-3: broadcast[64]?
        0: all_reduce[64]?
        """,
        **NOBODY,
    ),
    Case(
        "independent groups, issued in different orders, and both are complete",
        """
        0/a: ~all_reduce[8]?
        0/b: ~all_reduce[8]?
        1/b: ~all_reduce[8]?
        1/a: ~all_reduce[8]?
        """,
        ranks=2,
        groups={"a": "0-1", "b": "0-1"},
        **NOBODY,
    ),
    Case(
        "an exchange that both sides have issued",
        """
        0: {send>1 recv<1}*4 {send>1 recv<1}?
        1: {send>0 recv<0}*4 {send>0 recv<0}?
        """,
        ranks=2,
        **NOBODY,
    ),
    Case(
        "a pipeline whose link is dead between two stages",
        """
        0: {send>1}*5 {send>1}?
        1: {recv<0}*5 {send>2}*5 {recv<0}?
        2: {recv<1}*5 {send>3}*5 {recv<1}?
        3: {recv<2}*5 {recv<2}?
        """,
        unlike="torch takes a closing entry for a collective",
        **NOBODY,
    ),
    Case(
        "uneven gathers of other sizes on each rank are legal over NCCL",
        """
        0: all_gather[5,6,7,8]*3 all_to_all_single[8] all_to_all_single[9]?
        1: all_gather[5,6,7,8]*3 all_to_all_single[7] all_to_all_single[3]?
        2,3: all_gather[5,6,7,8]*3 all_to_all_single[9] all_to_all_single[12]?
        """,
        **NOBODY,
    ),
    Case(
        "equal counts in other shapes meet",
        """
        0,1: all_reduce[4x16]*5 all_reduce[4x16]?
        2,3: all_reduce[64]*5 all_reduce[64]?
        """,
        unlike="torch compares shapes, NCCL counts",
        **NOBODY,
    ),
    Case(
        "torch's own closing entries of an older release say no operation",
        """
        0,1: all_reduce[64] all_gather[5,6,7,8] all_reduce[64]?
        2,3: all_reduce[64] ~all_gather[5,6,7,8] all_reduce[64]?
        """,
        torch="2.6",
        **NOBODY,
    ),
    Case(
        "the first call of a group makes its communicator, which takes its time",
        """
        all: all_reduce[64]@+
        """,
        hosts=dict.fromkeys(range(4), "creates"),
        cause="collective_timeout",
        says="no rank can be named",
        alone="collective_timeout",
        patience_s=120.0,
    ),
    Case(
        "the recorder of one rank could not be read",
        """
        all: all_reduce[64]*5
        all: all_reduce[64]?
        """,
        hosts={3: "sync, unread"},
        alone=BLIND,
        **NOBODY,
    ),
    Case(
        "the recorder of one rank could not be read, in groups of two backends",
        """
        all: all_reduce[64]*5
        all: all_reduce[64]?
        """,
        hosts={3: "sync, unread"},
        backends=MIXED,
        alone=BLIND,
        **NOBODY,
    ),
    Case(
        "the recorder of one rank could not be read, and it waits for ranks whose link is dead",
        """
        all/tp0: all_reduce[8]*3 all_reduce[8]?
        2,3: all_reduce[64]?
        """,
        hosts={3: "sync, unread"},
        groups=TWO_BY_TWO,
        alone=BLIND,
        unlike="torch has no dump of that rank",
        **NOBODY,
    ),
    Case(
        "the last entry of one rank's dump could not be read",
        """
        all: ~all_reduce[64]*5
        all: ~all_reduce[64]?
        """,
        hosts={3: "sync, garbled"},
        alone=BLIND,
        **NOBODY,
    ),
    Case(
        "with torch 2.8, a batch of several kinds that all have issued",
        """
        all: {all_reduce[4] broadcast[9]}*3
        all: {all_reduce[4] broadcast[9]}?
        """,
        torch="2.8",
        **NOBODY,
    ),
]
