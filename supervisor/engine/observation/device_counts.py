"""What torch's recorder counts of a device's calls, without asking the device: does it get on, or does nothing move?

Counts are, by torch's number of a process group, the numbers of the calls last enqueued, started and completed. Sends
and receives have numbers of their own, in the same three places, so that only equality means anything. torch's watchdog
writes them, every 100 ms.

A group in which nothing is pending may move without the job: a thread of the script's checks the health of its peers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from guardrun.supervisor.engine.model.looks import RankLook

Counts = Mapping[str, Sequence[int]]


def is_pending(counts: Sequence[int]) -> bool:
    """Whether a group has a call enqueued that is not completed."""
    return counts[0] != counts[2]


def pending_groups(counts: Counts) -> list[str]:
    """torch's numbers of the groups that have a call pending."""
    return [group for group, told in counts.items() if is_pending(told)]


def is_still(before: Counts, after: Counts) -> bool:
    """Say whether what is pending was so before, and nothing of it has moved; true where nothing is pending."""
    return all(list(before.get(group, ())) == list(after[group]) for group in pending_groups(after))


def gets_on(before: Counts, after: Counts) -> bool:
    """Say whether a device has come further with calls that it had, or has, before it.

    That more were enqueued is not it: hosts tell that themselves.
    """
    both = [(before[group], told) for group, told in after.items() if group in before]
    return any(list(old[1:]) != list(new[1:]) and (is_pending(old) or is_pending(new)) for old, new in both)


def reads_all(looks: Sequence[RankLook]) -> bool:
    """Say whether looks show all that there is of devices: every rank's recorder has answered, every group is known."""
    told = [look for look in looks if look.device_counts]
    return (
        bool(told)
        and len(told) == len(looks)
        and not any(look.is_unread or not all(group.ranks for group in look.groups) for look in looks)
    )
