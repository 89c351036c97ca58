"""What torch's watchdog, monitor and store say of other ranks: victims are never culprits, nobody is named by chance.

Texts are by hand after torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp and TCPStore.cpp, NCCL's sources, and
reports of them in public.
"""

from __future__ import annotations

import pytest

from guardrun.supervisor.engine.failures.backend_words import (
    CallTimeout,
    lost_peers,
    read_words,
    telling_lines,
)
from guardrun.supervisor.engine.failures.root_cause import Fall, RootCause, blame, is_peer_lost
from guardrun.supervisor.engine.model.events import ErrorRecord

TRACE = (
    "Traceback (most recent call last):\n"
    '  File "/home/u/train.py", line 5, in main\n    dist.all_reduce(x)\n'
    '  File "/x/site-packages/torch/distributed/distributed_c10d.py", line 2800, in all_reduce\n'
)
ENDS = "terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  {}\n"


def prefix(rank: int, group: str = "default_pg") -> str:
    return f"[PG ID 0 PG GUID 0({group}) Rank {rank}]"


def timed_out(rank: int, seq: int = 12, enqueued: int = 12, group: str = "default_pg") -> str:
    """The watchdog's words; the last are what() of the exception that ends the process."""
    call = (
        f"[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, "
        "NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600017 milliseconds before timing out."
    )
    log = f"[rank{rank}]:[E1122 04:00:00.1 ProcessGroupNCCL.cpp:2202] {prefix(rank, group)} "
    return (
        f"[rank{rank}]:[E1122 04:00:00.1 ProcessGroupNCCL.cpp:682] {call}\n"
        f"{log} failure detected by watchdog at work sequence id: {seq} PG status: last enqueued work: {enqueued}, "
        f"last completed work: {seq - 1}\n"
        + ENDS.format(f"{prefix(rank, group)} Process group watchdog thread terminated with exception: {call}")
    )


def monitored(rank: int, enqueued: int, group: str = "default_pg") -> str:
    """What the monitor of a rank says that has seen another's timeout."""
    log = f"[rank{rank}]:[E1122 04:00:01.1 ProcessGroupNCCL.cpp:1794] {prefix(rank, group)} "
    return (
        f"{log}Received a dump signal due to a collective timeout from  rank 2 and we will try our best to dump the "
        f"debug info. Last enqueued NCCL work: {enqueued}, last completed NCCL work: {enqueued}.This is most likely\n"
        f"{log}Terminating the process after attempting to dump debug info, due to collective timeout or exception.\n"
    )


def stuck(rank: int) -> str:
    log = f"[rank{rank}]:[F1122 04:16:00 ProcessGroupNCCL.cpp:1557] {prefix(rank)} "
    return (
        f"{log}ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued "
        f"collectives.\n{log}{prefix(rank)} Terminating the process after attempting to dump debug info, due to "
        "ProcessGroupNCCL watchdog hang.\n"
    )


def aborted(rank: int, tail: str, at_s: float = 10.0) -> Fall:
    return Fall(global_rank=rank, exitcode=-6, at_s=at_s, stderr_tail=tail)


def stopped(rank: int, tail: str = "") -> Fall:
    return Fall(global_rank=rank, exitcode=-15, at_s=12.0, stderr_tail=tail, stopped_by_us=True)


def raised(rank: int, kind: str, message: str, at_s: float = 10.0, trace: str = TRACE) -> Fall:
    error = ErrorRecord(error=kind, message=message, traceback=f"{trace}{kind}: {message}", at_s=at_s)
    return Fall(global_rank=rank, exitcode=1, at_s=at_s, error=error)


def verdict(found: RootCause) -> tuple[str, str, list[int]]:
    return found.cause, found.hint, found.culprits


# Timeouts ------------------------------------------------------------------------------------------------------------


def test_words_of_a_timeout() -> None:
    said = read_words(timed_out(3, seq=78, enqueued=80, group="tp"))
    assert (said.group, said.timeout, said.enqueued) == ("tp", CallTimeout(78, "ALLREDUCE", 600.0), 80)
    assert said.is_victim
    older = "PG status: last enqueued work: 5, last started work: -1, last completed work: 4"
    assert read_words(f"{prefix(0)} {older}").enqueued == 5, "2.4 to 2.6 have a number more"


def test_the_one_that_had_not_issued_the_call_is_to_blame() -> None:
    """Its own monitor has ended it, as late as anybody's; it is no abort of its own."""
    found = blame([*(aborted(r, timed_out(r), 60 + r) for r in range(3)), aborted(3, monitored(3, enqueued=11), 59.0)])
    assert verdict(found) == ("nccl_error", "watchdog", [3])
    assert found.confidence == 0.9
    assert found.what == (
        "had not issued ALLREDUCE, call 12 of default_pg, in which ranks 0-2 waited until its timeout of 600 s"
    )


def test_one_of_many_that_says_nothing_is_a_suspect() -> None:
    found = blame([*(aborted(r, timed_out(r)) for r in range(3)), stopped(3)])
    assert verdict(found) == ("nccl_error", "watchdog", [3])
    assert found.confidence == 0.7 and found.what.startswith("said nothing of ALLREDUCE, call 12 of default_pg")


@pytest.mark.parametrize(
    ("falls", "why"),
    [
        ([aborted(r, timed_out(r)) for r in range(4)], "every rank that fell had waited in a collective until"),
        ([aborted(0, timed_out(0)), aborted(1, timed_out(1)), stopped(2), stopped(3)], "every rank that fell had"),
        ([aborted(0, timed_out(0)), *(stopped(r, monitored(r, 11)) for r in (1, 2, 3))], "ranks 1-3 had not issued"),
        ([aborted(0, timed_out(0)), stopped(1)], "every rank that fell had waited"),
        ([*(aborted(r, timed_out(r, group="tp0")) for r in range(3)), stopped(3)], "every rank that fell had waited"),
        (
            [*(aborted(r, timed_out(r, group="tp0")) for r in range(3)), stopped(3, monitored(3, enqueued=4))],
            "every rank that fell had waited",
        ),
        (
            [*(aborted(r, timed_out(r)) for r in range(3)), stopped(3, monitored(3, enqueued=12))],
            "every rank that fell had waited",
        ),
    ],
    ids=[
        "all had issued it",
        "half of them say nothing",
        "one has issued what nobody else has",
        "one of two",
        "a group that others may not belong to",
        "another group's count",
        "it had issued it as well",
    ],
)
def test_nobody_is_named_by_chance(falls: list[Fall], why: str) -> None:
    found = blame(falls)
    assert verdict(found) == ("nccl_error", "watchdog", [])
    assert found.confidence == 0.5 and found.why_nobody.startswith(why)


def test_a_rank_that_died_of_its_own_is_to_blame_whatever_others_waited_for() -> None:
    found = blame([*(aborted(r, timed_out(r), 9.0) for r in range(3)), Fall(global_rank=3, exitcode=-11, at_s=10.0)])
    assert verdict(found) == ("segfault", "", [3])


def test_a_script_that_quotes_a_watchdog_fails_of_its_own() -> None:
    """It greps logs, say, or tells what it does in such a case."""
    message = f"the last run ended with: {timed_out(1).splitlines()[0]}"
    found = blame([raised(0, "ValueError", message, trace=""), stopped(1)])
    assert verdict(found)[::2] == ("nccl_error", [0])


# Stuck watchdogs -----------------------------------------------------------------------------------------------------


def test_a_watchdog_that_stood_still_everywhere_names_nobody() -> None:
    found = blame([aborted(r, stuck(r), 10 + r / 10) for r in range(4)])
    assert verdict(found) == ("nccl_error", "watchdog_stuck", [])
    assert found.why_nobody == "the NCCL watchdogs of ranks 0-3 were stuck in calls of NCCL or CUDA: a device or a link"


def test_one_that_stood_still_alone_has_a_device_that_does_not_answer() -> None:
    found = blame([aborted(2, stuck(2)), *(stopped(r) for r in (0, 1, 3))])
    assert verdict(found) == ("nccl_error", "watchdog_stuck", [2])
    assert "its device does not answer" in found.what


# The store -----------------------------------------------------------------------------------------------------------

JOINED = "Timed out after 601 seconds waiting for clients. {}/4 clients joined."
UNIQUE_ID = (
    "[{}] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', "
    "but store->get('0') got error: wait timeout after 600000ms, keys: {}"
)


def test_who_waits_in_the_store_is_a_victim() -> None:
    falls = [raised(0, "torch.distributed.DistStoreError", JOINED.format(3)), stopped(3)]
    assert verdict(blame(falls)) == ("exception", "store_wait", [3])
    assert is_peer_lost(falls[0])
    falls = [raised(0, "torch.distributed.DistStoreError", JOINED.format(3)), *(stopped(r) for r in (1, 2, 3))]
    found = blame(falls)
    assert found.culprits == [] and found.why_nobody.startswith("3 of 4 ranks had come to init_process_group")


def test_whoever_all_wait_for_an_id_from_is_to_blame() -> None:
    def waits(rank: int, keys: str) -> Fall:
        return raised(rank, "torch.distributed.DistBackendError", UNIQUE_ID.format(rank, keys))

    found = blame([*(waits(r, "/default_pg/0//cuda//0") for r in (1, 2, 3)), stopped(0)])
    assert verdict(found) == ("nccl_error", "store_wait", [0])
    assert found.what.startswith("never got to the first collective, for which 3 others waited")
    found = blame([*(waits(r, "/tp_group/1//cuda//0") for r in (1, 2, 3)), stopped(0)])
    assert found.culprits == [], "a member's number in another group is not its rank"


# Connections ---------------------------------------------------------------------------------------------------------

REMOTE = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2501, remote process exited or there was "
    "a network error, NCCL version 2.26.2\nncclRemoteError: A call failed possibly due to a network error or a remote "
    "process exiting prematurely.\nLast error:\nNET/IB: Got completion from peer 10.0.0.7<41234> with "
    "status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_RECV(128) reqSize=0 vendor_err=129 req_type=Recv"
)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        (REMOTE, ["10.0.0.7"]),
        ("socketProgress: Connection closed by remote peer node2.cluster<42830>", ["node2.cluster"]),
        ("Net : Call to recv from 10.200.84.247<58355> failed : Broken pipe", ["10.200.84.247"]),
        ("Connect to [fe80::1%eth0]<4242> failed", ["fe80::1%eth0"]),
        ("peer 3 has gone", []),
    ],
)
def test_hosts_that_nccl_names(text: str, hosts: list[str]) -> None:
    assert lost_peers(text) == hosts


def test_the_node_behind_a_lost_connection_is_told_and_not_blamed() -> None:
    falls = [raised(r, "torch.distributed.DistBackendError", REMOTE, at_s=10 + r / 10) for r in range(2)]
    found = blame(falls, nodes={"10.0.0.7": "node-b"})
    assert verdict(found) == ("nccl_error", "remote", [])
    assert found.why_nobody == "every rank that fell had only lost the connection to another (10.0.0.7, node-b)"
    assert found.what.startswith(
        "raised torch.distributed.DistBackendError: ncclRemoteError: NET/IB: Got completion from peer 10.0.0.7<41234>"
    )


# Text ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "\x00", "last enqueued work: ", "Timeout(ms)=", "[PG ID", "0/0 clients joined"])
def test_broken_words_say_nothing(text: str) -> None:
    said = read_words(text)
    assert not said.is_victim and said.enqueued is None


def test_lines_that_tell_are_few_and_short() -> None:
    text = "step 1\n" + timed_out(1).replace("ran for", "x" * 5000) + "Stack trace of the failed collective:\n#0 main\n"
    lines = telling_lines(text * 20).splitlines()
    assert len(lines) == 6 and max(map(len, lines)) == 400
    assert "step 1" not in lines
