"""A hang as data: which modules of the engine an event, or a whole hang, passes on its way from fact to action.

    python -m tests.engine.passage CASE        the walks of a recorded hang (a file of tests/data/journals)

It is counted while `Engine.handle` runs, from the interpreter's own report of every call:

- A *stop* is a call from a function of one module to one of another. To come back from a call is none: a caller that
  goes on with the answer is not gone to.
- The same line, reached through the same lines, counts once: a loop over ranks, or over looks that all go the same
  way, is one passage. Calls after one another into one module, with no other in between, are one stop.
- Modules that hold what is handed on, or read a single value of it, decide nothing and are not counted (`READ`).
- It *comes back* where a stop is at a module that it has been to: as often as there are more stops than modules.
- *Rooms* are folders, and counted likewise, by the calls from one to another; what lies beside engine.py is one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from types import CodeType, FrameType
from typing import Any, NamedTuple

import msgspec

from guardrun.supervisor.engine.engine import Engine
from guardrun.supervisor.rundir.journal import Line
from tests.support.journals import read

_BELOW = "/supervisor/engine/"
READ = ("model/", "state/state", "observation/frames", "observation/hang_finding")
"""Events, actions and the view of the run; the state's own fields; a frame of a stack; a finding and its look."""


class Stop(NamedTuple):
    """Control goes to another module."""

    module: str
    """Below supervisor/engine: `observation/rank_activity`."""
    function: str
    caller: str
    """The module that it comes from."""
    way: tuple[object, ...]
    """The lines that lead to it."""


class Walk(NamedTuple):
    """What an event, or several, have passed."""

    event: str
    """Name of its type; of the first, where there are several."""
    actions: list[str]
    """Likewise: all that were answered."""
    stops: list[Stop]

    @property
    def modules(self) -> list[str]:
        """In the order of the stops: those that it comes back to are there again."""
        return _without_repeats(stop.module for stop in self.stops)

    @property
    def doors(self) -> list[Stop]:
        """The stops that lead into a room from another one; of several in a row into the same, the first."""
        found: list[Stop] = []
        for stop in self.stops:
            room = room_of(stop.module)
            if room != room_of(stop.caller) and (not found or room != room_of(found[-1].module)):
                found.append(stop)
        return found

    @property
    def rooms(self) -> list[str]:
        """Likewise."""
        return [room_of(stop.module) for stop in self.doors]


class Figures(NamedTuple):
    """How long a walk is."""

    places: int
    """Modules, or rooms."""
    stops: int
    comes_back: int


def figures(places: Sequence[str]) -> Figures:
    """Of a walk's modules, or of its rooms."""
    return Figures(len(set(places)), len(places), len(places) - len(set(places)))


def room_of(module: str) -> str:
    """Its folder: `detectors/hang`."""
    return module.rpartition("/")[0] or "engine"


def _without_repeats(places: Iterable[str]) -> list[str]:
    found: list[str] = []
    for place in places:
        if found[-1:] != [place]:
            found.append(place)
    return found


# Recording -----------------------------------------------------------------------------------------------


def record(work: Callable[[], Any]) -> tuple[Any, list[Stop]]:
    """Do something; what it answers, and the stops in the engine's modules meanwhile."""
    stops: dict[tuple[object, ...], Stop] = {}

    def on_call(frame: FrameType, kind: str, argument: object) -> None:
        if kind == "call" and (stop := _stop(frame)) is not None:
            stops.setdefault(stop.way, stop)

    before = sys.getprofile()
    sys.setprofile(on_call)
    try:
        answer = work()
    finally:
        sys.setprofile(before)
    return answer, list(stops.values())


def _stop(frame: FrameType) -> Stop | None:
    """The call that has led to a frame, where it is one from a module of the engine to another one."""
    module, function = _module_of(frame.f_code), frame.f_code.co_name
    # An expression's body belongs to the function in which it stands, whoever asks for its next value.
    if not module or module.startswith(READ) or function == "<genexpr>":
        return None
    callers = list(_callers(frame))
    if not callers or _module_of(callers[0].f_code) == module:
        return None
    way = (frame.f_code, *((caller.f_code, caller.f_lasti) for caller in callers))
    return Stop(module, function, _module_of(callers[0].f_code), way)


def _module_of(code: CodeType) -> str:
    """Below supervisor/engine; empty for code from anywhere else."""
    return code.co_filename.partition(_BELOW)[2].removesuffix(".py")


def _callers(frame: FrameType) -> Iterator[FrameType]:
    """The engine's functions that have led to a frame, innermost first."""
    caller = frame.f_back
    while caller is not None:
        if _module_of(caller.f_code):
            yield caller
        caller = caller.f_back


# Recorded runs -------------------------------------------------------------------------------------------


def walks_of(lines: list[bytes]) -> list[Walk]:
    """A recorded run's, one for each event."""
    engine, decoder = Engine(), msgspec.json.Decoder(Line)
    walks = []
    for data in lines:
        line = decoder.decode(data)
        assert line.event is not None
        actions, stops = record(partial(engine.handle, line.event, line.t))
        walks.append(Walk(type(line.event).__name__, [type(action).__name__ for action in actions], stops))
    return walks


def hang_of(walks: list[Walk]) -> list[Walk]:
    """Those from the first look that is asked for to the start of the next attempt, after a verdict."""
    first = next(number for number, walk in enumerate(walks) if "TakeLook" in walk.actions)
    last = next(n for n, walk in enumerate(walks) if n > first and "StartAttempt" in walk.actions)
    return walks[first : last + 1]


def verdict_of(walks: list[Walk]) -> Walk:
    """That of the look which leads to the verdict."""
    return next(walk for walk in walks if walk.event == "LookTaken" and "StopAttempt" in walk.actions)


def together(walks: list[Walk]) -> Walk:
    """Several as one: what goes a way that one before it has gone adds nothing."""
    stops: dict[tuple[object, ...], Stop] = {}
    for walk in walks:
        for stop in walk.stops:
            stops.setdefault(stop.way, stop)
    return Walk(walks[0].event, [action for walk in walks for action in walk.actions], list(stops.values()))


def main() -> None:
    walks = hang_of(walks_of(read(sys.argv[1])))
    for name, walk in (("the look that leads to the verdict", verdict_of(walks)), ("the hang", together(walks))):
        print(f"{name}: modules {figures(walk.modules)}, rooms {figures(walk.rooms)}")
        for stop in walk.stops:
            print(f"    {stop.module:32} {stop.function:32} from {stop.caller}")


if __name__ == "__main__":
    main()
