"""Writes what the wheel brings with it, as a CycloneDX bill of materials: `make sbom`.

The wheel, with its hash; every package that installing it installs here, its version, its licence as the package itself
names it, and what asks for what. "Here" is the environment that this runs in: the pins of constraints.txt under one
Python. What another Python needs besides (tomli, below 3.11) and what a GPU's build of torch brings are not in it.

The same wheel and packages give the same bytes: the serial number is made of the wheel's hash, the date is
SOURCE_DATE_EPOCH's, without which there is none.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import uuid
import zipfile
from datetime import datetime, timezone
from email.message import Message
from email.parser import HeaderParser
from importlib import metadata
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CLASSIFIER = "License :: "
UNNAMED = "OSI Approved"
UPLOT = "/uplot/uPlot.iife.min.js"
"""In the wheel: what `guardctl web` draws with, as its makers released it."""


def read_metadata(wheel: Path) -> Message:
    """The METADATA of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return HeaderParser().parsestr(archive.read(name).decode())


def licences(about: Message) -> list[str]:
    """What a package names as its licence: an expression (PEP 639), else a line of its own, else its classifiers.

    A licence's whole text, as older packages have it there, is no name. Empty: it names none.
    """
    if expression := about.get("License-Expression"):
        return [expression]
    if (line := (about.get("License") or "").strip()) and "\n" not in line and line != "UNKNOWN":
        return [line]
    named = [item.removeprefix(CLASSIFIER) for item in about.get_all("Classifier", []) if item.startswith(CLASSIFIER)]
    return [name.rpartition(" :: ")[2] for name in named if name != UNNAMED]


def component(about: Message, kind: ComponentType = ComponentType.LIBRARY) -> Component:
    """A package as the bill names it; nothing of where it lies."""
    from cyclonedx.contrib.license.factories import LicenseFactory  # which parses all licences of SPDX

    name, version = canonicalize_name(about["Name"]), about["Version"]
    url = PackageURL("pypi", None, name, version)
    made = Component(name=name, version=version, type=kind, purl=url, bom_ref=url.to_string())
    factory = LicenseFactory()
    named = licences(about)
    # The format takes one expression, or a list of single licences.
    single = len(named) == 1
    made.licenses.update(factory.make_from_string(one) if single else DisjunctiveLicense(name=one) for one in named)
    return made


def carried(wheel: Path) -> Component:
    """uPlot, which the wheel has in it; its first line says which."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(UPLOT)]
        text = archive.read(name)
    version = text.split(b"\n", 1)[0].partition(b"(v")[2].partition(b")")[0].decode()
    url = PackageURL("npm", None, "uplot", version)
    made = Component(name="uplot", version=version, type=ComponentType.LIBRARY, purl=url, bom_ref=url.to_string())
    made.licenses.add(DisjunctiveLicense(id="MIT"))
    made.hashes.add(HashType(alg=HashAlgorithm.SHA_256, content=hashlib.sha256(text).hexdigest()))
    return made


def asked_for(lines: list[str], extras: frozenset[str]) -> list[tuple[str, frozenset[str]]]:
    """(package, its extras) of each requirement that holds here."""
    found = []
    for line in lines:
        one = Requirement(line)
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            found.append((str(canonicalize_name(one.name)), frozenset(one.extras)))
    return sorted(found, key=lambda pair: (pair[0], sorted(pair[1])))


def bill(wheel: Path, epoch_s: int | None) -> Bom:
    """The bill of a wheel. Raises PackageNotFoundError where something that it asks for is not installed here."""
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    about = read_metadata(wheel)
    root = component(about, ComponentType.APPLICATION)
    root.hashes.add(HashType(alg=HashAlgorithm.SHA_256, content=digest))
    root.components.add(carried(wheel))
    made = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"sha256:{digest}"))
    made.metadata.component = root
    # The model has a date of its own otherwise: that of this moment.
    made.metadata.timestamp = None if epoch_s is None else datetime.fromtimestamp(epoch_s, timezone.utc)  # type: ignore[assignment]  # The format wants none of it, its setter says so.
    known: dict[str, Component] = {}
    edges: dict[str, set[str]] = {}
    seen: set[tuple[str, frozenset[str]]] = set()

    def add(name: str, extras: frozenset[str], parent: str | None) -> None:
        if parent is not None:
            edges.setdefault(parent, set()).add(name)
        if (name, extras) in seen:
            return
        seen.add((name, extras))
        there = metadata.distribution(name)
        known.setdefault(name, component(HeaderParser().parsestr(there.read_text("METADATA") or "")))
        for needed, its_extras in asked_for(there.requires or [], extras):
            add(needed, its_extras, name)

    direct = asked_for(about.get_all("Requires-Dist", []), frozenset())
    for name, extras in direct:
        add(name, extras, None)
    made.components.update(known.values())
    made.register_dependency(root, [known[name] for name, _ in direct])
    for name, one in known.items():
        made.register_dependency(one, [known[needed] for needed in edges.get(name, ())])
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the wheel is, and the bill goes")
    folder = parser.parse_args().folder
    wheels = sorted(folder.glob("guardrun-*.whl"))
    if len(wheels) != 1:
        parser.error(f"{folder} has {len(wheels)} wheels of guardrun, where one is wanted: make clean")
    date = os.environ.get("SOURCE_DATE_EPOCH")
    made = bill(wheels[0], None if date is None else int(date))
    name, version, *_ = wheels[0].name.split("-")
    target = folder / f"{name}-{version}.cdx.json"
    target.write_text(JsonV1Dot6(made).output_as_string(indent=2) + "\n")
    print(f"{target}: {len(made.components)} packages besides guardrun")
    return 0


if __name__ == "__main__":
    sys.exit(main())
