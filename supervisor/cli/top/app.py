"""The terminal view itself, by textual: keys, screens, and lines that painting.py has made.

Colours are the terminal's own sixteen, on its own background. Text of a run is shown in segments, which have no markup.
Hold and restart ask for the word to be typed: no key, and nothing that is pasted, does anything to a run by itself.
"""

from __future__ import annotations

import asyncio
import math
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from textual.app import App, ComposeResult
from textual.message import Message

from guardrun.supervisor.cli.base.output import clean
from guardrun.supervisor.cli.base.watching import Looked
from guardrun.supervisor.cli.top.commands import Commands
from guardrun.supervisor.cli.top.follower import Follower
from guardrun.supervisor.cli.top.lines import Line, Piece, wrap
from guardrun.supervisor.cli.top.painting import Key, paint
from guardrun.supervisor.cli.top.panels import log_line
from guardrun.supervisor.cli.top.run_list import ListedRun, run_line
from guardrun.supervisor.cli.top.screens import MAX_LINES, Asking, Canvas, Choosing, Reading

WINDOWS = ((600.0, "10 min"), (3600.0, "1 h"), (math.inf, "all kept"))
REPAINT_S = 1.0
"""Ages are told: a supervisor that says nothing must not look like one that does."""
MESSAGE_S = 20.0
"""How long what a key has done is told."""
_HELP = """\
What is shown is asked of the run's supervisor every two seconds (less often
where its answer takes long), and read of what is new in the run's journal.
Nothing here changes a run but hold and restart, which want a word typed first.

Goodput   share of the run's time that got training further, and the rest
Step      how long a step takes, median of the ranks; the curve is the mean
Time      where ordinary steps went: own work, waiting for other ranks, for
          data, in garbage collections
Memory    of the rank that has most, and its limit; every half minute or so
Heat      readings of devices of which something was found
Ranks     all of them, where they fit; else folded: how many do what, a map,
          and those that stand out
  A step        how long it takes
  Work, Waits   the rank's own part of that, and waiting for others: the slow
                one is the one that works long and waits least
  Progress      since anything of the rank last advanced
Standing out is no verdict. Verdicts are incidents, and the sentence above
where something holds the run up.

s  stacks of all ranks now            i  incidents, Enter for one
p  profile of some steps              l  the whole log
r  write the run's page               w  how far back curves go
h  hold, or let go: guardrun changes nothing while it is held
X  restart: end this attempt now, go on from the newest checkpoint
o  another run of the folder          q  quit, as does Ctrl-C; the run goes on"""


class LookDone(Message):
    """A look at a run, or why there is none."""

    def __init__(self, run_dir: Path, found: Looked | str) -> None:
        super().__init__()
        self.run_dir, self.found = run_dir, found


class VerbDone(Message):
    """A verb has ended."""

    def __init__(self, title: str, text: str, is_page: bool) -> None:
        """is_page: it is long, and shown by itself."""
        super().__init__()
        self.title, self.text, self.is_page = title, text, is_page


class TopApp(App[None]):
    """One run of a folder at a time."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { background: ansi_default; color: ansi_default; }
    Canvas { width: 1fr; height: 1fr; background: ansi_default; color: ansi_default; }
    Page { width: 1fr; height: 1fr; background: ansi_default; color: ansi_default;
           scrollbar-size: 0 0; overflow-x: auto; overflow-y: auto; }
    Page:focus { background-tint: ansi_default 0%; }
    Bar { width: 1fr; height: 1; background: ansi_default; color: ansi_default; }
    """
    BINDINGS: ClassVar[list[Any]] = [
        ("q,ctrl+c,ctrl+q", "quit", ""),
        ("ctrl+z", "suspend_process", ""),
        ("s", "stacks", ""),
        ("p", "profile", ""),
        ("i", "incidents", ""),
        ("l", "log", ""),
        ("r", "report", ""),
        ("h", "hold", ""),
        ("X", "restart", ""),
        ("o", "runs", ""),
        ("w", "window", ""),
        ("question_mark", "help", ""),
    ]

    def __init__(
        self,
        run_dir: Path,
        *,
        node: str,
        every_s: float,
        environ: dict[str, str],
        list_runs: Callable[[], list[ListedRun]],
        chooses: bool,
    ) -> None:
        """chooses: begin with the list of runs. list_runs: those of the folder, newest first."""
        super().__init__(ansi_color=True)
        self._run_dir, self._list_runs, self._chooses = run_dir, list_runs, chooses
        self._looked: Looked | None = None
        self._trouble = ""
        self._message, self._message_s = "", 0.0
        self._verb = ""
        """The verb that runs: one at a time, so that a key that is held down asks ranks for no hundred looks."""
        self._window = 0
        self._commands = Commands(environ)
        self._follower = Follower(node, every_s, lambda run, found: self._post(LookDone(run, found)))
        self._canvas = Canvas(self._painted)

    def compose(self) -> ComposeResult:
        """The view."""
        yield self._canvas

    def on_mount(self) -> None:
        """Begin to look at the run."""
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.exit)
        self._follower.start()
        self._follow()
        self.set_interval(REPAINT_S, self._canvas.repaint)
        if self._chooses:
            self._action_runs()

    def on_unmount(self) -> None:
        """End what was begun."""
        self._follower.close()
        self._commands.close()

    def _post(self, message: Message) -> None:
        """From any thread; after the end nobody is there to hear it."""
        with suppress(RuntimeError):
            self.post_message(message)

    def _follow(self) -> None:
        self._follower.follow(self._run_dir, WINDOWS[self._window][0])

    def on_look_done(self, done: LookDone) -> None:
        """Show what was found."""
        if done.run_dir != self._run_dir:
            return
        if isinstance(done.found, str):
            self._trouble = done.found
        else:
            self._looked, self._trouble = done.found, ""
        self._canvas.repaint()

    def on_verb_done(self, done: VerbDone) -> None:
        """Show what it printed."""
        self._verb = ""
        if done.is_page:
            self._show_message("")
            self.push_screen(Reading(done.title, [[Piece(clean(line))] for line in done.text.splitlines()[:MAX_LINES]]))
        else:
            self._show_message(f"{done.title}: {' '.join(done.text.split())[:500]}")

    # What is shown ------------------------------------------------------------------------------------------------

    def _painted(self, width: int, height: int) -> list[Line]:
        is_new = self._verb or time.monotonic() - self._message_s < MESSAGE_S
        message = self._trouble or (self._message if is_new else "")
        if self._looked is None:
            said = message or f"asking how run {self._run_dir.name} is doing …"
            return [[Piece(f" {line}")] for line in wrap(said, width - 2, height)]
        age_s = time.monotonic() - self._looked.at_s
        return paint(
            self._looked.view,
            width,
            height,
            age_s=age_s,
            window=WINDOWS[self._window][1],
            keys=self._keys(),
            message=message,
        )

    def _keys(self) -> list[Key]:
        assert self._looked is not None
        is_over = self._looked.view.is_over
        hold = "let go" if self._looked.view.is_held else "hold"
        shown = [Key("i", "incidents"), Key("r", "report")]
        if not is_over:
            shown = [Key("s", "stacks"), *shown, Key("h", hold), Key("X", "restart"), Key("p", "profile")]
        return [*shown, Key("l", "log"), Key("o", "runs"), Key("w", "window"), Key("?", "help"), Key("q", "quit")]

    # Keys ---------------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys of the run's own view do nothing on another screen."""
        own = ("stacks", "profile", "incidents", "log", "report", "hold", "restart", "runs", "window", "help")
        return len(self.screen_stack) == 1 if action in own else True

    def _living(self) -> bool:
        """Whether there is somebody to ask; says so where there is not."""
        if self._looked is not None and not self._looked.view.is_over:
            return True
        self._show_message("the run is over: nobody is there to ask")
        return False

    def _show_message(self, text: str) -> None:
        self._message, self._message_s = text, time.monotonic()
        self._canvas.repaint()

    def _run(self, title: str, arguments: Sequence[str], is_page: bool) -> None:
        """Run a verb beside all else; its output comes as VerbDone."""
        if self._verb:
            self._show_message(f"{title}: not while {self._verb} runs")
            return
        self._verb = title
        self._show_message(f"{title} …")
        columns = self.size.width

        def work() -> None:
            said = self._commands.run(arguments, columns)
            text = said.text if said.code is not None else f"{said.text}\n(it was ended: too long, or too much)"
            # Why there is no answer is one sentence.
            is_long = is_page and (said.code == 0 or len(text.splitlines()) > 1)
            self._post(VerbDone(title, text, is_long))

        threading.Thread(target=work, name=title, daemon=True).start()

    def _action_stacks(self) -> None:
        if self._living():
            self._run("stacks", ["stacks", "--run", str(self._run_dir)], is_page=True)

    def _action_profile(self) -> None:
        if self._living():
            self._run("profile", ["profile", "--run", str(self._run_dir)], is_page=True)

    def _action_report(self) -> None:
        self._run("report", ["report", str(self._run_dir)], is_page=False)

    def _action_log(self) -> None:
        if self._looked is not None:
            lines = [log_line(one.time, one.level, one.text) for one in self._looked.view.log]
            self.push_screen(Reading("Log (UTC)", lines or [[Piece(" nothing was said yet")]], at_end=True))

    def _action_help(self) -> None:
        self.push_screen(Reading("guardctl top", [[Piece(f" {line}")] for line in _HELP.splitlines()]))

    def _action_window(self) -> None:
        self._window = (self._window + 1) % len(WINDOWS)
        self._follow()

    def _action_incidents(self) -> None:
        incidents = self._looked.view.incidents if self._looked is not None else []
        if not incidents:
            self._show_message("no incidents")
            return
        lines = [[Piece(f" {clean(f'{one.id}  {one.cause}  {one.summary}')}")] for one in incidents]
        shown = [one.id for one in incidents]

        def show(place: int | None) -> None:
            if place is not None:
                self._run(f"incident {shown[place]}", ["show", shown[place], "--run", str(self._run_dir)], is_page=True)

        self.push_screen(Choosing("Incidents, the newest first", lines), show)

    def _action_runs(self) -> None:
        runs = self._list_runs()
        if not runs:
            self._show_message("no other run is there")
            return

        def show(place: int | None) -> None:
            if place is not None and runs[place].run_dir != self._run_dir:
                self._run_dir, self._looked, self._trouble = runs[place].run_dir, None, ""
                self._show_message("")
                self._follow()
                self._canvas.repaint()

        self.push_screen(Choosing("Runs, the newest first", [run_line(run) for run in runs]), show)

    def _action_hold(self) -> None:
        if not self._living() or self._looked is None:
            return
        verb = "unhold" if self._looked.view.is_held else "hold"
        sentence = (
            "guardrun acts again on this run."
            if verb == "unhold"
            else (
                "guardrun goes on watching and explaining this run, and stops and restarts nothing until it is let go: "
                "a hang then lasts until a person ends it."
            )
        )
        self._ask(verb, sentence)

    def _action_restart(self) -> None:
        if not self._living() or self._looked is None:
            return
        view = self._looked.view
        at = "" if view.step is None else f", which is at step {view.step:,}"
        start = "the newest whole checkpoint" if view.checkpoint_step is None else f"step {view.checkpoint_step:,}"
        sentence = (
            f"This ends attempt {view.attempt} of {view.run_id} now{at}, on all its ranks ({view.ranks.total:,}), and "
            f"begins the next one from {start}, as guardctl restart does."
        )
        self._ask("restart", sentence)

    def _ask(self, verb: str, sentence: str) -> None:
        run_dir = self._run_dir

        def act(is_meant: bool | None) -> None:
            if is_meant:
                self._run(verb, [verb, str(run_dir)], is_page=False)
            else:
                self._show_message(f"{verb}: left as it is")

        self.push_screen(Asking(verb, sentence), act)
