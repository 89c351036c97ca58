"""What is played: numbers that go wrong, each with what is to be said of it, and numbers that are only unusual."""

from __future__ import annotations

from dataclasses import dataclass

NAN, SPIKE, EXPLOSION = "nan_loss", "loss_spike", "grad_explosion"
LEAP = (SPIKE, EXPLOSION)
ANY = (NAN, *LEAP)
DRIFT = ("replica_divergence",)
TRAINERS = "trainers.py"
SHORT, LONG = 700, 3000
"""Steps. Long, where it takes time to tell that something does not heal, or would not have."""


@dataclass(frozen=True)
class Case:
    """One training; scripts/numeric/train.py, or the one of `script`, knows it by its name."""

    name: str
    what: str
    steps: int = LONG
    ranks: int = 2
    script: str = "train.py"


@dataclass(frozen=True)
class Fault(Case):
    """Something that must be found."""

    causes: tuple[str, ...] = (NAN,)
    """Any of these is right, of the first incident."""
    is_everybodys: bool = False
    """It begins on all ranks at once, or on one of two replicas, and nobody is to be named; else the last one is."""
    at_start: bool = False
    """It is there from the first step on."""
    slack: int = 1
    """Steps by which the onset may be off. What goes on for long is counted by reports: 400 steps, as short as here."""

    @property
    def culprits(self) -> tuple[int, ...]:
        return () if self.is_everybodys else (self.ranks - 1,)


FAULTS = (
    Fault("nan_batch", "a NaN in one rank's batch", SHORT),
    Fault("inf_batch", "an infinity in one rank's batch, whose loss stays finite", SHORT, is_everybodys=True),
    Fault("nan_batch_fsdp", "NaN, FSDP", SHORT),
    Fault("nan_batch_tp", "NaN, tensor parallel: all ranks have the batch", SHORT, is_everybodys=True),
    Fault("nan_batch_accumulate", "NaN in one of four micro batches", SHORT),
    Fault("nan_batch_compiled", "NaN, a compiled loss", SHORT),
    Fault("nan_batch_unclipped", "NaN, where no norm is seen", SHORT),
    Fault("nan_batch_of_four", "NaN, of four ranks", SHORT, ranks=4),
    Fault("nan_batch_everywhere", "NaN in every rank's batch", SHORT, is_everybodys=True),
    Fault("constant_batch", "a batch without deviation is divided by it", SHORT),
    Fault("half_precision", "activations overflow in half precision", SHORT, is_everybodys=True),
    Fault("learning_rate", "a thousand times it, SGD", SHORT, causes=ANY, is_everybodys=True, slack=20),
    Fault("learning_rate_adam", "three hundred times it, AdamW, clipped", causes=LEAP, is_everybodys=True, slack=20),
    Fault("wrong_units", "answers a hundred times as large", causes=LEAP, is_everybodys=True),
    Fault("poisoned", "NaN among the parameters at the start", SHORT, is_everybodys=True, at_start=True),
    Fault("flipped_parameter", "a bit of one rank's parameter", SHORT, causes=DRIFT, is_everybodys=True),
    Fault("flipped_parameter_of_three", "of three", SHORT, causes=DRIFT, ranks=3),
    Fault("flipped_parameter_of_four", "of four", SHORT, causes=DRIFT, ranks=4),
    Fault("flipped_gradient", "a bit of one rank's reduced gradient", SHORT, causes=DRIFT, is_everybodys=True),
    Fault("flipped_gradient_of_four", "of four", SHORT, causes=DRIFT, ranks=4),
    Fault("flipped_moment", "a bit of one rank's optimizer", SHORT, causes=DRIFT, is_everybodys=True),
    Fault("flipped_moment_of_four", "of four", SHORT, causes=DRIFT, ranks=4),
    Fault("scaled_to_death", "a NaN parameter under a GradScaler", SHORT, is_everybodys=True),
    Fault("transformers_nan", "a NaN in one rank's batch, transformers' Trainer", SHORT, script=TRAINERS),
    Fault(
        "transformers_learning_rate",
        "three hundred times it, clipped",
        causes=LEAP,
        is_everybodys=True,
        slack=20,
        script=TRAINERS,
    ),
    Fault("lightning_nan", "a NaN in one rank's batch, Lightning", SHORT, script=TRAINERS),
    Fault(
        "lightning_learning_rate",
        "three hundred times it, clipped",
        causes=LEAP,
        is_everybodys=True,
        slack=20,
        script=TRAINERS,
    ),
    Fault("hidden_nan", "one rank's reduced gradients are NaN, under a GradScaler", slack=400),
)

DECOYS = (
    Case("ordinary", "nothing"),
    Case("ordinary_fsdp", "nothing, FSDP"),
    Case("ordinary_tp", "nothing, tensor parallel"),
    Case("ordinary_scaled", "nothing, GradScaler"),
    Case("ordinary_compiled", "nothing, compiled"),
    Case("ordinary_accumulate", "nothing, four micro batches"),
    Case("warmup", "a learning rate that warms up, and falls"),
    Case("learning_rate_steps", "a tenth, three times, again and again"),
    Case("curriculum", "harder tasks from one step on"),
    Case("tiny_batches", "one sample a batch"),
    Case("heavy_tails", "noise with heavy tails"),
    Case("bad_batch_clipped", "one batch ten times as large, clipped"),
    Case("log_of_zero", "one infinite loss, without a gradient"),
    Case("own_guard", "the script leaves out losses that are NaN"),
    Case("own_guard_late", "the script leaves out steps whose norm is NaN"),
    Case("scaled_start", "a GradScaler finds its scale"),
    Case("scaled_often", "a GradScaler overflows every twenty steps"),
    Case("evaluating", "evaluations between steps"),
    Case("folds", "another model every two hundred steps"),
    Case("adversaries", "two nets against each other"),
    Case("signed", "a loss that crosses 0"),
    Case("near_zero", "nothing is left to learn"),
    Case("said", "the script says its own loss"),
    Case("dropping", "dropout of nine tenths"),
    Case("uneven", "one rank's data is harder for ever", ranks=3),
    Case("several_backwards", "one to three losses a step"),
    Case("resumed", "the optimizer begins anew, steps are the script's"),
    Case("unfrozen", "a layer begins to learn"),
    Case("averaging", "ranks step alone, and average every eight steps", SHORT, ranks=3),
    Case("writing", "the script changes the first rank's parameters", SHORT, ranks=3),
    Case("batch_norm", "statistics that each rank has of its own data", SHORT),
    Case("averages", "the first rank keeps averages of the parameters", SHORT),
    Case("sharded_optimizer", "each rank has the moments of its own part", SHORT),
    Case("transformers_ordinary", "nothing, transformers' Trainer", script=TRAINERS),
    Case("transformers_accumulate", "nothing, four micro batches", SHORT, script=TRAINERS),
    Case("lightning_ordinary", "nothing, Lightning", script=TRAINERS),
    Case("lightning_accumulate", "nothing, four micro batches", SHORT, script=TRAINERS),
    Case("lightning_unclipped", "nothing, no norm is seen", SHORT, script=TRAINERS),
    Case("joining", "ranks that run out of inputs, one after the other", SHORT, ranks=3),
)
