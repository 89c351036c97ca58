"""Turn this process into a watched rank. Called by sitecustomize, before the script's first line.

Kept light: no zmq, msgspec, typing or re on this path; what only some scripts need is imported when they do.
"""

from __future__ import annotations

import fcntl
import os
from time import monotonic_ns

from guardrun.hooks.beat import heartbeat as _heart
from guardrun.hooks.beat import stack_dumps
from guardrun.hooks.patches import garbage_collector
from guardrun.hooks.rank import process, uncaught_exception
from guardrun.hooks.rank import rank as _rank
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.saves import overwrite_guard
from guardrun.hooks.startup import import_hooks
from guardrun.hooks.wire.board import MAGIC, Board, Field, Milestone, board_name, create_board


def activate(settings: dict[str, object]) -> None:
    """Start the hooks. A part that fails is left out and reported; raises only where nothing can work.

    Where this is no rank yet, but a child of multiprocessing that may become one, they are started by it then.
    """
    if "RANK" not in os.environ:
        from guardrun.hooks.startup import spawned_functions

        spawned_functions.wait(activate, settings)
        return
    attempt = settings["attempt"]
    if attempt is None:
        # torchrun's own agent numbers its attempts, from 0, in the environment of the ranks it starts.
        count = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        rank = Rank(settings, count + int(str(settings.get("first_attempt", 0))))
    else:
        rank = Rank(settings, int(str(attempt)))
    try:
        if not open_board(rank, may_create=attempt is None):
            return
    except (OSError, ValueError) as error:
        rank.fail("board", error)
    _rank.active = rank
    for name, start in (
        ("process", process.start),
        ("holding", overwrite_guard.start),
        ("imports", import_hooks.start),
        ("collector", garbage_collector.start),
        ("gc policy", garbage_collector.start_policy),
        ("exceptions", uncaught_exception.start),
        ("stacks", stack_dumps.start),
        ("heart", _heart.start),
    ):
        try:
            start(rank)
        except Exception as error:
            rank.fail(name, error)
    rank.mark(Milestone.HOOKED)


def open_board(rank: Rank, may_create: bool) -> bool:
    """Map this rank's board and own it; False where another process of the same rank owns it.

    A rank may be a shell script that runs several Pythons: the first one is the rank, and when it has ended, the next.
    Raises OSError or ValueError where there is no board.
    """
    path = os.path.join(rank.sockets, board_name(rank.attempt, rank.global_rank))
    if may_create:
        try:
            create_board(path)
        except FileExistsError:
            pass
    lock_fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock_fd)
        return False
    try:
        board = Board(path)
    except BaseException:
        os.close(lock_fd)
        raise
    rank.hold_lock(lock_fd)
    rank.board = board
    rank.words = board.words
    if board[Field.PID]:
        for index in range(len(Field)):
            rank.words[index] = 0
    now_ns = monotonic_ns()
    rank.words[Field.MAGIC] = MAGIC
    rank.words[Field.HEART_NS] = now_ns
    rank.words[Field.PHASE_SINCE_NS] = now_ns
    rank.words[Field.PID] = rank.pid
    return True
