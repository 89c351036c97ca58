"""Jobs that hang because a rank has not issued what others wait in."""

from __future__ import annotations

from tests.golden.cases.case import BLIND, MIXED, TWO_BY_TWO, Case

NEVER_ISSUED = [
    Case(
        "one rank never issues what the others wait in",
        """
        all: all_reduce[64]*5
        0-2: all_reduce[64]?
        """,
        "rank_blocked",
        (3,),
        "Rank 3 on a has waited 40 s in fetch_vocabulary (train.py:73); 3 ranks wait for it in all_reduce.",
        hosts={3: "asleep"},
    ),
    Case(
        "what DDP issues in C++ lacks one rank, which loops",
        """
        all: ~all_reduce[64]*40
        0,1,3: ~all_reduce[64]*3?
        """,
        "rank_spinning",
        (2,),
        "Rank 2 on a has been running in the same few lines",
        hosts={2: "spins"},
    ),
    Case(
        "the others' hosts have run ahead by twenty steps",
        """
        all: ~all_reduce[64]*50
        0: ~all_reduce[64]*20?
        1: ~all_reduce[64]*15?
        2: ~all_reduce[64]*18?
        """,
        "rank_blocked",
        (3,),
        hosts={3: "asleep", 1: "launch", 2: "driver"},
    ),
    Case(
        "the last of the ring's entries are enough",
        """
        all: ~all_reduce[64]*130 ~all_gather_into_tensor[64]*130
        0,1,3: ~all_reduce[64]?
        """,
        "rank_blocked",
        (2,),
        hosts={2: "asleep"},
        ring=64,
    ),
    Case(
        "more entries than are read",
        """
        all: ~all_reduce[64]*900
        1-3: ~all_reduce[64]?
        """,
        "rank_blocked",
        (0,),
        hosts={0: "asleep"},
    ),
    Case(
        "a timeout that has been told, and retired what it was for",
        """
        all: all_reduce[64]*5
        0-2: all_reduce[64]!
        """,
        "rank_blocked",
        (3,),
        hosts={3: "asleep"},
    ),
    Case(
        "waits are followed through two groups to the root",
        """
        all/tp0: all_reduce[8]*6
        all/tp1: all_reduce[8]*5
        all/dp0: reduce_scatter_tensor[64]*2
        all/dp1: reduce_scatter_tensor[64]*2
        2/tp1: all_reduce[8]?
        0/dp0: reduce_scatter_tensor[64]?
        1/dp1: reduce_scatter_tensor[64]?
        """,
        "rank_blocked",
        (3,),
        "3 ranks wait for it",
        hosts={3: "asleep"},
        groups=TWO_BY_TWO,
    ),
    Case(
        "only a sub-group is stuck, and the others wait in another",
        """
        all: all_reduce[64]*3
        all/expert: all_to_all_single[32]*4
        4-6/expert: all_to_all_single[32]?
        0-3: all_reduce[64]?
        """,
        "rank_blocked",
        (7,),
        "7 ranks wait for it",
        hosts={7: "asleep"},
        ranks=8,
        groups={"expert": "4-7"},
    ),
    Case(
        "hybrid sharding: a gather in the shard group lacks one",
        """
        all/tp0: all_gather_into_tensor[32]*8
        all/tp1: all_gather_into_tensor[32]*8
        all/dp0: all_reduce[64]*4
        all/dp1: all_reduce[64]*4
        0/tp0: all_gather_into_tensor[32]*2?
        2,3/tp1: all_gather_into_tensor[32]
        2/dp0: all_reduce[64]?
        3/dp1: all_reduce[64]?
        """,
        "rank_blocked",
        (1,),
        hosts={1: "asleep"},
        groups=TWO_BY_TWO,
    ),
    Case(
        "a rank that has not begun with a group that the others use",
        """
        all: all_reduce[64]*5
        0-2/late: all_reduce[64]?
        """,
        "rank_blocked",
        (3,),
        "3 ranks wait for it",
        hosts={3: "asleep"},
        groups={"late": "0-3"},
        alone="rank_blocked",
    ),
    Case(
        "the same, where groups have two backends",
        """
        all: all_reduce[64]*5
        0-2/late: all_reduce[64]?
        """,
        "rank_blocked",
        (3,),
        "3 ranks wait for it",
        hosts={3: "asleep"},
        groups={"late": "0-3"},
        backends=MIXED | {"late": "cpu:gloo,cuda:nccl"},
    ),
    Case(
        "a rank that waits elsewhere has not begun with a group of two backends",
        """
        all: all_reduce[64]*5
        0-2/late: all_reduce[64]?
        3: all_reduce[64]?
        """,
        "collective_mismatch",
        (),
        "Collectives that can never meet",
        groups={"late": "0-3"},
        backends=MIXED | {"late": "cpu:gloo,cuda:nccl"},
        alone="collective_timeout",
    ),
    Case(
        "a coalesced all_reduce lacks one",
        """
        all: all_reduce_coalesced[4,4]*5
        0,2,3: all_reduce_coalesced[4,4]?
        """,
        "rank_blocked",
        (1,),
        hosts={1: "asleep"},
    ),
    Case(
        "an uneven gather lacks one",
        """
        all: all_gather[5,6,7,8]*2
        0,1,2: all_gather[5,6,7,8]?
        """,
        "rank_blocked",
        (3,),
        "wait for it in all_gather",
        hosts={3: "asleep"},
    ),
    Case(
        "an uneven gather lacks one, with torch 2.6, which records its closing alone",
        """
        all: all_gather[5,6,7,8]*2
        0,1,2: all_gather[5,6,7,8]?
        """,
        "rank_blocked",
        (3,),
        hosts={3: "asleep"},
        torch="2.6",
    ),
    Case(
        "an uneven scatter lacks one, with torch 2.7",
        """
        all: all_reduce[64] reduce_scatter[5,6,7,8]
        1-3: reduce_scatter[5,6,7,8]?
        """,
        "rank_blocked",
        (0,),
        hosts={0: "asleep"},
        torch="2.7",
    ),
    Case(
        "a coalescing manager's batch of several kinds lacks one",
        """
        all: {all_reduce[4] broadcast[9]}*3
        0,1,3: {all_reduce[4] broadcast[9]}?
        """,
        "rank_blocked",
        (2,),
        hosts={2: "asleep"},
        torch="2.8",
    ),
    Case(
        "a barrier over gloo, on a group of two backends, lacks one",
        """
        all: all_reduce[64]*9 gloo.barrier*2
        0-2: gloo.barrier@?
        """,
        "rank_blocked",
        (3,),
        "wait for it in barrier",
        hosts={0: "barrier", 1: "barrier", 2: "barrier", 3: "asleep"},
        backends=MIXED,
        unlike="torch's analyser was given NCCL's dumps: gloo's have no groups",
    ),
    Case(
        "NCCL's call lacks one on a group whose gloo half is far ahead",
        """
        all: gloo.gather*30 all_reduce[64]*9
        0-2: all_reduce[64]?
        """,
        "rank_blocked",
        (3,),
        "wait for it in all_reduce",
        hosts={3: "asleep"},
        backends=MIXED,
    ),
    Case(
        "the communicator's creation lacks one, before anything is recorded",
        """
        0-2: all_reduce[64]@+
        """,
        "rank_blocked",
        (3,),
        "3 ranks wait for it in all_reduce",
        hosts={0: "creates", 1: "creates", 2: "creates", 3: "asleep"},
        alone="rank_blocked",
        unlike="nothing has been recorded",
    ),
    Case(
        "a rank whose recorder was not read has counted less",
        """
        all: all_reduce[64]*5
        0-2: all_reduce[64]?
        """,
        "rank_blocked",
        (3,),
        hosts={3: "asleep, unread"},
        alone=BLIND,
        unlike="torch has no dump of that rank",
    ),
]
