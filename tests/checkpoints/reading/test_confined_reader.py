"""Files that are made to be the end of whoever looks into them, and the process that they may be the end of."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from guardrun.supervisor.checkpoints import chooser as choosers
from guardrun.supervisor.checkpoints.chooser import Choice, Chooser
from guardrun.supervisor.checkpoints.reading import confined_reader as judges
from guardrun.supervisor.checkpoints.reading.confined_process import READY
from guardrun.supervisor.checkpoints.reading.confined_reader import Answer, Confined, Here, Patience
from guardrun.supervisor.checkpoints.reading.verdicts import CPU_S, Torn, Unjudged, Whole
from tests.checkpoints import bombs
from tests.checkpoints.conftest import Write, safetensors_bytes
from tests.support.waiting import wait_until

BEGAN = 1_700_000_000
LIMIT_S = 120.0
"""After which the chooser is to have gone on to the next older checkpoint."""
SPRUNG = frozenset(("hash_bomb", "deep_key"))
"""Those that would be the end of the script, too; the others are harmless once nobody falls for them."""


@pytest.fixture
def judge() -> Iterator[Confined]:
    made = Confined()
    yield made
    made.close()


@pytest.fixture
def choose(judge: Confined, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Choice]:
    """Choose in `tmp_path / "out"`, as a restart does: with less computing, and the time of a busy machine."""
    monkeypatch.setattr(choosers, "CHOICE_S", 60.0)
    monkeypatch.setattr(judges, "CPU_S", 2)

    def choose_now() -> Choice:
        chooser = Chooser(BEGAN, str(tmp_path / "out"), judge=judge)
        began_s = time.monotonic()
        choice = chooser.choose(resume_first=True, is_urgent=True)
        assert time.monotonic() - began_s < LIMIT_S
        return choice

    return choose_now


def pid_of(judge: Confined) -> int:
    """The process in which files are judged now."""
    process = judge._state["process"]
    assert process is not None
    return int(process.child.pid)


def taken(choice: Choice) -> str:
    assert choice.checkpoint is not None
    return os.path.basename(choice.checkpoint.path)


def asked(judge: Confined, kind: str, path: Path, limit_s: float = 60.0) -> Answer:
    patience = Patience()
    patience.begin("", limit_s)
    return judge.ask(kind, str(path), patience)


@pytest.mark.parametrize("around", ["archive", "legacy"])
@pytest.mark.parametrize("name", sorted(bombs.PICKLES))
def test_no_pickle_holds_up_a_choice(
    tmp_path: Path, write: Write, choose: Callable[[], Choice], name: str, around: str
) -> None:
    write(tmp_path / "out", {"ckpt_20.pt": "@training"})
    wrap = bombs.archive if around == "archive" else bombs.legacy
    (tmp_path / "out" / "ckpt_40.pt").write_bytes(wrap(bombs.PICKLES[name]()))
    choice = choose()
    if name in SPRUNG:
        assert taken(choice) == "ckpt_20.pt"
        assert "could not be judged: a key in its pickle would be hashed for ever" in choice.skipped[0].reason
    else:
        assert taken(choice) in ("ckpt_20.pt", "ckpt_40.pt")


@pytest.mark.parametrize("name", sorted(bombs.PICKLES))
def test_no_companion_holds_up_a_choice(tmp_path: Path, write: Write, choose: Callable[[], Choice], name: str) -> None:
    write(tmp_path / "out", {f"step_{n}": "@dcp" for n in (20, 40)})
    (tmp_path / "out" / "step_40" / "extra.pkl").write_bytes(bombs.PROTOCOL[:2] + bombs.PICKLES[name]())
    (tmp_path / "out" / "step_40" / "extra.pt").write_bytes(bombs.archive(bombs.PICKLES[name]()))
    assert taken(choose()) in ({"step_20"} if name in SPRUNG else {"step_20", "step_40"})


def _hash_bomb(path: Path) -> None:
    path.write_bytes(bombs.hash_bomb())


def _zero(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _linked_fifo(path: Path) -> None:
    bombs.make_fifo(path.with_name("pipe"))
    path.symlink_to("pipe")


def _sparse(path: Path) -> None:
    bombs.write_sparse(path, 1 << 40, b"\x80\x02", b".")


def _again(path: Path) -> None:
    bombs.item_again_and_again(path.parent)


@pytest.mark.parametrize(
    "spoil", [bombs.make_fifo, _linked_fifo, _zero, _hash_bomb, _sparse, _again], ids=lambda f: f.__name__
)
def test_nothing_behind_metadata_holds_up_a_choice(
    tmp_path: Path, write: Write, choose: Callable[[], Choice], spoil: Callable[[Path], None]
) -> None:
    """Takes as long as computing may, for one of them."""
    write(tmp_path / "out", {f"step_{n}": "@dcp" for n in (20, 40)})
    (tmp_path / "out" / "step_40" / ".metadata").unlink()
    spoil(tmp_path / "out" / "step_40" / ".metadata")
    choice = choose()
    assert taken(choice) == "step_20"
    assert [os.path.basename(one.path) for one in choice.skipped] == ["step_40"]


HEADERS: dict[str, bytes] = {
    "deep": bombs.safetensors(b"[" * 1_000_000),
    "deep_objects": bombs.safetensors(b'{"a":' * 500_000),
    "too_long": (1 << 62).to_bytes(8, "little"),
    "digits": bombs.safetensors(b'{"a":{"data_offsets":[0,' + b"9" * 1_000_000 + b"]}}"),
    "exponent": bombs.safetensors(b'{"a":{"data_offsets":[0,1e999]}}'),
}


@pytest.mark.parametrize("name", [*HEADERS, "values", "sparse"])
def test_no_header_of_safetensors_holds_up_a_choice(
    tmp_path: Path, write: Write, choose: Callable[[], Choice], name: str
) -> None:
    write(tmp_path / "out", {"ckpt_20.safetensors": "@safetensors"})
    bomb = tmp_path / "out" / "ckpt_40.safetensors"
    if name == "sparse":
        bombs.write_sparse(bomb, 1 << 40, (99_999_999).to_bytes(8, "little") + b"{")
    else:
        bomb.write_bytes(HEADERS.get(name) or bombs.safetensors(bombs.many_values()))
    assert taken(choose()) == "ckpt_20.safetensors"


@pytest.mark.parametrize("name", ["values", "deep", "fifo", "zero", "ranks"])
def test_no_file_of_a_trainer_s_holds_up_a_choice(
    tmp_path: Path, write: Write, choose: Callable[[], Choice], name: str
) -> None:
    for step in (20, 40):
        files = {"trainer_state.json": {"global_step": step}, "model.safetensors": "@safetensors"}
        kinds = {"optimizer.pt": "@training", "scheduler.pt": "@metrics", "rng_state.pth": "@metrics"}
        write(tmp_path / "out" / f"checkpoint-{step}", files | kinds)
    state = tmp_path / "out" / "checkpoint-40" / "trainer_state.json"
    state.unlink()
    if name in ("values", "deep"):
        state.write_bytes(bombs.many_values() if name == "values" else b"[" * 5_000_000)
    elif name == "ranks":
        state.write_text('{"global_step": 40}')
        (tmp_path / "out" / "checkpoint-40" / f"rng_state_{'9' * 200}.pth").write_bytes(b"x")
        (tmp_path / "out" / "checkpoint-40" / "rng_state.pth").unlink()
    else:
        bombs.make_fifo(state) if name == "fifo" else state.symlink_to("/dev/zero")
    assert taken(choose()) == "checkpoint-20"


def test_a_directory_without_end_holds_up_nobody(tmp_path: Path, write: Write, choose: Callable[[], Choice]) -> None:
    write(tmp_path / "out", {"ckpt_20.pt": "@training"})
    size = 10 << 30
    bombs.write_sparse(tmp_path / "out" / "ckpt_40.pt", size, b"PK\3\4", bombs.directory_of(size))
    choice = choose()
    assert taken(choice) == "ckpt_20.pt"
    assert choice.skipped[0].reason == "could not be judged: its zip directory is too long to be looked into"


def test_a_pointer_that_is_no_file_holds_up_nobody(tmp_path: Path, write: Write, choose: Callable[[], Choice]) -> None:
    write(tmp_path / "out", {"iter_0000020": "@dcp"})
    write(tmp_path / "out" / "iter_0000020", {"metadata.json": {}, "common.pt": "@metrics"})
    bombs.make_fifo(tmp_path / "out" / "latest_checkpointed_iteration.txt")
    bombs.make_fifo(tmp_path / "out" / "latest")
    assert taken(choose()) == "iter_0000020"
    assert Chooser(BEGAN, str(tmp_path / "out")).warn_torn_latest() == []


# What is whole --------------------------------------------------------------------------------------------------------


def test_the_process_answers_as_one_would_here(
    tmp_path: Path, judge: Confined, samples: dict[str, bytes], dcp_sample: dict[str, bytes]
) -> None:
    """All of torch's own, whole and cut."""
    here, patience = Here(), Patience()
    files = {**samples, **dcp_sample, "model.safetensors": safetensors_bytes(), "a.json": b'{"a": [1, 2]}\n'}
    for name, data in files.items():
        for cut in (0, 1, len(data) // 2):
            path = tmp_path / f"{cut}{name}"
            path.write_bytes(data[: len(data) - cut])
            for kind in ("torch", "companion", "contents", "parallel", "metadata", "safetensors", "json", "shards"):
                assert judge.ask(kind, str(path), patience) == here.ask(kind, str(path), patience), (name, cut, kind)


def test_what_is_large_and_whole_is_judged(torch: ModuleType, tmp_path: Path, judge: Confined) -> None:
    """Fifty thousand entries each: of an optimizer's state, of an index, of a JSON of logs, of `.metadata`."""
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

    count = 50_000
    state = {n: {"step": n, "lr": 0.1, "name": f"layer.{n}.weight"} for n in range(count)}
    saved = {"model": {"w": torch.zeros(3)}, "optimizer": {"state": state, "param_groups": [{}]}, "step": 7}
    torch.save(saved, tmp_path / "ckpt.pt")
    assert asked(judge, "torch", tmp_path / "ckpt.pt").verdict == Whole()
    contents = asked(judge, "contents", tmp_path / "ckpt.pt").contents
    assert contents is not None and contents.has_optimizer and contents.step == 7

    bombs.write_index(tmp_path, count // 10)
    assert len(asked(judge, "shards", tmp_path / "model.safetensors.index.json").names or []) == count // 10

    (tmp_path / "state.json").write_text(str([{"loss": 0.5, "step": n} for n in range(count)]).replace("'", '"'))
    assert asked(judge, "json", tmp_path / "state.json").verdict == Whole()

    index = {MetadataIndex(f"layer.{n}.w", None, n): _StorageInfo(f"__{n % 999}_0.distcp", n, 5) for n in range(count)}
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Metadata({}, storage_data=index)))
    answer = asked(judge, "metadata", tmp_path / ".metadata")
    assert answer.verdict == Whole() and len(answer.ends) == 999


def test_a_checkpoint_behind_a_link_and_a_sparse_one_are_judged(
    tmp_path: Path, write: Write, choose: Callable[[], Choice]
) -> None:
    write(tmp_path / "out", {"step_20": "@dcp", "step_40": "@dcp"})
    metadata = tmp_path / "out" / "step_40" / ".metadata"
    metadata.rename(tmp_path / "elsewhere")
    metadata.symlink_to(tmp_path / "elsewhere")
    assert taken(choose()) == "step_40"
    header = b'{"a":{"data_offsets":[0,1099511627776]}}'
    bombs.write_sparse(tmp_path / "large.safetensors", 8 + len(header) + (1 << 40), bombs.safetensors(header))
    assert asked(Confined(), "safetensors", tmp_path / "large.safetensors").verdict == Whole()


# The process ----------------------------------------------------------------------------------------------------------


def test_there_is_none_before_something_is_to_be_judged(tmp_path: Path, judge: Confined) -> None:
    (tmp_path / "out").mkdir()
    assert Chooser(BEGAN, str(tmp_path / "out"), judge=judge).choose(is_urgent=True) == Choice()
    assert judge._state["process"] is None


def test_it_may_do_next_to_nothing(tmp_path: Path, judge: Confined) -> None:
    (tmp_path / "a.json").write_text("{}")
    asked(judge, "json", tmp_path / "a.json")
    limits = Path(f"/proc/{pid_of(judge)}/limits").read_text()
    said = {line[:26].strip(): line[26:].split()[:2] for line in limits.splitlines()[1:]}
    assert said["Max file size"] == said["Max core file size"] == ["0", "0"]
    assert said["Max open files"] == ["5", "5"]
    assert 0 < int(said["Max cpu time"][0]) <= CPU_S + 1
    assert int(said["Max address space"][1]) < 1 << 30
    assert sorted(os.listdir(f"/proc/{pid_of(judge)}/fd")) == ["0", "1", "2", "3"]
    assert Path(f"/proc/{pid_of(judge)}/oom_score_adj").read_text().strip() == "1000"


def test_computing_and_memory_have_their_limits_and_others_an_answer(
    tmp_path: Path, judge: Confined, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judges, "CPU_S", 2)
    (tmp_path / "values.json").write_bytes(bombs.many_values())
    (tmp_path / "a.json").write_text("{}")
    answer = asked(judge, "step", tmp_path / "values.json")
    assert "of memory would be needed" in answer.unjudged and answer.is_final
    assert asked(judge, "json", tmp_path / "a.json").verdict == Whole()
    bombs.item_again_and_again(tmp_path)
    assert asked(judge, "metadata", tmp_path / ".metadata").verdict == Whole()
    patience = Patience()
    answer = judge.ask("items", str(tmp_path / "__0_0.distcp"), patience, name="__0_0.distcp")
    assert answer.verdict == Unjudged("could not be judged: it takes more than 2 s of computing to be looked into")
    assert asked(judge, "json", tmp_path / "a.json").verdict == Whole()


def test_one_that_was_killed_is_replaced(tmp_path: Path, judge: Confined) -> None:
    (tmp_path / "a.json").write_text("{}")
    asked(judge, "json", tmp_path / "a.json")
    first = pid_of(judge)
    os.kill(first, signal.SIGKILL)
    stat = Path(f"/proc/{first}/stat")
    wait_until(lambda: stat.read_text().rpartition(") ")[2][0] == "Z", 30, "its end")
    assert asked(judge, "json", tmp_path / "a.json").verdict == Whole()
    assert pid_of(judge) != first


@pytest.mark.parametrize("why", ["none can be started", "it cannot run"])
def test_without_one_whole_and_torn_are_told_all_the_same(
    tmp_path: Path, judge: Confined, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why == "it cannot run":
        monkeypatch.setattr(judges, "_PROGRAM", "raise SystemExit(1)")
    else:
        monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    (tmp_path / "whole.json").write_text("{}")
    (tmp_path / "torn.json").write_text('{"a": ')
    assert asked(judge, "json", tmp_path / "whole.json").verdict == Whole()
    assert isinstance(asked(judge, "json", tmp_path / "torn.json").verdict, Torn)


def test_one_that_is_killed_over_a_file_has_not_judged_it(tmp_path: Path, judge: Confined) -> None:
    (tmp_path / "a.json").write_text("{}")
    for signum, is_final in ((signal.SIGSEGV, True), (signal.SIGKILL, False)):
        asked(judge, "json", tmp_path / "a.json")
        pid = pid_of(judge)
        os.kill(pid, signal.SIGSTOP)
        found: list[Answer] = []
        asking = threading.Thread(target=lambda: found.append(asked(judge, "json", tmp_path / "a.json")))  # noqa: B023
        asking.start()
        wait_until(judge._lock.locked, 30, "the question")
        os.kill(pid, signum)
        os.kill(pid, signal.SIGCONT)
        asking.join(60)
        assert found[0].unjudged and found[0].is_final is is_final


def test_one_that_waits_for_a_disk_is_given_up_and_that_is_not_final(tmp_path: Path, judge: Confined) -> None:
    (tmp_path / "a.json").write_text("{}")
    asked(judge, "json", tmp_path / "a.json")
    stopped = pid_of(judge)
    os.kill(stopped, signal.SIGSTOP)
    answer = asked(judge, "json", tmp_path / "a.json", 0.3)
    assert answer.verdict == Unjudged("could not be judged: it takes longer than there is time for", is_final=False)
    assert asked(judge, "json", tmp_path / "a.json").verdict == Whole()
    assert pid_of(judge) != stopped


def test_what_is_judged_at_leisure_gives_way_to_a_choice(tmp_path: Path, judge: Confined) -> None:
    (tmp_path / "a.json").write_text("{}")
    asked(judge, "json", tmp_path / "a.json")
    os.kill(pid_of(judge), signal.SIGSTOP)
    patience, found = Patience(), []

    def ask() -> None:
        patience.begin("", 300, is_leisurely=True)
        found.append(judge.ask("json", str(tmp_path / "a.json"), patience))

    asking = threading.Thread(target=ask)
    asking.start()
    wait_until(judge._lock.locked, 30, "the question")
    patience.hurry()
    asking.join(60)
    assert not found[0].is_final


def test_it_ends_when_it_has_nothing_to_do_and_when_nobody_asks_any_more(
    tmp_path: Path, judge: Confined, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.json").write_text("{}")
    asked(judge, "json", tmp_path / "a.json")
    judge.rest()
    assert judge._state["process"] is not None
    monkeypatch.setattr(judges, "IDLE_S", 0.0)
    judge.rest()
    assert judge._state["process"] is None
    asked(judge, "json", tmp_path / "a.json")
    judge.close()
    assert judge._state["process"] is None
    assert not asked(judge, "json", tmp_path / "a.json").is_final


@pytest.mark.cold
def test_it_ends_with_whoever_asked(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    program = (
        "import os\n"
        "from guardrun.supervisor.checkpoints.reading.confined_reader import Confined, Patience\n"
        f"judge = Confined()\njudge.ask('json', {str(tmp_path / 'a.json')!r}, Patience())\n"
        "print(judge._state['process'].child.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    stat = Path(f"/proc/{int(done.stdout)}/stat")
    wait_until(lambda: not stat.exists() or stat.read_text().rpartition(") ")[2][0] == "Z", 30, "its end")


def test_what_is_no_answer_judges_nothing(tmp_path: Path, judge: Confined, monkeypatch: pytest.MonkeyPatch) -> None:
    """What reads hostile files is trusted with nothing."""
    (tmp_path / "a.json").write_text("{}")
    for said in (b"\0\0\0\0", b"\0\0\0\2[]", b"\xff\xff\xff\xff", b'\0\0\0\x0b{"torn": 12}', b""):
        program = f"import os; os.read(0, 9999); os.write(0, {READY + said!r})"
        monkeypatch.setattr(judges, "_PROGRAM", program)
        answer = asked(judge, "json", tmp_path / "a.json")
        assert answer.unjudged and not answer.torn


def test_what_a_new_process_takes_to_begin_is_none_of_the_files_time(
    tmp_path: Path, judge: Confined, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.json").write_text("{}")
    monkeypatch.setattr(judges, "_PROGRAM", f"import time; time.sleep(4); {judges._PROGRAM}")
    patience = Patience()
    patience.begin("a.json", 3.0)
    assert not judge.ask("json", str(tmp_path / "a.json"), patience).unjudged
    monkeypatch.setattr(judges, "_PROGRAM", "import time; time.sleep(600)")
    monkeypatch.setattr(judges, "START_S", 0.1)
    judge._drop(judge._state["process"])
    patience.begin("another", 0.1)
    answer = judge.ask("json", str(tmp_path / "a.json"), patience)
    assert answer.unjudged and not answer.is_final


def test_one_that_is_still_ending_says_nothing_of_the_file(
    tmp_path: Path, judge: Confined, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has closed its socket, and the kernel has not let go of it yet: how it ends is not known."""
    (tmp_path / "a.json").write_text("{}")
    monkeypatch.setattr(judges, "_PROGRAM", "import os, time; os.read(0, 9999); os.close(0); time.sleep(600)")
    monkeypatch.setattr(judges, "_SHUTDOWN_S", 0.1)
    answer = asked(judge, "json", tmp_path / "a.json")
    assert answer.unjudged and not answer.is_final
