"""The metrics page: a file of shared memory in which a rank's hooks leave what each step of training computed.

One file a rank and attempt beside the board, made by the rank when the first value is seen. Aligned 64-bit words as on
the board: a header and a ring of records, one a step. A record carries its number at both ends, 0 while it is written:
a reader takes those whose ends agree. Numbers that are floats are the bits of a double.
"""

from __future__ import annotations

from enum import IntEnum

MAGIC = 0x67756172_64_3E_01
MAX_RECORDS = 1024
"""Five seconds of two hundred steps a second: a reader comes every second."""
HEAD_WORDS = 16
RECORD_WORDS = 8
SIZE_BYTES = 8 * (HEAD_WORDS + RECORD_WORDS * MAX_RECORDS)


class Head(IntEnum):
    """Index of a word of the header."""

    MAGIC = 0
    PID = 1
    RECORDS = 2
    """Records written so far; the ring holds the last MAX_RECORDS."""
    UNREAD = 3
    """Steps of which nothing was read: values on a device are not asked for more often than is cheap."""
    LEARNING_RATE = 4
    """Float: of the first parameter group of the optimizer that stepped last; NaN unknown."""
    SKIPPED = 5
    """Steps that a GradScaler left out because gradients had overflowed."""
    LEFT_OUT = 6
    """Steps that guardrun left out because gradients were not finite (hooks/guards/step_guard.py)."""


class Record(IntEnum):
    """Index of a word of a record."""

    HEAD = 0
    STEP = 1
    """Of this attempt, from 1, as Field.STEP of the board counts: the step that these values led to."""
    LOSS = 2
    """Float: the sum of what backward() was called on in this step, without a GradScaler's factor."""
    GRAD_NORM = 3
    """Float: the total norm before clipping, as clip_grad_norm_ returned it; of this rank's shard where sharded."""
    FLAGS = 4
    BATCH = 5
    """Field.BATCHES of the board by then."""
    SAID = 6
    """Bits LOSS and GRAD_NORM of Flag: the script says these itself (hooks.metrics), so they may be of all ranks."""
    TAIL = 7


class Flag(IntEnum):
    """Bits of Record.FLAGS, and of OddStep.flags."""

    LOSS = 1
    """There is a loss."""
    GRAD_NORM = 2
    """There is a gradient norm."""
    SKIPPED = 4
    """A GradScaler left this step out."""
    LOSS_NAN = 8
    LOSS_INFINITE = 16
    NORM_NAN = 32
    NORM_INFINITE = 64
    LEFT_OUT = 128
    """guardrun left this step out."""
    BAD_GRADIENTS = 256
    """With it: gradients of this very rank were not finite; else another's."""
    FAR = 512
    """With LEFT_OUT: the gradient norm was far above those before."""


NONFINITE = Flag.LOSS_NAN | Flag.LOSS_INFINITE | Flag.NORM_NAN | Flag.NORM_INFINITE


def metrics_name(attempt: int, global_rank: int) -> str:
    """The file name of a rank's metrics page inside the run's socket folder."""
    return f"metrics-{attempt}-{global_rank}"
