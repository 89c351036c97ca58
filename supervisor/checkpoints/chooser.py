"""Which checkpoint to resume from: the newest whole one that this run wrote, or was resumed from by guardrun.

Rules:
- Newest is what has the highest step, by its name or by what the hooks counted when it was saved, then what was written
  last (the latest mtime among its files): an attempt that began anew writes earlier steps later. Without a step it is
  as far as what was written before it. Among saves that the hooks saw their order counts, whatever the clock says: it
  may have been set back in between.
- What the script loads to begin with (a base model, another run's end) is not this run's.
- A run wrote what its hooks saw, what appeared or changed in `[checkpoint] dir` since the run began, and what is
  no older than the first file that it was seen to write in the same folder: a save that a crash cut short is never
  reported.
- A path may be gone because it was renamed into place: the file is found again by inode, size and mtime.
- What could not be judged is passed over for what is whole, and taken where nothing is: the newest of it. So is what is
  of training that had gone wrong.
- Nothing is ever written, renamed or removed, and nothing that is read is run.

One class, as all of it reads or changes one list: what was saved, by whom, and what was found of it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgspec

from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.checkpoints.format_table import AUTO, FORMATS, get_formats
from guardrun.supervisor.checkpoints.formats.format import Candidate, Format
from guardrun.supervisor.checkpoints.formats.plain import split_rank, why_no_set
from guardrun.supervisor.checkpoints.reading.confined_reader import Confined, Judge, Patience
from guardrun.supervisor.checkpoints.reading.dcp_metadata import METADATA
from guardrun.supervisor.checkpoints.reading.folder_contents import NAME_LIKE, FileStat, Place, read_stat
from guardrun.supervisor.checkpoints.reading.inspector import Inspector
from guardrun.supervisor.checkpoints.reading.verdicts import Torn, Unjudged, Verdict, Whole
from guardrun.supervisor.checkpoints.saved import (
    MAX_PARTED,
    MAX_SAVED,
    Memory,
    Saved,
    find_saved,
    fingerprint,
    is_sure,
    resolve,
    stat_tuple,
)
from guardrun.supervisor.checkpoints.search import (
    Found,
    Search,
    Tier,
    family_key,
    is_judged,
    judge_file,
    judge_torn,
    root_of,
)
from guardrun.supervisor.checkpoints.spoiled import is_spoiled
from guardrun.supervisor.engine.model.actions import Spoiled
from guardrun.supervisor.engine.model.events import Checkpoint, Skipped

MAX_SKIPPED = 20
MAX_SIBLINGS = 32
UNREADABLE = "the script could not load it"
SPOILED = "it was written when training had gone wrong"
_MAX_REMEMBERED = 20_000
CHOICE_S = 4.0
"""For a checkpoint whose verdict a restart waits for; then it goes on to the next older one."""
LAST_S = 60.0
"""Once more for the newest one that a file system held up, where nothing else is whole."""
PATIENT_S = 300.0
"""For one whose verdict nobody waits for."""
_MAX_DOUBTS = 5
"""Members of a family that could not be looked into, after which no other is tried."""
_OFFSETS = 3
"""Saves that are looked at to see how a script counts."""
_MISSES = 20
"""Files of a folder that were loaded and no checkpoint, after which it is taken for a dataset and left alone."""


@dataclass(frozen=True)
class Choice:
    """What to resume from, if anything, and what was passed over for it."""

    checkpoint: Checkpoint | None = None
    skipped: list[Skipped] = field(default_factory=list)
    stats: dict[str, FileStat] = field(default_factory=dict)
    """The checkpoint's files, as they were when it was judged."""
    siblings: list[str] = field(default_factory=list)
    """This run's, newest first, at most MAX_SIBLINGS: to read from any of them is to resume."""
    format: Format | None = None
    doubt: str = ""
    """Why the checkpoint could not be judged: it is taken for want of a whole one. Empty: it is whole."""

    @property
    def files(self) -> list[str]:
        """The checkpoint's, in order."""
        return sorted(self.stats)


class SeenInTime(NamedTuple):
    """What a rank has saved in time."""

    checkpoint: Checkpoint
    is_unchecked: bool
    """Nothing shows whether the step that it says is counted as guardrun counts."""


class PartSaved(NamedTuple):
    """What a rank says that it has saved."""

    path: str
    global_rank: int
    wall_s: float
    inode: int
    """0: not known."""


class Chooser:
    """Remembers what this run wrote, and chooses. Threads may share one."""

    def __init__(
        self,
        run_started_wall_s: float,
        checkpoint_dir: str = "",
        format: str = AUTO,
        world_size: int = 1,
        cwd: str = "",
        *,
        judge: Judge | None = None,
    ) -> None:
        """Raises UnknownFormat. checkpoint_dir: absolute; empty: wherever the ranks are seen to save. cwd: theirs.

        Touches neither: where their file system is dead, whoever does waits for ever. All else may.
        """
        self._cwd = cwd
        self._memory = Memory(run_started_wall_s, checkpoint_dir, format or AUTO, world_size)
        self._is_located = False
        self._formats = get_formats(format)
        self._judge = judge or Confined()
        self._patience = Patience()
        self._inspector = Inspector(self._judge, self._patience)
        self._verdicts: dict[tuple[Any, ...], Verdict] = {}
        self._by_stat: dict[FileStat, Saved] = {}
        self._misses: dict[str, set[str]] = {}
        self._lock = threading.Lock()

    @classmethod
    def from_state(cls, state: dict[str, Any], cwd: str = "", judge: Judge | None = None) -> Chooser:
        """Take up what `state` gave. Raises msgspec.ValidationError, UnknownFormat."""
        memory = msgspec.convert(state, known_type(Memory))
        chooser = cls(
            memory.run_started_wall_s, memory.checkpoint_dir, memory.format, memory.world_size, cwd, judge=judge
        )
        chooser._memory = memory
        chooser._by_stat = _index(memory)
        return chooser

    def state(self) -> dict[str, Any]:
        """Everything that a new process must know, JSON-able."""
        with self._lock:
            state: dict[str, Any] = msgspec.to_builtins(self._memory)
        return state

    def set_world_size(self, world_size: int) -> None:
        """Say how many ranks there are, once it is known."""
        with self._lock:
            self._memory.world_size = world_size

    def folders(self) -> list[str]:
        """Folders that checkpoints go to: `dir`, and where saves were seen."""
        with self._lock:
            known = [self._memory.checkpoint_dir, *self._memory.roots]
        return [folder for folder in dict.fromkeys(known) if folder]

    # What happened -----------------------------------------------------------------------------------------------

    def prior(self, is_lost: bool = False) -> None:
        """Note what `dir` holds as the run begins: none of it is this run's. Once a run, before the first attempt.

        is_lost: that was noted before and is lost; what was written since the run began is this run's.
        """
        found = self._search().found if self._memory.checkpoint_dir else []
        if is_lost:
            began_ns = self._memory.run_started_wall_s * 1e9
            found = [one for one in found if one.candidate.written_ns < began_ns]
        with self._lock:
            self._memory.prior = {one.candidate.path: fingerprint(one.candidate) for one in found}

    def saw_saved(
        self, path: str, step: int, wall_s: float, inode: int = 0, attempt: int = -1, *, is_named: bool = False
    ) -> None:
        """Note a save that a rank reported, a file or a folder, now (wall_s), with the steps it had done.

        inode: what the rank saw there when it had written; 0: not known. attempt: the rank's; -1: not known. is_named:
        the script has said that it is a checkpoint.
        """
        self._locate()
        said = resolve(path)
        real, stat = find_saved(said, wall_s, inode)
        root = root_of(real, step, self._cwd)
        is_it = is_sure(said, real, stat, wall_s, inode)
        with self._lock:
            saved = Saved(step, wall_s, stat_tuple(stat), attempt, is_it, is_named=is_named)
            self._memory.remember(real, saved)
            if stat is not None:
                self._by_stat[stat] = self._memory.saved[real]
                if len(self._by_stat) > 3 * MAX_SAVED:
                    self._by_stat = _index(self._memory)
                self._memory.roots.setdefault(root, stat.mtime_ns)

    def saw_loaded(self, path: str) -> Checkpoint | None:
        """Which checkpoint a load that a rank reported was: one of this run's, or of those that lie in `dir`.

        None where it was none, or another's: a base model's steps are not this run's.
        """
        found = self._find_loaded(path)
        if found is None:
            return None
        one, checkpoint = found
        directory = self._memory.checkpoint_dir
        is_inside = bool(directory) and one.root == directory
        return checkpoint if is_inside or self._is_eligible(one, False) else None

    # What there is -----------------------------------------------------------------------------------------------

    def choose(
        self,
        resume_first: bool = False,
        avoid: Iterable[str] = (),
        *,
        is_urgent: bool = False,
        spoiled: Sequence[Spoiled] = (),
    ) -> Choice:
        """Choose the newest whole checkpoint of this run; with resume_first, whoever wrote what lies in `dir`.

        avoid: paths, or files, of checkpoints that the script could not load; as they are now they are not taken.
        spoiled: when training had gone wrong (in time.time()'s seconds): what was written then is not taken.
        is_urgent: a restart waits. No checkpoint is waited for longer than CHOICE_S, and where none is whole the newest
        that could not be judged is taken, or else one that is spoilt.
        """
        if is_urgent:
            self._patience.hurry(False)
        self._inspector.begin_round()
        limit_s = CHOICE_S if is_urgent else PATIENT_S
        unwanted = [resolve(path) for path in avoid]
        result = self._search()
        skipped = self._troubles(result)
        eligible = [one for one in result.found if self._is_eligible(one, resume_first)]
        times = self._times()
        pool = self._pool(self._newest_first(eligible, times), limit_s)
        doubtful: list[tuple[Found, Unjudged]] = []
        spoilt: list[Found] = []
        for one in pool:
            if times_of := [when for when in spoiled if self._is_spoiled(one.candidate, when)]:
                certain = next((when.why for when in times_of if when.why), "")
                verdict: Verdict = Torn(certain or SPOILED)
                spoilt += [] if certain and not self._has_lost_others(times_of) else [one]
            elif self._is_unreadable(one.candidate, unwanted):
                verdict = Torn(UNREADABLE)
            else:
                verdict = self._check(one, limit_s)
            if isinstance(verdict, Whole):
                return self._choice(one, verdict, pool, skipped, resume_first)
            if isinstance(verdict, Unjudged):
                doubtful.append((one, verdict))
            if len(skipped) < MAX_SKIPPED:
                skipped.append(Skipped(path=one.candidate.path, reason=verdict.reason))
        if is_urgent and doubtful:
            choice = self._choose_doubtful(doubtful, pool, skipped, resume_first)
            if choice.checkpoint is not None:
                return choice
        return self._choose_spoilt(spoilt if is_urgent else [], pool, skipped, resume_first)

    def saw_in_time(
        self, path: str, step: int, wall_s: float, inode: int, attempt: int, *, says: int | None = None
    ) -> SeenInTime | str:
        """Note what a rank has saved in time, at a step that it has finished, if it is whole; else say why not.

        If it says a step, it must be that one, or as far from it as in what the attempt has saved before. says: by a
        trainer's own count, which then is the one that it must say.
        """
        real = resolve(path)
        judged = self._judge_saved(real)
        if isinstance(judged, str):
            return judged
        candidate, said = judged
        offset = self._offset(attempt, candidate.path) if says is None else says - step
        right = step + (offset or 0)
        if said is not None and said != right:
            return f"it says step {said}, {f'and {step} are finished' if right == step else f'where {right} is right'}"
        self.saw_saved(path, step, wall_s, inode, attempt, is_named=says is None)
        return SeenInTime(_checkpoint_of(candidate, step if said is None else said), said is None or offset is None)

    def saw_parts_in_time(self, parts: Sequence[PartSaved], step: int, attempt: int) -> SeenInTime | str:
        """The same of what is sharded: the files that as many ranks have saved as there are parts, one each.

        Each that says a step must say the right one. Or they have saved one folder of torch.distributed.checkpoint,
        which says itself what belongs to it.
        """
        paths = {part.global_rank: resolve(part.path) for part in parts}
        if len({*paths.values()}) == 1 and os.path.isfile(os.path.join(parts[0].path, METADATA)):
            return self.saw_in_time(parts[0].path, step, parts[0].wall_s, parts[0].inode, attempt)
        if why := why_no_set(paths, self._memory.world_size):
            return why
        stats = {path: read_stat(path) for path in paths.values()}
        known = {path: packed for path, stat in stats.items() if (packed := stat_tuple(stat)) is not None}
        if len(known) < len(parts):
            return "one of them is not there any more"
        first = min(known, key=_number_in)
        with self._lock:
            self._memory.parts.pop(first, None)
            self._memory.parts[first] = known
            while len(self._memory.parts) > MAX_PARTED:
                self._memory.parts.pop(next(iter(self._memory.parts)))
        found = self._judge_parts(first, known, step, attempt)
        if isinstance(found, str):
            with self._lock:
                self._memory.parts.pop(first, None)
            return found
        for part in parts:
            self.saw_saved(part.path, step, part.wall_s, part.inode, attempt, is_named=True)
        return found

    def _judge_parts(self, first: str, known: Iterable[str], step: int, attempt: int) -> SeenInTime | str:
        judged = self._judge_saved(first)
        if isinstance(judged, str):
            return judged
        candidate, said_by_all = judged
        if set(candidate.files) != set(known):
            return "beside them lie others that belong to them by their names"
        offset = self._offset(attempt, candidate.path)
        right, said = step + (offset or 0), [said_by_all]
        for path, stat in candidate.files.items():
            contents = self._inspector.describe(path, stat)
            said.append(contents.step if contents is not None else None)
        if wrong := [one for one in said if one not in (None, right)]:
            return f"one says step {wrong[0]}, where {right} is right"
        found = _checkpoint_of(candidate, step if said_by_all is None else said_by_all)
        return SeenInTime(found, offset is None or all(one is None for one in said))

    def _parts_of(self, candidate: Candidate) -> int:
        """Of how many files it consists where ranks have saved it in parts; 0: not known, or these are others."""
        with self._lock:
            known = self._memory.parts.get(candidate.path)
        if known is None or known != {path: stat_tuple(stat) for path, stat in candidate.files.items()}:
            return 0
        return len(known)

    def _judge_saved(self, real: str) -> tuple[Candidate, int | None] | str:
        """What lies there, and which step it says, if it is a whole checkpoint; else why it is none."""
        found = self._find_loaded(real)
        if found is None:
            return "it is no checkpoint that can be read"
        candidate, verdict = found[0].candidate, self._check(found[0])
        if not isinstance(verdict, Whole):
            return verdict.reason
        return candidate, verdict.step if verdict.step is not None else candidate.step

    def _offset(self, attempt: int, path: str) -> int | None:
        """How far what its last save says lies from the steps that were counted then: some scripts count from 0.

        None: it has saved nothing that says a step.
        """
        with self._lock:
            saves = [pair for pair in self._memory.saved.items() if pair[1].attempt == attempt and pair[1].is_sure]
        for other, save in reversed(saves[-_OFFSETS:]):
            if other == path:
                said = self._said_then(other, save)
                if said is not None:
                    return said - save.step
                continue
            judged = self._judge_saved(other)
            if not isinstance(judged, str) and judged[0].path != path and judged[1] is not None:
                return judged[1] - save.step
        return None

    def _said_then(self, path: str, save: Saved) -> int | None:
        """Which step a file said that has been written over since, if it was looked at before; None: not known."""
        if save.stat is None:
            return None
        files = frozenset({(path, FileStat(*save.stat))})
        for (_, judged, _, known, _), verdict in list(self._verdicts.items()):
            if judged == path and known == files and isinstance(verdict, Whole):
                return verdict.step
        return None

    def _has_lost_others(self, times: Sequence[Spoiled]) -> bool:
        """Whether an ordinary save from before is gone, or written over: what was written then may have cost it."""
        since_s = min(when.since_s for when in times)
        with self._lock:
            saves = list(self._memory.saved.items())
        known = [(path, save.stat) for path, save in saves if save.is_sure and save.stat and save.wall_s < since_s]
        return any(read_stat(path) != stat for path, stat in known)

    def _choose_spoilt(
        self, spoilt: list[Found], pool: list[Found], skipped: list[Skipped], resume_first: bool
    ) -> Choice:
        """Nothing else is there: what it is only thought to be it may not be, and to begin anew would lose all."""
        for one in spoilt:
            verdict = self._check(one)
            if isinstance(verdict, Whole):
                path = one.candidate.path
                doubt = next((other.reason for other in skipped if other.path == path), SPOILED)
                skipped = [other for other in skipped if other.path != path]
                return replace(self._choice(one, verdict, pool, skipped, resume_first), doubt=doubt)
        return Choice(None, skipped)

    def _choose_doubtful(
        self, doubtful: list[tuple[Found, Unjudged]], pool: list[Found], skipped: list[Skipped], resume_first: bool
    ) -> Choice:
        """Nothing is whole. To begin anew would lose all; the script may well load what nobody here could judge."""
        late = next((one for one, verdict in doubtful if not verdict.is_final), None)
        if late is not None:
            self._inspector.begin_round()
            verdict = self._check(late, LAST_S)
            if isinstance(verdict, Whole):
                skipped = [one for one in skipped if one.path != late.candidate.path]
                return self._choice(late, verdict, pool, skipped, resume_first)
            doubtful = [pair for pair in doubtful if pair[0] is not late or not isinstance(verdict, Torn)]
        if not doubtful:
            return Choice(None, skipped)
        one, doubt = doubtful[0]
        skipped = [other for other in skipped if other.path != one.candidate.path]
        return replace(self._choice(one, Whole(), pool, skipped, resume_first), doubt=doubt.reason)

    def _choice(
        self, one: Found, verdict: Whole, pool: list[Found], skipped: list[Skipped], resume_first: bool
    ) -> Choice:
        if resume_first:
            self._remember_start(one.candidate.path)
        siblings = [one, *(other for other in pool if other is not one)][:MAX_SIBLINGS]
        return Choice(
            self._checkpoint(one.candidate, verdict),
            skipped,
            stats=dict(one.candidate.files),
            siblings=[other.candidate.path for other in siblings],
            format=one.format,
        )

    def prevalidate(self, spoiled: Sequence[Spoiled] = ()) -> Choice:
        """Check now what `choose` would check, so that it takes milliseconds when it is asked."""
        return self.choose(spoiled=spoiled)

    def hurry(self) -> None:
        """A choice is about to be asked for: what is being judged at leisure must not hold it up. For any thread."""
        self._patience.hurry()

    def rest(self) -> None:
        """Once a second: let go of what judging needs and has not needed for a while."""
        self._judge.rest()

    def close(self) -> None:
        """Judge nothing any more."""
        self._judge.close()

    def name_of(self, path: str) -> str:
        """The checkpoint that a loaded file is, or is part of, whole or not; else the file itself."""
        found = self.is_checkpoint_path(path)
        return found.path if found is not None else resolve(path)

    def is_checkpoint_path(self, path: str) -> Checkpoint | None:
        """Say which checkpoint a loaded path is, or is part of; None where it is none, or nobody can tell."""
        found = self._find_loaded(path)
        return found[1] if found is not None else None

    def _find_loaded(self, path: str) -> tuple[Found, Checkpoint] | None:
        self._locate()
        real = resolve(path)
        root = root_of(real, cwd=self._cwd)
        with self._lock:
            directory, saved = self._memory.checkpoint_dir, dict(self._memory.saved)
        misses = self._misses.setdefault(root, set())
        if len(misses) >= _MISSES and real not in saved:
            return None
        is_inside = bool(directory) and real.startswith(os.path.join(directory, ""))
        roots = list(dict.fromkeys((root, os.path.dirname(root))))
        result = Search(self._formats, self._memory.world_size, [real, *saved])
        if is_inside:
            result.below(directory)
        for folder in roots:
            result.within(folder)
        self._inspector.begin_round()
        # A part may look like a checkpoint of its own (`rng_state_0.pth`): it is the whole that was loaded.
        for one in sorted(result.found, key=lambda one: len(one.candidate.files), reverse=True):
            candidate = one.candidate
            if real not in candidate.files and real != candidate.path:
                continue
            is_ours = self._is_eligible(one, False)
            if is_ours or not is_judged(candidate) or self._tier([one])[0] is Tier.TRAINING:
                self._misses[root] = set()
                verdict = self._check(one)
                return one, self._checkpoint(candidate, verdict if isinstance(verdict, Whole) else Whole())
        misses.add(real)
        return None

    def steps_done(self, checkpoint: Checkpoint) -> int:
        """How many steps were counted when it was saved; where no save of it was seen, what it says."""
        with self._lock:
            inside = os.path.join(checkpoint.path, "")
            saves = [save.step for path, save in self._memory.saved.items() if f"{path}/".startswith(inside)]
        return max(saves, default=checkpoint.step)

    def warn_torn_latest(self) -> list[Skipped]:
        """Name what scripts that resume by themselves would take now, where that is torn or missing."""
        result = self._search()
        by_place: dict[str, list[Found]] = {}
        for one in result.found:
            by_place.setdefault(os.path.dirname(one.candidate.path), []).append(one)
        warnings: list[Skipped] = []
        for place in result.places:
            ours = by_place.get(place.path, [])
            for known in dict.fromkeys(one.format for one in ours if one.format.resumes_itself):
                warnings += self._warn(place, known, ours)
        return warnings

    # How -----------------------------------------------------------------------------------------------------------

    def _locate(self) -> None:
        """Follow links to where the folders really are; once, before anything is compared with them."""
        if self._is_located:
            return
        directory, cwd = (os.path.realpath(path) if path else "" for path in (self._memory.checkpoint_dir, self._cwd))
        with self._lock:
            self._memory.checkpoint_dir, self._cwd = directory, cwd
            self._is_located = True

    def _warn(self, place: Place, known: Format, ours: list[Found]) -> list[Skipped]:
        target = known.takes(place)
        if target is None:
            return []
        path = os.path.normpath(os.path.join(place.path, target))
        tail = f"; a {known.name} script that resumes by itself would take it"
        for one in ours:
            if one.candidate.path == path or os.path.basename(path) in one.candidate.names:
                verdict = self._check(one)
                return [] if isinstance(verdict, Whole) else [Skipped(path=path, reason=verdict.reason + tail)]
        return [] if os.path.exists(path) else [Skipped(path=path, reason="is not there" + tail)]

    def _search(self) -> Search:
        self._locate()
        with self._lock:
            memory = self._memory
            directory, roots, saved = memory.checkpoint_dir, [*memory.roots], [*memory.saved]
            roots += [root_of(path, cwd=self._cwd) for path in memory.loaded]
        result = Search(self._formats, self._memory.world_size, saved)
        if directory:
            result.below(directory)
        for root in dict.fromkeys(roots):
            result.within(root)
        return result

    def _is_eligible(self, one: Found, resume_first: bool) -> bool:
        candidate, memory = one.candidate, self._memory
        is_inside = bool(memory.checkpoint_dir) and one.root == memory.checkpoint_dir
        if is_inside and resume_first:
            return True
        with self._lock:
            prior, first_ns = memory.prior, memory.roots.get(os.path.dirname(candidate.path))
            if is_inside and prior is not None and prior.get(candidate.path) != fingerprint(candidate):
                return True
            if candidate.path in memory.loaded or self._saves_of(candidate):
                return True
        # Prior files of `dir` that did not change are nobody's news, whatever their time says.
        is_known_prior = is_inside and prior is not None
        return not is_known_prior and first_ns is not None and candidate.written_ns >= first_ns

    def _is_unreadable(self, candidate: Candidate, unwanted: list[str]) -> bool:
        """Whether the script could not load it, and nothing has written it since."""
        if not any(path == candidate.path or path in candidate.files for path in unwanted):
            return False
        now = fingerprint(candidate)
        with self._lock:
            # Nothing of an attempt is alive: the first time it is told of, it is as the script found it.
            return self._memory.unreadable.setdefault(candidate.path, now) == now

    def _remember_start(self, path: str) -> None:
        """Note that the run started from a checkpoint: that makes it this run's."""
        with self._lock:
            if path not in self._memory.loaded:
                self._memory.loaded.append(path)

    def _is_spoiled(self, candidate: Candidate, when: Spoiled) -> bool:
        with self._lock:
            return is_spoiled(candidate, when, self._by_stat, self._saves_of(candidate))

    def _times(self) -> dict[Saved, int]:
        """Per save that was seen: its mtime, but never before that of a save that came earlier."""
        times: dict[Saved, int] = {}
        last_ns = 0
        with self._lock:
            for save in self._memory.by_order:
                last_ns = max(last_ns + 1, save.stat[0] if save.stat is not None else 0)
                times[save] = last_ns
        return times

    def _written_ns(self, one: Found, times: dict[Saved, int]) -> int:
        candidate = one.candidate
        return max(candidate.written_ns, *(times.get(save, 0) for save in self._saves_of(candidate)), 0)

    def _newest_first(self, eligible: list[Found], times: dict[Saved, int]) -> list[Found]:
        """By step, then by time. What has no step is as far as the furthest of what was written before it."""
        furthest, ranked = -1, []
        for written_ns, number in sorted((self._written_ns(one, times), n) for n, one in enumerate(eligible)):
            one = eligible[number]
            counted = [save.step for save in self._saves_of(one.candidate)]
            step = max([one.candidate.step if one.candidate.step is not None else -1, *counted])
            furthest = max(furthest, step)
            ranked.append((step if step >= 0 else furthest, written_ns, number))
        return [eligible[number] for _, _, number in sorted(ranked, reverse=True)]

    def _saves_of(self, candidate: Candidate) -> list[Saved]:
        """By what its files are, whatever they are called by now; else by where they lie."""
        saved, by_stat, files = self._memory.saved, self._by_stat, candidate.files
        found: dict[Saved, None] = {}
        for path in dict.fromkeys((candidate.path, *files)):
            stat = files.get(path) or files.get(os.path.join(path, METADATA))
            save = by_stat.get(stat) if stat is not None else None
            save = save if save is not None else saved.get(path)
            if save is not None:
                found[save] = None
        return list(found)

    def _check(self, one: Found, limit_s: float = CHOICE_S) -> Verdict:
        candidate = one.candidate
        self._patience.begin(candidate.path, limit_s, is_leisurely=limit_s == PATIENT_S)
        if candidate.trouble:
            return Torn(candidate.trouble)
        parts = self._parts_of(candidate) or self._memory.world_size
        key = (one.format.name, candidate.path, candidate.lacks, frozenset(candidate.files.items()), parts)
        verdict = self._verdicts.get(key)
        if verdict is None:
            try:
                verdict = one.format.check(candidate, self._inspector, parts)
            except (OSError, ValueError, RecursionError) as error:
                return Torn(f"could not be checked ({error})")
            if len(self._verdicts) > _MAX_REMEMBERED:
                self._verdicts.clear()
            if not isinstance(verdict, Unjudged) or verdict.is_final:
                self._verdicts[key] = verdict
        return verdict

    def _checkpoint(self, candidate: Candidate, verdict: Whole) -> Checkpoint:
        with self._lock:
            counted = [save.step for save in self._saves_of(candidate)]
        said = verdict.step if verdict.step is not None else candidate.step
        return Checkpoint(
            path=candidate.path,
            step=said if said is not None else max(counted, default=0),
            format=candidate.format,
            written_wall_s=candidate.written_ns / 1e9,
        )

    def _pool(self, eligible: list[Found], limit_s: float) -> list[Found]:
        """Those of the surest tier; of files without an optimizer the largest family, and what the script has named."""
        named = {one.candidate.path for one in eligible if self._is_named(one.candidate)}
        families: dict[str, list[Found]] = {}
        for one in eligible:
            families.setdefault(_family_of(one), []).append(one)
        tiers = {
            key: self._tier(members, limit_s) if key else (Tier.TRAINING, False) for key, members in families.items()
        }
        worst = Tier.NAMED if self._formats is FORMATS else Tier.OTHER
        # Those of which nobody knows what they hold do not outdo any other by their names; they are tried as well.
        doubtful = {key for key, (tier, is_doubtful) in tiers.items() if is_doubtful and tier <= worst}
        best = min((tier for key, (tier, _) in tiers.items() if tier <= worst and key not in doubtful), default=None)
        keys = {key for key, (tier, _) in tiers.items() if tier is best and key not in doubtful}
        if best is Tier.TRAINING:
            named = set()
        elif unsaid := [key for key in keys if any(one.candidate.path not in named for one in families[key])]:
            keys = {max(unsaid, key=lambda key: max(one.candidate.size_bytes for one in families[key]))}
        keys |= doubtful
        return [one for one in eligible if _family_of(one) in keys or one.candidate.path in named]

    def _is_named(self, candidate: Candidate) -> bool:
        """Whether the script has said that these very files are a checkpoint."""
        with self._lock:
            saves = [self._by_stat.get(stat) for stat in candidate.files.values()]
        return any(save is not None and save.is_named for save in saves)

    def _tier(self, members: list[Found], limit_s: float = CHOICE_S) -> tuple[Tier, bool]:
        """Judge a family by its newest whole member, else by what it was found to be before, else by its name.

        Also: whether that is doubtful, as no member could be judged.
        """
        key = family_key(members[0].candidate)
        guess, doubts = None, 0
        for one in members:
            self._patience.begin(one.candidate.path, limit_s, is_leisurely=limit_s == PATIENT_S)
            tier, is_sure = judge_file(one.candidate, self._inspector)
            if tier is not None and is_sure:
                with self._lock:
                    self._memory.tiers[key] = tier
                return tier, False
            if not is_sure:
                guess = tier if guess is None else guess
                doubts += 1
            if doubts > _MAX_DOUBTS:
                break
        if (known := self._memory.tiers.get(key)) is not None:
            return Tier(known), False
        return (guess, False) if guess is not None else (judge_torn(members[0].candidate), doubts > 0)

    def _troubles(self, result: Search) -> list[Skipped]:
        skipped: list[Skipped] = []
        for place in result.places:
            if place.trouble and os.path.exists(place.path):
                skipped.append(Skipped(path=place.path, reason=place.trouble))
            for name, reason in place.troubles.items():
                if NAME_LIKE.search(name):
                    skipped.append(Skipped(path=os.path.join(place.path, name), reason=reason))
        return skipped[:MAX_SKIPPED]


def _family_of(one: Found) -> str:
    """Empty: of a format whose names tell a checkpoint."""
    return family_key(one.candidate) if is_judged(one.candidate) else ""


def _checkpoint_of(candidate: Candidate, step: int) -> Checkpoint:
    written_wall_s = candidate.written_ns / 1e9
    return Checkpoint(path=candidate.path, step=step, format=candidate.format, written_wall_s=written_wall_s)


def _number_in(path: str) -> int:
    split = split_rank(os.path.basename(path))
    return split[1] if split is not None else 0


def _index(memory: Memory) -> dict[FileStat, Saved]:
    return {FileStat(*save.stat): save for save in memory.by_order if save.stat is not None}
