"""Jobs that hang in sends and receives, and by what one device or process does."""

from __future__ import annotations

from tests.golden.cases.case import Case

PIPELINES = [
    Case(
        "the first stage of a pipeline does not send",
        """
        0: {send>1}*3
        1: {recv<0}*3 {send>2}*3
        2: {recv<1}*3 {send>3}*3
        3: {recv<2}*3
        1: {recv<0}?
        2: {recv<1}?
        3: {recv<2}?
        """,
        "rank_blocked",
        (0,),
        "3 ranks wait for it in irecv",
        hosts={0: "asleep"},
        unlike="torch takes a closing entry for a collective",
    ),
    Case(
        "a stage in the middle stands still, and both neighbours wait",
        """
        0: {send>1 recv<1}*4
        1: {recv<0 send>0}*4 {send>2 recv<2}*4
        2: {recv<1 send>1}*4 {send>3 recv<3}*4
        3: {recv<2 send>2}*4
        0: {send>1 recv<1}?
        1: {recv<0 send>0}?
        3: {recv<2 send>2}?
        """,
        "rank_blocked",
        (2,),
        hosts={2: "asleep", 1: "sync"},
        unlike="torch takes a closing entry for a collective",
        alone="rank_blocked",
    ),
    Case(
        "of a batch only the receive lacks its other side",
        """
        0: {send>1 recv<1}*4
        1: {send>0 recv<0}*4
        0: {send>1 recv<1}?
        1: {recv<0}
        """,
        "rank_blocked",
        (1,),
        "rank 0 waits for it in isend",
        ranks=2,
        hosts={1: "asleep"},
        unlike="torch takes a closing entry for a collective",
    ),
    Case(
        "the same, and whoever has not sent waits in a collective",
        """
        0: {send>1 recv<1}*4
        1: {send>0 recv<0}*4
        0: {send>1 recv<1}?
        1: {recv<0}
        1: all_reduce[64]?
        """,
        "collective_mismatch",
        (),
        "Collectives that can never meet",
        ranks=2,
        unlike="torch takes a closing entry for a collective",
    ),
    Case(
        "a send alone has no receive",
        """
        all: all_reduce[64]*2
        0: send>1[32]*3
        1: recv<0[32]*3
        0: send>1[32]?
        """,
        "rank_blocked",
        (1,),
        "rank 0 waits for it in send",
        ranks=2,
        hosts={1: "asleep"},
        unlike="torch compares sends and receives of one number, and these are not of one",
    ),
    Case(
        "a ring of context parallel ranks in a group of its own lacks one",
        """
        4/cp: {send>5 recv<7}*6
        5/cp: {send>6 recv<4}*6
        6/cp: {send>7 recv<5}*6
        7/cp: {send>4 recv<6}*6
        4/cp: {send>5 recv<7}?
        5/cp: {send>6 recv<4}?
        7/cp: {send>4 recv<6}?
        0-3: all_reduce[8]?
        """,
        "rank_blocked",
        (6,),
        ranks=8,
        groups={"cp": "4-7"},
        hosts={6: "asleep"},
        unlike="torch takes a closing entry for a collective",
    ),
    Case(
        "a pipeline's last stage waits in a reduction that the first does not reach",
        """
        0: {send>1}*3
        1: {recv<0}*3
        all: all_reduce[64]
        1: {recv<0}?
        2,3: all_reduce[64]?
        """,
        "rank_blocked",
        (0,),
        hosts={0: "asleep"},
        unlike="torch takes a closing entry for a collective",
    ),
]

DEVICES = [
    Case(
        "one device has not begun with what the others' have",
        """
        all: all_reduce[64]*5
        0,1,3: all_reduce[64]>
        2: all_reduce[64]?
        """,
        "collective_timeout",
        (2,),
        "has a device that has not begun",
        patience_s=600,
        timing=True,
    ),
    Case(
        "a stopped process moves no data",
        """
        all: all_reduce[64]*5
        all: all_reduce[64]?
        """,
        "rank_stopped",
        (1,),
        "has been stopped by a signal",
        hosts={1: "stopped"},
    ),
]
