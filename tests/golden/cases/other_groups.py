"""Decoys: what is pending, idle, lost or destroyed elsewhere has nothing to do with what the ranks wait in."""

from __future__ import annotations

from tests.golden.cases.case import MIXED, NOBODY, TWO_BY_TWO, Case

OTHER_GROUPS = [
    Case(
        "a group that has been idle for hours, with numbers of its own, blames nobody",
        """
        all/eval: all_reduce[8]*3
        all: all_reduce[64]*200
        all: all_reduce[64]?
        """,
        groups={"eval": "0-3"},
        **NOBODY,
    ),
    Case(
        "gloo's half of a group is behind on one rank, and nobody waits there",
        """
        all: all_reduce[64]*5 gloo.gather*3
        0-2: gloo.gather*2
        all: all_reduce[64]?
        """,
        backends=MIXED,
        **NOBODY,
    ),
    Case(
        "a receive that was posted for later, on a rank that saves",
        """
        all: all_reduce[64]*5
        0: {recv<1}?
        1-3: all_reduce[64]?
        """,
        "collective_mismatch",
        (),
        patience_s=300.0,
        hosts={0: "saves"},
        unlike="torch takes a closing entry for a collective",
    ),
    Case(
        "a batch whose beginning the ring has lost is no collective of its number",
        """
        all/pp: ~all_reduce[8]*2
        0/pp: {send>1}*2
        1/pp: {recv<0}*2
        all: ~all_reduce[64]*26
        all/pp: all_reduce[8]?
        """,
        ranks=3,
        groups={"pp": "0-2"},
        ring=28,
        unlike="torch aligns the rings by record, and these ranks have recorded other numbers of them",
        **NOBODY,
    ),
    Case(
        "a send of long ago, of which the last calls say nothing any more",
        """
        0: send>1*5
        1: recv<0*4
        1: recv<0?
        all: all_reduce[64]*9
        all: all_reduce[64]?
        """,
        ranks=2,
        last=3,
        **(NOBODY | {"says": "all of them have issued theirs"}),
    ),
    Case(
        "a group that was destroyed, with what was pending in it",
        """
        all/old: all_reduce[8]*6
        0,1/old: all_reduce[8]?
        all/old: destroy
        all: all_reduce[64]*5 all_reduce[64]?
        """,
        groups={"old": "0-3"},
        alone="collective_timeout",
        unlike="torch does not know that the group was destroyed",
        **NOBODY,
    ),
    Case(
        "a group that has the name of one that was destroyed",
        """
        all/old: all_reduce[8]*6
        0,1/old: all_reduce[8]*3
        all/old: destroy
        all/new: all_reduce[8]*2 all_reduce[8]?
        """,
        groups={"old": "0-3", "new": "0-3"},
        names={"old": "1", "new": "1"},
        unlike="torch takes the two for one",
        **NOBODY,
    ),
    Case(
        "tensor groups of one name",
        """
        all/tp0: all_reduce[8]*6 all_reduce[8]?
        all/tp1: all_reduce[8]*4 all_reduce[8]?
        """,
        groups=TWO_BY_TWO,
        names={"tp0": "1", "tp1": "1"},
        **NOBODY,
    ),
]
