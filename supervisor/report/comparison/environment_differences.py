"""What differs between what two runs were computed with: code, versions, flags, variables, devices. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from guardrun.supervisor.report.comparison.run_facts import RunFacts
from guardrun.supervisor.rundir.environment import Environment, FileDigest, Repository

ABSENT = "(absent)"
UNSET = "(not set)"
FIRST_PACKAGES = (
    "torch",
    "numpy",
    "transformers",
    "accelerate",
    "deepspeed",
    "datasets",
    "tokenizers",
    "torchvision",
    "torchaudio",
    "torchdata",
    "lightning",
    "pytorch-lightning",
    "flash-attn",
    "xformers",
    "triton",
    "transformer-engine",
    "apex",
    "peft",
    "trl",
    "timm",
    "scipy",
    "pandas",
)
"""Told before all others, in this order: results depend on them."""
MAX_PACKAGES = 12
MAX_FILES = 12


class Found:
    """What rules find; each adds to it."""

    def __init__(self) -> None:
        self.differences: list[tuple[str, str, str, str, str]] = []
        """Kind, what, of a, of b, note."""
        self.same: list[str] = []
        self.unknown: list[str] = []

    def add(self, kind: str, what: str, a: str, b: str, note: str = "") -> None:
        """One difference."""
        self.differences.append((kind, what, a, b, note))


def compare_environments(a: RunFacts, b: RunFacts, found: Found) -> None:
    """By what each run began with; and what changed within one of them."""
    one, other = a.environment, b.environment
    if one is None or other is None:
        lacking = [run.run_id for run in (a, b) if run.environment is None]
        who = "neither run has" if len(lacking) == 2 else f"{lacking[0]} has not"
        found.unknown.append(f"code, versions, flags and variables: {who} recorded them")
    else:
        _code(one, other, found)
        _seed(one, other, found)
        _table("precision", one.flags, other.flags, found, "precision and determinism flags")
        _packages(one, other, found)
        _variables(one, other, found)
        if one.device and other.device and one.device != other.device:
            found.add("size", "device of rank 0", one.device, other.device)
    for run in (a, b):
        _within(run, run is a, found)


def _code(a: Environment, b: Environment, found: Found) -> None:
    if not a.files or not b.files:
        found.unknown.append("the script's content")
    else:
        changed = _digests("code", a.files, b.files, found)
        if not changed:
            count = len(a.files)
            modules = "1 module" if count == 2 else f"{count - 1} modules"
            found.same.append(f"the script{f' and {modules} of its own' if count > 1 else ''}")
    if a.more_files or b.more_files:
        found.unknown.append(f"the content of more modules than {len(a.files)} and {len(b.files)}")
    if a.arguments.keys() & b.arguments.keys() and not _digests(
        "arguments", a.arguments, b.arguments, found, "content of "
    ):
        found.same.append("the files that arguments name")
    one, other = a.repository, b.repository
    if one is not None and other is not None and one.commit and other.commit:
        if one.commit != other.commit:
            found.add("code", "git commit", _commit_words(one), _commit_words(other))
        elif _commit_words(one) == _commit_words(other):
            found.same.append(f"git commit {_commit_words(one)}")
        else:
            found.add("code", "state of the git checkout", _commit_words(one), _commit_words(other))
        if not (one.is_compared and other.is_compared):
            found.unknown.append("whether files were changed since the commit")


def _commit_words(one: Repository) -> str:
    """`0123456789ab (main), 2 files changed`."""
    branch = f" ({one.branch})" if one.branch else ""
    counts = ((len(one.changed), "changed"), (len(one.untracked), "untracked"))
    states = [f"{count} file{'s' if count > 1 else ''} {state}" for count, state in counts if count]
    return ", ".join([f"{one.commit[:12]}{branch}", *states])


def _digests(
    kind: str, a: Mapping[str, FileDigest], b: Mapping[str, FileDigest], found: Found, before: str = ""
) -> bool:
    """Whether any differ. The first one, which is the script, comes first."""
    differing = [name for name in dict.fromkeys([*a, *b]) if not _is_same(a.get(name), b.get(name))]
    for name in differing[:MAX_FILES]:
        found.add(kind, f"{before}{name}", _digest_words(a.get(name)), _digest_words(b.get(name)))
    if len(differing) > MAX_FILES:
        found.add(kind, f"{len(differing) - MAX_FILES} more files", "", "")
    return bool(differing)


def _is_same(a: FileDigest | None, b: FileDigest | None) -> bool:
    if a is None or b is None:
        return a is b
    if a.digest and b.digest:
        return a.digest == b.digest
    # Where one of both was not read, its size tells what can be told; times differ from copy to copy.
    return a.size_bytes == b.size_bytes


def _digest_words(one: FileDigest | None) -> str:
    if one is None:
        return ABSENT
    return one.digest or f"{one.size_bytes} bytes, not read ({one.why})"


def _seed(a: Environment, b: Environment, found: Found) -> None:
    if a.seed is None or b.seed is None:
        found.unknown.append("the seed")
    elif a.seed != b.seed:
        found.add(
            "seed", "torch's seed on rank 0", str(a.seed), str(b.seed), "a script that sets none has another each time"
        )
    else:
        found.same.append(f"torch's seed on rank 0 ({a.seed})")


def _table(kind: str, a: Mapping[str, str], b: Mapping[str, str], found: Found, words: str) -> None:
    """Of tables of which a name that is missing is not known."""
    both = [name for name in a if name in b]
    differing = [name for name in both if a[name] != b[name]]
    for name in differing:
        found.add(kind, name, a[name], b[name])
    if both and not differing:
        found.same.append(words)
    elif not both:
        found.unknown.append(words)


def _packages(a: Environment, b: Environment, found: Found) -> None:
    _table("packages", a.runtime, b.runtime, found, f"versions of {', '.join(a.runtime) or 'Python and torch'}")
    if not a.packages or not b.packages:
        found.unknown.append("versions of installed packages")
        return
    told = {name for name in a.runtime if name in b.runtime and a.runtime[name] != b.runtime[name]}
    names = sorted({*a.packages, *b.packages}, key=_package_order)
    differing = [name for name in names if a.packages.get(name) != b.packages.get(name) and name not in told]
    for name in differing[:MAX_PACKAGES]:
        found.add("packages", name, a.packages.get(name, ABSENT), b.packages.get(name, ABSENT))
    if len(differing) > MAX_PACKAGES:
        found.add(
            "packages",
            f"{len(differing) - MAX_PACKAGES} more packages",
            "",
            "",
            ", ".join(differing[MAX_PACKAGES:])[:400],
        )
    if not differing:
        found.same.append(f"{len(a.packages)} installed packages")


def _package_order(name: str) -> tuple[int, str]:
    return (FIRST_PACKAGES.index(name) if name in FIRST_PACKAGES else len(FIRST_PACKAGES), name)


def _variables(a: Environment, b: Environment, found: Found) -> None:
    differing = [
        name for name in sorted({*a.variables, *b.variables}) if a.variables.get(name) != b.variables.get(name)
    ]
    for name in differing:
        found.add("variables", name, a.variables.get(name, UNSET), b.variables.get(name, UNSET))
    if not differing:
        found.same.append("variables of the environment that matter")


def _within(run: RunFacts, is_a: bool, found: Found) -> None:
    """What changed from one part of a run to the next: it was continued, or restarted, with something else."""
    for before, after in zip(run.environments, run.environments[1:], strict=False):
        inner = Found()
        _code(before, after, inner)
        _packages(before, after, inner)
        _table("precision", before.flags, after.flags, inner, "")
        for kind, what, one, other, _ in inner.differences:
            words = f"{one} → {other} (attempt {after.attempt}, session {after.session})"
            of_a, of_b = (words, "one and the same") if is_a else ("one and the same", words)
            found.add(kind, f"{what}, within {run.run_id}", of_a, of_b)
