"""Jobs that hang, and whose fault it is."""

from __future__ import annotations

from tests.golden.cases import Case

TWO_BY_TWO = {"tp0": "0,1", "tp1": "2,3", "dp0": "0,2", "dp1": "1,3"}
MIXED = {"world": "cpu:gloo,cuda:nccl"}

NEVER_ISSUED = [
    Case(
        "one rank never issues what the others wait in",
        """
        all: all_reduce[64]*5
        0-2: all_reduce[64]?
        """,
        "rank_blocked", (3,), "Rank 3 on a has waited 40 s in fetch_vocabulary (train.py:73); 3 ranks wait for it in all_reduce.",
        hosts={3: "asleep"},
    ),
    Case(
        "what DDP issues in C++ lacks one rank, which loops",
        """
        all: ~all_reduce[64]*40
        0,1,3: ~all_reduce[64]*3?
        """,
        "rank_spinning", (2,), "Rank 2 on a has been running in the same few lines",
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
        "rank_blocked", (3,), hosts={3: "asleep", 1: "launch", 2: "driver"},
    ),
    Case(
        "the last of the ring's entries are enough",
        """
        all: ~all_reduce[64]*130 ~all_gather_into_tensor[64]*130
        0,1,3: ~all_reduce[64]?
        """,
        "rank_blocked", (2,), hosts={2: "asleep"}, ring=64,
    ),
    Case(
        "more entries than are read",
        """
        all: ~all_reduce[64]*900
        1-3: ~all_reduce[64]?
        """,
        "rank_blocked", (0,), hosts={0: "asleep"},
    ),
    Case(
        "a timeout that has been told, and retired what it was for",
        """
        all: all_reduce[64]*5
        0-2: all_reduce[64]!
        """,
        "rank_blocked", (3,), hosts={3: "asleep"},
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
        "rank_blocked", (3,), "3 ranks wait for it", hosts={3: "asleep"}, groups=TWO_BY_TWO,
    ),
    Case(
        "only a sub-group is stuck, and the others wait in another",
        """
        all: all_reduce[64]*3
        all/expert: all_to_all_single[32]*4
        4-6/expert: all_to_all_single[32]?
        0-3: all_reduce[64]?
        """,
        "rank_blocked", (7,), "7 ranks wait for it", hosts={7: "asleep"}, ranks=8, groups={"expert": "4-7"},
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
        "rank_blocked", (1,), hosts={1: "asleep"}, groups=TWO_BY_TWO,
    ),
    Case(
        "a rank that has not begun with a group that the others use",
        """
        all: all_reduce[64]*5
        0-2/late: all_reduce[64]?
        """,
        "rank_blocked", (3,), "3 ranks wait for it", hosts={3: "asleep"}, groups={"late": "0-3"},
        alone="rank_blocked",
    ),
    Case(
        "the same, where groups have two backends",
        """
        all: all_reduce[64]*5
        0-2/late: all_reduce[64]?
        """,
        "rank_blocked", (3,), "3 ranks wait for it", hosts={3: "asleep"}, groups={"late": "0-3"},
        backends=MIXED | {"late": "cpu:gloo,cuda:nccl"},
    ),
    Case(
        "a rank that waits elsewhere has not begun with a group of two backends",
        """
        all: all_reduce[64]*5
        0-2/late: all_reduce[64]?
        3: all_reduce[64]?
        """,
        "collective_mismatch", (), "Collectives that can never meet", groups={"late": "0-3"},
        backends=MIXED | {"late": "cpu:gloo,cuda:nccl"},
        alone="collective_timeout",
    ),
    Case(
        "a coalesced all_reduce lacks one",
        """
        all: all_reduce_coalesced[4,4]*5
        0,2,3: all_reduce_coalesced[4,4]?
        """,
        "rank_blocked", (1,), hosts={1: "asleep"},
    ),
    Case(
        "an uneven gather lacks one",
        """
        all: all_gather[5,6,7,8]*2
        0,1,2: all_gather[5,6,7,8]?
        """,
        "rank_blocked", (3,), "wait for it in all_gather", hosts={3: "asleep"},
    ),
    Case(
        "an uneven gather lacks one, with torch 2.6, which records its closing alone",
        """
        all: all_gather[5,6,7,8]*2
        0,1,2: all_gather[5,6,7,8]?
        """,
        "rank_blocked", (3,), hosts={3: "asleep"}, torch="2.6",
    ),
    Case(
        "an uneven scatter lacks one, with torch 2.7",
        """
        all: all_reduce[64] reduce_scatter[5,6,7,8]
        1-3: reduce_scatter[5,6,7,8]?
        """,
        "rank_blocked", (0,), hosts={0: "asleep"}, torch="2.7",
    ),
    Case(
        "a coalescing manager's batch of several kinds lacks one",
        """
        all: {all_reduce[4] broadcast[9]}*3
        0,1,3: {all_reduce[4] broadcast[9]}?
        """,
        "rank_blocked", (2,), hosts={2: "asleep"}, torch="2.8",
    ),
    Case(
        "a barrier over gloo, on a group of two backends, lacks one",
        """
        all: all_reduce[64]*9 gloo.barrier*2
        0-2: gloo.barrier@?
        """,
        "rank_blocked", (3,), "wait for it in barrier",
        hosts={0: "barrier", 1: "barrier", 2: "barrier", 3: "asleep"}, backends=MIXED,
        unlike="torch's analyser was given NCCL's dumps: gloo's have no groups",
    ),
    Case(
        "NCCL's call lacks one on a group whose gloo half is far ahead",
        """
        all: gloo.gather*30 all_reduce[64]*9
        0-2: all_reduce[64]?
        """,
        "rank_blocked", (3,), "wait for it in all_reduce", hosts={3: "asleep"}, backends=MIXED,
    ),
    Case(
        "the communicator's creation lacks one, before anything is recorded",
        """
        0-2: all_reduce[64]@+
        """,
        "rank_blocked", (3,), "3 ranks wait for it in all_reduce", hosts={0: "creates", 1: "creates", 2: "creates", 3: "asleep"},
        alone="rank_blocked",
        unlike="nothing has been recorded",
    ),
]

MISMATCHES = [
    Case(
        "one rank issues another operation",
        """
        all: all_reduce[64]*5
        0,1,3: all_reduce[64]?
        2: broadcast[64]?
        """,
        "collective_mismatch", (2,), "is in broadcast of [64] float32 (train.py:103) while ranks 0-1,3 are in all_reduce",
    ),
    Case(
        "one rank reduces another size",
        """
        all: all_reduce[64]*5
        0-2: all_reduce[64]?
        3: all_reduce[32]?
        """,
        "collective_mismatch", (3,), "all_reduce of [32]",
    ),
    Case(
        "one rank reduces another type",
        """
        all: all_reduce[64]*5
        0-2: all_reduce[64]?
        3: all_reduce[64]:BFloat16?
        """,
        "collective_mismatch", (3,), "bfloat16",
    ),
    Case(
        "two against two",
        """
        all: all_reduce[64]*5
        0,1: all_reduce[64]?
        2,3: all_gather_into_tensor[64]?
        """,
        "collective_mismatch", (), "which of them is wrong cannot be told",
    ),
    Case(
        "one rank has left a call out, and is a step further",
        """
        all: all_reduce[64] all_gather_into_tensor[8] all_reduce[64] all_gather_into_tensor[8]
        0-2: all_reduce[64]?
        3: all_gather_into_tensor[8]?
        """,
        "collective_mismatch", (3,), "all_gather_into_tensor of [8]",
    ),
    Case(
        "hosts have issued more after what can't match",
        """
        all: ~all_reduce[64]*5
        0,1,3: ~all_reduce[64]*4?
        2: ~broadcast[64]? ~all_reduce[64]*4?
        """,
        "collective_mismatch", (2,), "broadcast",
    ),
    Case(
        "a batch that one rank took for a reduction",
        """
        all: all_reduce[64]*5
        0-2: {all_reduce[4] all_reduce[9]}?
        3: all_reduce[64]?
        """,
        "collective_mismatch", (3,), "all_reduce of [64]",
        unlike="torch compares batches with batches, and calls missing who has issued none",
    ),
    Case(
        "an uneven gather that one rank took for a reduction",
        """
        all: all_reduce[64]*5
        0-2: all_gather[5,6,7,8]?
        3: all_reduce[64]?
        """,
        "collective_mismatch", (3,), "while ranks 0-2 are in all_gather",
        unlike="torch compares batches with batches, and calls missing who has issued none",
    ),
    Case(
        "the same with torch 2.7, whose recorder does not say which batch it was",
        """
        all: all_reduce[64]*5
        0-2: all_gather[5,6,7,8]?
        3: all_reduce[64]?
        """,
        "collective_mismatch", (3,), "while ranks 0-2 are in all_gather", torch="2.7", alone="collective_timeout",
    ),
    Case(
        "two groups, entered in different orders by hosts that wait in each",
        """
        all/a: all_reduce[8]*4
        all/b: all_reduce[8]*4
        0/a: all_reduce[8]?
        1/b: all_reduce[8]?
        """,
        "collective_mismatch", (), "Collectives that can never meet", ranks=2, groups={"a": "0-1", "b": "0-1"},
    ),
    Case(
        "an extra call that the others will never make",
        """
        all: all_reduce[64]*5 all_gather_into_tensor[8]
        1: all_reduce[64]?
        0,2,3: barrier?
        """,
        "collective_mismatch", (1,), "while ranks 0,2-3 are in barrier",
    ),
]

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
        "rank_blocked", (0,), "3 ranks wait for it in irecv", hosts={0: "asleep"},
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
        "rank_blocked", (2,), hosts={2: "asleep", 1: "sync"},
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
        "rank_blocked", (1,), "rank 0 waits for it in isend", ranks=2, hosts={1: "asleep"},
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
        "collective_mismatch", (), "Collectives that can never meet", ranks=2,
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
        "rank_blocked", (1,), "rank 0 waits for it in send", ranks=2, hosts={1: "asleep"},
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
        "rank_blocked", (6,), ranks=8, groups={"cp": "4-7"}, hosts={6: "asleep"},
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
        "rank_blocked", (0,), hosts={0: "asleep"},
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
        "collective_timeout", (2,), "has a device that has not begun", patience_s=600, timing=True,
    ),
    Case(
        "a stopped process moves no data",
        """
        all: all_reduce[64]*5
        all: all_reduce[64]?
        """,
        "rank_stopped", (1,), "has been stopped by a signal", hosts={1: "stopped"},
    ),
]

FAULTS = [*NEVER_ISSUED, *MISMATCHES, *PIPELINES, *DEVICES]
