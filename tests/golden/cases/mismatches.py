"""Jobs that hang because calls don't match."""

from __future__ import annotations

from tests.golden.cases.case import Case

MISMATCHES = [
    Case(
        "one rank issues another operation",
        """
        all: all_reduce[64]*5
        0,1,3: all_reduce[64]?
        2: broadcast[64]?
        """,
        "collective_mismatch",
        (2,),
        "is in broadcast of [64] float32 (train.py:103) while ranks 0-1,3 are in",
    ),
    Case(
        "one rank reduces another size",
        """
        all: all_reduce[64]*5
        0-2: all_reduce[64]?
        3: all_reduce[32]?
        """,
        "collective_mismatch",
        (3,),
        "all_reduce of [32]",
    ),
    Case(
        "one rank reduces another type",
        """
        all: all_reduce[64]*5
        0-2: all_reduce[64]?
        3: all_reduce[64]:BFloat16?
        """,
        "collective_mismatch",
        (3,),
        "bfloat16",
    ),
    Case(
        "two against two",
        """
        all: all_reduce[64]*5
        0,1: all_reduce[64]?
        2,3: all_gather_into_tensor[64]?
        """,
        "collective_mismatch",
        (),
        "which of them is wrong cannot be told",
    ),
    Case(
        "one rank has left a call out, and is a step further",
        """
        all: all_reduce[64] all_gather_into_tensor[8] all_reduce[64] all_gather_into_tensor[8]
        0-2: all_reduce[64]?
        3: all_gather_into_tensor[8]?
        """,
        "collective_mismatch",
        (3,),
        "all_gather_into_tensor of [8]",
    ),
    Case(
        "hosts have issued more after what can't match",
        """
        all: ~all_reduce[64]*5
        0,1,3: ~all_reduce[64]*4?
        2: ~broadcast[64]? ~all_reduce[64]*4?
        """,
        "collective_mismatch",
        (2,),
        "broadcast",
    ),
    Case(
        "a batch that one rank took for a reduction",
        """
        all: all_reduce[64]*5
        0-2: {all_reduce[4] all_reduce[9]}?
        3: all_reduce[64]?
        """,
        "collective_mismatch",
        (3,),
        "all_reduce of [64]",
        unlike="torch compares batches with batches, and calls missing who has issued none",
    ),
    Case(
        "an uneven gather that one rank took for a reduction",
        """
        all: all_reduce[64]*5
        0-2: all_gather[5,6,7,8]?
        3: all_reduce[64]?
        """,
        "collective_mismatch",
        (3,),
        "while ranks 0-2 are in all_gather",
        unlike="torch compares batches with batches, and calls missing who has issued none",
    ),
    Case(
        "the same with torch 2.7, whose recorder does not say which batch it was",
        """
        all: all_reduce[64]*5
        0-2: all_gather[5,6,7,8]?
        3: all_reduce[64]?
        """,
        "collective_mismatch",
        (3,),
        "while ranks 0-2 are in all_gather",
        torch="2.7",
        alone="collective_timeout",
    ),
    Case(
        "two groups, entered in different orders by hosts that wait in each",
        """
        all/a: all_reduce[8]*4
        all/b: all_reduce[8]*4
        0/a: all_reduce[8]?
        1/b: all_reduce[8]?
        """,
        "collective_mismatch",
        (),
        "Collectives that can never meet",
        ranks=2,
        groups={"a": "0-1", "b": "0-1"},
    ),
    Case(
        "an extra call that the others will never make",
        """
        all: all_reduce[64]*5 all_gather_into_tensor[8]
        1: all_reduce[64]?
        0,2,3: barrier?
        """,
        "collective_mismatch",
        (1,),
        "while ranks 0,2-3 are in barrier",
    ),
    Case(
        "over gloo, whose entries stay scheduled, one rank issues another operation",
        """
        all: gloo.all_reduce[64]*5
        0,1,3: gloo.all_reduce[64]@?
        2: gloo.broadcast[64]@?
        """,
        "collective_mismatch",
        (2,),
        "is in broadcast of [64] float32",
        backends={"world": "gloo"},
        hosts={0: "creates", 1: "creates", 2: "creates", 3: "creates"},
        unlike="gloo's dumps name no groups, which torch can't read",
    ),
]
