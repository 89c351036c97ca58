"""`guardctl top`: what its keys do to a run, and do not; terminals that can and can't show it; hostile words."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from textual.events import Paste
from textual.pilot import Pilot

from guardrun.supervisor.cli.top.app import TopApp
from guardrun.supervisor.cli.top.commands import Commands
from guardrun.supervisor.cli.top.lines import text_of
from guardrun.supervisor.cli.top.run_list import find_runs
from guardrun.supervisor.cli.top.screens import Asking, Canvas, Page
from guardrun.supervisor.wire.control_messages import Answer
from tests.cli.conftest import NODE, STATUS, Ctl, FakeSupervisor, make_run, record_journal, stacks_answer
from tests.support.terminal import Terminal
from tests.watch.stories import status

GUARDCTL = [sys.executable, "-m", "guardrun.supervisor.cli.guardctl"]
HOSTILE = "\x1b[2J\x1b]0;owned\x07[red]bold[/red]\r\u202e"


def environment(**changes: str | None) -> dict[str, str]:
    found = {**os.environ, "TERM": "xterm-16color", "PYTHONUTF8": "1", **changes}
    return {name: value for name, value in found.items() if value is not None}


# Where it is none, or another one -------------------------------------------------------------------------------------


def test_into_a_pipe_it_says_so(ctl: Ctl, live: FakeSupervisor) -> None:
    ctl("top", code=1)
    assert "draws on a terminal, and this is none" in ctl.err and "status --watch" in ctl.err
    assert live.asked == []


def test_as_data(ctl: Ctl, live: FakeSupervisor) -> None:
    live.answers["status"] = Answer(is_ok=True, data=status(500))
    view = ctl.json("top")
    assert (view["state"], view["source"], view["ranks"]["total"]) == ("stalled", "supervisor", 500)
    assert [row["why"] for row in view["ranks"]["rows"][:1]] == ["holds the run up"]
    assert "\n" not in view["stall"] and len(live.asked) == 1


def test_a_run_that_is_over_as_data(ctl: Ctl, recorded: Path) -> None:
    view = ctl.json("top")
    assert (view["state"], view["is_over"], view["why"]) == ("ended", True, "the run is over")
    assert [one["id"] for one in view["incidents"]] == ["002", "001"]
    assert "saved at step 20: /out/ckpt_20.pt" in [line["text"] for line in view["log"]]
    assert {row["rank"]: row["state"] for row in view["ranks"]["rows"]}[1] == "signal 9"


def test_a_folder_of_another_version(ctl: Ctl, recorded: Path) -> None:
    (recorded / "summary.json").write_text('{"goodput": {"of": "another kind"}, "lost_s": [7]}')
    ctl("top", "--json", code=1)
    assert "what it holds is not of this version of guardrun" in ctl.err and "goodput" in ctl.err


def test_an_answer_of_another_version(ctl: Ctl, live: FakeSupervisor) -> None:
    live.answers["status"] = Answer(is_ok=True, data={"ranks": 7})
    view = ctl.json("top")
    assert view["source"] == "directory" and "not one of this version" in view["why"]


@pytest.mark.parametrize(
    ("changes", "program", "said"),
    [
        ({"TERM": "dumb"}, [], "can't be drawn on"),
        ({"PYTHONUTF8": "0", "PYTHONIOENCODING": "latin-1"}, [], "iso8859-1, and no UTF-8"),
        ({}, ["import sys; sys.modules['textual'] = None"], "pip install 'guardrun[top]'"),
    ],
)
def test_where_it_cannot_be_drawn_it_is_status(
    live: FakeSupervisor, tmp_path: Path, changes: dict[str, str], program: list[str], said: str
) -> None:
    code = "; ".join([*program, "import sys; from guardrun.supervisor.cli.guardctl import main; sys.exit(main())"])
    with Terminal([sys.executable, "-c", code, "top"], tmp_path, environment(**changes), 130) as terminal:
        shown = terminal.wait_for("training", "250 ms")
        assert said in " ".join(shown.split()) and "status --watch" in shown
        terminal.press("\x03")
        assert terminal.wait_for_end() == 0


# On a terminal --------------------------------------------------------------------------------------------------------


def test_what_a_run_says_steers_no_terminal(live: FakeSupervisor, tmp_path: Path) -> None:
    told = {**STATUS, "run_id": HOSTILE + "run", "state": HOSTILE, "notes": [f"rank 0: {HOSTILE}"]}
    told["ranks"] = [{**rank, "node": HOSTILE, "phase": HOSTILE, "state": HOSTILE} for rank in STATUS["ranks"]]
    told["incidents"] = [{**STATUS["incidents"][0], "summary": HOSTILE, "cause": HOSTILE}]
    live.answers["status"] = Answer(is_ok=True, data=told)
    with Terminal([*GUARDCTL, "top"], tmp_path, environment()) as terminal:
        terminal.wait_for("Goodput", "[red]bold[/red]", "Ranks 2")
        assert len(terminal.lines()) == 24
        terminal.press("i")
        terminal.wait_for("Incidents, the newest first", "[red]bold[/red]")
        terminal.press("q")
        terminal.wait_for("Goodput")
        terminal.press("q")
        assert terminal.wait_for_end() == 0
        written = terminal.written
    assert b"owned\x07" not in written and b"\x1b]0;" not in written and "\u202e".encode() not in written
    # The terminal's own sixteen colours, and it is given back as it was.
    assert b"\x1b[?1049l" in written
    assert not re.search(rb"[34]8;[25];", written) and re.search(rb"\x1b\[(\d+;)*3[1-6]m", written)


def test_no_colour(live: FakeSupervisor, tmp_path: Path) -> None:
    with Terminal([*GUARDCTL, "top"], tmp_path, environment(NO_COLOR="1")) as terminal:
        terminal.wait_for("TRAINING", "stands out")
        terminal.press("\x03")
        assert terminal.wait_for_end() == 0
        assert not re.search(rb"\x1b\[(\d+;)*[34][0-7](;\d+)*m", terminal.written)


# Keys -----------------------------------------------------------------------------------------------------------------


class Watched:
    """A TopApp without a terminal."""

    def __init__(self, pilot: Pilot[None], supervisor: FakeSupervisor | None) -> None:
        self.pilot, self.supervisor = pilot, supervisor

    def text(self) -> str:
        """What the uppermost screen shows, as far as it is lines."""
        parts = [text_of(line) for canvas in self.pilot.app.screen.query(Canvas) for line in canvas.lines]
        parts += [text_of(line) for page in self.pilot.app.screen.query(Page) for line in page.lines]
        return "\n".join(parts)

    async def until(self, what: Callable[[], Any]) -> None:
        for _ in range(1500):
            if what():
                return
            await self.pilot.pause(0.02)
        raise AssertionError(self.text())

    async def shows(self, *parts: str) -> None:
        await self.until(lambda: all(part in self.text() for part in parts))

    def acted(self) -> list[str]:
        """What was asked of the supervisor besides how it is doing."""
        assert self.supervisor is not None
        return [ask.verb for ask in self.supervisor.asked if ask.verb != "status"]


def watch(
    runs: Path,
    act: Callable[[Watched], Awaitable[None]],
    supervisor: FakeSupervisor | None = None,
    chooses: bool = False,
) -> None:
    async def main() -> None:
        app = TopApp(
            (runs / "latest").resolve(),
            node=NODE,
            every_s=1.0,
            environ=environment(),
            list_runs=lambda: find_runs(runs, NODE),
            chooses=chooses,
        )
        async with app.run_test(size=(80, 24)) as pilot:
            await act(Watched(pilot, supervisor))

    asyncio.run(main())


def test_no_key_acts_by_itself(runs: Path, live: FakeSupervisor) -> None:
    """Every key that there is, twice, and Enter; the dialog left; another word; a paste: nothing is done to the run."""

    async def act(top: Watched) -> None:
        await top.shows("TRAINING")
        for keys in (["X", "X", "enter"], ["h", "h", "enter"], ["X", "y", "e", "s", "enter"], ["h", "escape"]):
            await top.pilot.press(*keys)
            await top.shows("left as it is")
        await top.pilot.press("X")
        await top.shows("Type restart", "ends attempt 1 of live-1", "step 121", "from step 100")
        screen = top.pilot.app.screen
        assert isinstance(screen, Asking)
        screen.post_message(Paste("restart\n"))
        await top.pilot.press("enter")
        await top.shows("left as it is")
        for key in ["s", "s", "s", *"pilrhXowjk", "question_mark"]:
            await top.pilot.press(key, key, "enter", "escape", "escape")
        await top.shows("Goodput")
        # A look at all ranks is no small thing: one at a time, however long a key is held down.
        assert top.acted() in ([], ["stacks"])

    watch(runs, act, live)


@pytest.mark.parametrize(
    ("key", "verb", "said"),
    [
        ("X", "restart", "asked: this attempt ends"),
        ("h", "hold", "held: guardrun watches"),
        ("h", "unhold", "no longer held"),
    ],
)
def test_a_word_that_is_typed_acts(runs: Path, live: FakeSupervisor, key: str, verb: str, said: str) -> None:
    live.answers["status"] = Answer(is_ok=True, data={**STATUS, "held": verb == "unhold"})
    live.answers[verb] = Answer(is_ok=True, data={"held": True})

    async def act(top: Watched) -> None:
        await top.shows("Goodput")
        await top.pilot.press(key, *f"{verb}x", "backspace", "enter")
        await top.shows(f"{verb}: {said}")
        assert top.acted() == [verb]

    watch(runs, act, live)
    [asked] = [ask for ask in live.asked if ask.verb == verb]
    assert asked.arguments["who"]


def test_stacks_help_log_and_windows(runs: Path, live: FakeSupervisor) -> None:
    live.answers["stacks"] = stacks_answer([0, 1])

    async def act(top: Watched) -> None:
        await top.shows("10 min")
        await top.pilot.press("s")
        await top.shows("fetch_vocabulary_update (train.py:73)")
        await top.pilot.press("q", "question_mark")
        await top.shows("Standing out is no verdict")
        await top.pilot.press("pagedown", "escape", "l")
        await top.shows("nothing was said yet")
        await top.pilot.press("q", "w")
        await top.shows("Goodput", "1 h")
        assert top.acted() == ["stacks"]

    watch(runs, act, live)


def test_a_run_that_is_over(runs: Path, recorded: Path) -> None:
    async def act(top: Watched) -> None:
        await top.shows("ENDED", "Incidents 2")
        await top.pilot.press("X")
        await top.shows("the run is over")
        await top.pilot.press("i")
        await top.shows("002", "001")
        await top.pilot.press("down", "enter")
        await top.shows("fetch_vocabulary_update")
        await top.pilot.press("q", "r")
        await top.shows("report.html")
        assert (recorded / "report.html").is_file()

    watch(runs, act)


def test_several_runs_are_chosen_from(runs: Path, recorded: Path, live: FakeSupervisor) -> None:
    async def act(top: Watched) -> None:
        await top.shows("alive", "live-1", "over", "vocab-1")
        await top.pilot.press("enter")
        await top.shows("TRAINING")
        await top.pilot.press("o", "end", "enter")
        await top.shows("vocab-1", "ENDED")

    watch(runs, act, live, chooses=True)


def test_a_supervisor_that_dies_and_comes_back(runs: Path, live: FakeSupervisor) -> None:
    async def act(top: Watched) -> None:
        await top.shows("TRAINING now")
        live.ends_at = "status"
        await top.shows("UNREACHABLE", "ranks as they were", "121")
        assert "Ranks 2" in top.text()

    watch(runs, act, live)


def test_a_run_whose_folder_goes(runs: Path) -> None:
    run_dir, _ = make_run(runs, "gone-1")
    record_journal(run_dir)

    async def act(top: Watched) -> None:
        await top.shows("UNFINISHED")
        run_dir.rename(runs / "elsewhere")
        await top.shows("No such file", "UNFINISHED")

    watch(runs, act)


def test_what_a_verb_prints_is_bounded(runs: Path, recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = Commands(environment())
    monkeypatch.setattr("guardrun.supervisor.cli.top.commands.MAX_BYTES", 50)
    assert commands.run(["incidents"], 80).code is None
    monkeypatch.undo()
    assert commands.run(["nonsense"], 80).code == 2
    commands.close()
    assert commands.run(["incidents"], 80).code is None
