"""What judges know of a node's GPUs from readouts: their names for a person, and one name for each. Pure."""

from __future__ import annotations

from guardrun.supervisor.health.base.readings import Readout, Value
from guardrun.supervisor.health.gpu.xids import normal_bus

PREFIX = "gpu:"
SENSOR = "gpu"


def by_subject(readout: Readout) -> dict[str, dict[str, Value | None]]:
    """Values by name, by GPU: only of what this readout tells."""
    found: dict[str, dict[str, Value | None]] = {}
    for sample in readout.samples:
        if sample.subject.startswith(PREFIX):
            found.setdefault(sample.subject, {})[sample.name] = sample.value
    return found


def of_node(readout: Readout, name: str) -> Value | None:
    """A value of the node's; None where this readout does not tell it."""
    return next((sample.value for sample in readout.samples if sample.subject == "node" and sample.name == name), None)


def number(values: dict[str, Value | None], name: str) -> float | None:
    """A number, where it is told and known."""
    value = values.get(name)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


class GpuBook:
    """Remembers index, model and bus of every GPU that has told them."""

    def __init__(self) -> None:
        self._indexes: dict[str, int] = {}
        self._models: dict[str, str] = {}
        self._by_bus: dict[str, str] = {}

    def take(self, readout: Readout) -> dict[str, dict[str, Value | None]]:
        """Learn from a readout; answers by_subject."""
        values = by_subject(readout) if readout.sensor == SENSOR else {}
        for subject, of in values.items():
            index, model, bus = of.get("index"), of.get("model"), of.get("bus")
            if isinstance(index, int):
                self._indexes[subject] = index
            if isinstance(model, str):
                self._models[subject] = model
            if isinstance(bus, str):
                self._by_bus[bus] = subject
        return values

    def canonical(self, subject: str) -> str:
        """The UUID's subject of one that names a GPU by its bus (`gpu:0000:3b:00`); itself where that is not known."""
        return self._by_bus.get(normal_bus(subject.removeprefix(PREFIX)), subject)

    def at_index(self, index: int) -> str:
        """The subject of the GPU with this index, or one by the index where none has told it."""
        return next((subject for subject, known in self._indexes.items() if known == index), f"{PREFIX}{index}")

    def label(self, subject: str) -> str:
        """`GPU 1`; by UUID or bus where its index is not known."""
        index = self._indexes.get(subject)
        return f"GPU {subject.removeprefix(PREFIX)}" if index is None else f"GPU {index}"

    def model(self, subject: str) -> str:
        """As the driver names it (`NVIDIA H100 80GB HBM3`); empty where it is not known."""
        return self._models.get(subject, "")

    def index(self, subject: str) -> int:
        """As the driver counts; -1 where it is not known."""
        return self._indexes.get(subject, -1)

    def bus(self, subject: str) -> str:
        """Its PCI address (`0000:3b:00`); empty where it is not known."""
        return next((bus for bus, known in self._by_bus.items() if known == subject), "")
