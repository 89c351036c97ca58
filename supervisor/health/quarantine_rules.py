"""Is a node quarantined, by whom and why, what has been said about it, and what ends that without a person? Pure.

A node's record is a set of isolations and a set of releases. Nothing in it is ever changed, only added, so that two
records (two folders, two writers) always merge into one, in any order, as often as one likes. What holds is read off:

- An isolation holds until it expires or is released.
- A person's release lifts all that it names, and every isolation of guardrun's own whose evidence is not newer than
  the release: the same evidence does not bring it back, whatever else finds it.
- A person's isolation is lifted by a release that names it, and by nothing else. guardrun itself releases only what
  guardrun isolated, and names it.
- What a user asked the node's agent for bears that user's uid. It holds for their own runs alone, unless the
  administrator trusts their jobs ([node] trust_jobs), and their releases lift nothing but what bears their uid.
- Wall clocks are set, and nodes disagree: a release from the future counts only for what it names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum
from typing import Any, NamedTuple

import msgspec

AUTOMATIC = "guardrun"
"""Who isolates when no person does."""
PREFLIGHT = "preflight"
"""Who releases when no person does: what has looked at the part, and found it well."""
MACHINES = frozenset({AUTOMATIC, PREFLIGHT})
"""Names that no person bears here."""

MAX_CLOCK_GAP_S = 300.0
"""Clocks of nodes, and of one node over time, may differ by this much and still be believed."""

MAX_PAST = 32
"""Isolations that are over, kept for whoever asks what has been."""

IS_OLDER = "nothing that was seen is newer"
"""In words: a person has released what an isolation rests on."""

MAX_RELEASES = 256

MAX_TEXT = 2000

EVERYBODY = -1
"""In place of a uid."""

MAX_OF_ONE_USER = 16
"""Isolations that one user may have hold on a node: the record is read at each start of a run."""


class Isolation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Somebody said: no runs on this node."""

    cause: str
    """As the contract lists them (`gpu_xid`, `thermal`, …); whatever a person calls it."""
    who: str
    """A user's name, or AUTOMATIC."""
    since_wall_s: float
    summary: str = ""
    """Of the evidence, in one sentence; a person's reason."""
    evidence: dict[str, Any] = {}
    evidence_wall_s: float | None = None
    """When the newest of it was seen. None: at since_wall_s."""
    run_id: str = ""
    """In which it was found."""
    incident: str = ""
    until_wall_s: float | None = None
    """None: until somebody releases it."""
    uid: int | None = None
    """Of the user who asked the agent for it. None: root, a sensor, or an entry of before this field."""
    is_for_owner_alone: bool = False
    """It counts for runs of `uid` and for nobody else's."""

    @property
    def id(self) -> str:
        """The same in every copy of the record, so that a release can name it and copies merge."""
        asked = "" if self.uid is None else f"/{self.uid}"
        return f"{self.since_wall_s:.3f}/{self.who}/{self.cause}{asked}"

    def counts_for(self, uid: int) -> bool:
        """Say whether it keeps this user's runs from the node."""
        return not self.is_for_owner_alone or uid == self.uid

    @property
    def is_automatic(self) -> bool:
        """Whether guardrun isolated the node by itself, rather than a person."""
        return self.who == AUTOMATIC

    @property
    def newest_evidence_wall_s(self) -> float:
        """When the newest evidence was seen; a later release outweighs it."""
        return self.since_wall_s if self.evidence_wall_s is None else self.evidence_wall_s


class Release(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Somebody said: this node may be used again."""

    who: str
    at_wall_s: float
    lifts: tuple[str, ...] = ()
    """Ids of the isolations that it ended."""
    reason: str = ""
    uid: int | None = None
    """Of the user who asked the agent for it: it lifts only theirs. None: it may lift everybody's."""

    @property
    def id(self) -> str:
        """The same in every copy of the record, so that copies merge."""
        asked = "" if self.uid is None else f"/{self.uid}"
        return f"{self.at_wall_s:.3f}/{self.who}{asked}"


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that was said of one node. Equal sets are equal records: both are sorted by id."""

    isolations: tuple[Isolation, ...] = ()
    releases: tuple[Release, ...] = ()


def holding(record: Record, now_wall_s: float) -> list[Isolation]:
    """The isolations that hold at a time, the oldest first; none: the node is free."""
    return [one for one in record.isolations if end_of(one, record, now_wall_s) is None]


def counting(record: Record, now_wall_s: float, uid: int) -> list[Isolation]:
    """The isolations that keep a user's runs from the node; uid: EVERYBODY for those that keep everybody's."""
    return [one for one in holding(record, now_wall_s) if one.counts_for(uid)]


def end_of(isolation: Isolation, record: Record, now_wall_s: float) -> str | None:
    """Why an isolation no longer holds, in words; None: it holds."""
    for release in record.releases:
        if is_lifted_by(isolation, release, now_wall_s):
            return f"released by {release.who}" + (f": {release.reason}" if release.reason else "")
    if isolation.until_wall_s is not None and now_wall_s >= isolation.until_wall_s:
        return "expired"
    return None


def is_lifted_by(isolation: Isolation, release: Release, now_wall_s: float) -> bool:
    """Say whether this release ends this isolation."""
    if release.uid is not None and release.uid != isolation.uid:
        return False
    if release.who in MACHINES:
        return isolation.is_automatic and isolation.id in release.lifts
    if isolation.id in release.lifts:
        return True
    is_believed = release.at_wall_s <= now_wall_s + MAX_CLOCK_GAP_S
    return is_believed and isolation.is_automatic and isolation.newest_evidence_wall_s <= release.at_wall_s


def isolate(record: Record, isolation: Isolation, now_wall_s: float) -> tuple[Record, str]:
    """The record with one isolation more, and why there is none (empty: there is, or was).

    guardrun's own is not added where a person has released what it rests on; nor, which is no reason, where guardrun's
    already holds for the same cause at least as long, and for all that this one would. A person's is always added, but
    for one more than a user may have.
    """
    if isolation.is_automatic:
        ended = end_of(isolation, record, now_wall_s)
        if ended is not None:
            return record, f"{ended}; {IS_OLDER}"
        for one in holding(record, now_wall_s):
            if _covers(one, isolation):
                return record, ""
    if isolation.uid is not None:
        count = sum(one.uid == isolation.uid for one in holding(record, now_wall_s))
        if count >= MAX_OF_ONE_USER:
            return record, f"{count} isolations of yours hold on this node already: release it first"
    return merge(record, Record(isolations=(_bounded(isolation),))), ""


def release(
    record: Record,
    who: str,
    now_wall_s: float,
    reason: str = "",
    *,
    is_overriding: bool = False,
    only: Collection[str] | None = None,
    uid: int | None = None,
) -> tuple[Record, list[Isolation]]:
    """The record after somebody released the node, and the isolations that still hold.

    is_overriding: other persons' isolations, too. Without it they stay, as all persons' do for guardrun. only: ids of
    the isolations to be lifted; None: all that may be. uid: of a user who may lift only their own, which is no news
    where there are none.
    """
    is_person = who not in MACHINES
    wanted = [
        one.id
        for one in holding(record, now_wall_s)
        if (one.is_automatic or (is_person and (one.who == who or is_overriding)))
        and (only is None or one.id in only)
        and (uid is None or one.uid == uid)
    ]
    if (not is_person or uid is not None) and not wanted:
        return record, holding(record, now_wall_s)
    added = Release(who=who, at_wall_s=now_wall_s, lifts=tuple(sorted(wanted)), reason=reason[:MAX_TEXT], uid=uid)
    after = merge(record, Record(releases=(added,)))
    return after, holding(after, now_wall_s)


def merge(*records: Record) -> Record:
    """All that any of these records says. Idempotent, commutative, associative."""
    isolations: dict[str, Isolation] = {}
    releases: dict[str, Release] = {}
    for record in records:
        for isolation in record.isolations:
            known = isolations.get(isolation.id)
            isolations[isolation.id] = isolation if known is None else _merge_isolations(known, isolation)
        for one in record.releases:
            before = releases.get(one.id)
            releases[one.id] = one if before is None else _merge_releases(before, one)
    return Record(
        isolations=tuple(isolations[key] for key in sorted(isolations)),
        releases=tuple(releases[key] for key in sorted(releases)),
    )


def prune(record: Record, now_wall_s: float) -> Record:
    """The record without most of what is long over; what holds, now or later, is the same.

    Releases are kept longer than what they lifted: another copy of the record may still hold that. What users asked for
    is counted apart: however often they ask, what root and the sensors said is not pushed out.
    """
    held = {one.id for one in holding(record, now_wall_s)}
    over = sorted((one for one in record.isolations if one.id not in held), key=lambda one: one.since_wall_s)
    by_users = [one for one in over if one.uid is not None]
    by_root = [one for one in over if one.uid is None]
    kept = held | {one.id for one in (*by_users[-MAX_PAST:], *by_root[-MAX_PAST:])}
    isolations = tuple(one for one in record.isolations if one.id in kept)
    in_time = sorted(record.releases, key=lambda one: one.at_wall_s)
    users, roots = ([one for one in in_time if (one.uid is not None) is is_user] for is_user in (True, False))
    newest = {one.id for one in (*users[-MAX_PAST:], *roots[-MAX_RELEASES:])}
    releases = tuple(
        one
        for one in record.releases
        if one.id in newest or any(is_lifted_by(item, one, now_wall_s) for item in isolations)
    )
    return Record(isolations=isolations, releases=releases)


def _merge_isolations(one: Isolation, other: Isolation) -> Isolation:
    """Of two that bear one id: what holds by either holds by this."""
    if one == other:
        return one
    timeless = [msgspec.structs.replace(said, until_wall_s=None, evidence_wall_s=None) for said in (one, other)]
    kept = max(timeless, key=_order)
    newest = max(one.newest_evidence_wall_s, other.newest_evidence_wall_s)
    return msgspec.structs.replace(
        kept,
        until_wall_s=max(one, other, key=_ends_s).until_wall_s,
        evidence_wall_s=None if newest == kept.since_wall_s else newest,
    )


def _merge_releases(one: Release, other: Release) -> Release:
    lifts = tuple(sorted({*one.lifts, *other.lifts}))
    return msgspec.structs.replace(max(one, other, key=_order), lifts=lifts, reason=max(one.reason, other.reason))


def _order(said: Isolation | Release) -> str:
    """Some order, the same for everybody: which of two that bear one id is kept."""
    return repr(said)


def _ends_s(isolation: Isolation) -> float:
    return float("inf") if isolation.until_wall_s is None else isolation.until_wall_s


def _covers(one: Isolation, other: Isolation) -> bool:
    """Whether one of guardrun's that holds makes another superfluous: same cause, as long, for as many."""
    is_as_wide = not one.is_for_owner_alone or (other.is_for_owner_alone and one.uid == other.uid)
    return one.is_automatic and one.cause == other.cause and _ends_s(one) >= _ends_s(other) and is_as_wide


def _bounded(isolation: Isolation) -> Isolation:
    return msgspec.structs.replace(isolation, summary=isolation.summary[:MAX_TEXT])


def headline(isolations: Iterable[Isolation]) -> str:
    """Who isolated the node and why, in one clause: `gpu_xid (Xid 79 …), isolated by guardrun`."""
    parts = []
    for one in isolations:
        why = f" ({one.summary.rstrip('.')})" if one.summary else ""
        whose = f" for runs of uid {one.uid} alone" if one.is_for_owner_alone else ""
        parts.append(f"{one.cause}{why}, isolated by {one.who}{whose}")
    return "; ".join(parts)


# Release rules ------------------------------------------------------------------------------------------------------
# What ends a quarantine without a person: which parts can be shown to be well again, and how.
#
# Only what guardrun itself isolated, and only where a look at the part, or having it work, shows what was wrong: a link
# that is up, a file system with room, devices that compute without throttling. Memory that met errors, an Xid, a device
# that was lost, a disk that lost data look well until they fail the next time: those wait for a person.


CALM_S = 600.0
"""So long nothing may have been wrong with the part: a link that flaps is up most of the time."""


class Proof(str, Enum):
    """What shows that a part is well."""

    LOOK = "look"
    """Reading it will do: the node agent and `guardctl check` release."""
    TRIAL = "trial"
    """It must work, as in `guardctl check --full`: at rest nothing throttles."""


class Part(NamedTuple):
    """What a node was isolated for."""

    subject: str
    """`net:eth0`, `mount:/data`, `gpu:UUID`."""
    proof: Proof


def part_of(isolation: Isolation) -> Part | None:
    """The part that may end an isolation by being well; None where only a person may."""
    finding = isolation.evidence.get("finding")
    if not isolation.is_automatic or not isinstance(finding, str):
        return None
    cause, _, rest = finding.partition("/")
    subject, _, what = rest.rpartition("/")
    if cause == "network" and subject.startswith("net:") and what in ("down", "flapping"):
        return Part(subject, Proof.LOOK)
    if cause == "disk" and subject.startswith("mount:") and what == "full":
        return Part(subject, Proof.LOOK)
    if cause == "throttle" and rest.startswith("gpu:"):
        return Part(rest, Proof.TRIAL)
    if cause == "gpu_link" and rest.startswith("gpu:"):
        return Part(rest.partition("/")[0], Proof.TRIAL)
    return None


def calm_s(isolation: Isolation, now_wall_s: float) -> float:
    """Seconds since the newest of the evidence was seen."""
    return now_wall_s - max(isolation.newest_evidence_wall_s, isolation.since_wall_s)
