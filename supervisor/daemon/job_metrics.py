"""A run's figures for Prometheus, from what `guardctl status` is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from guardrun.supervisor.base.log import log
from guardrun.supervisor.base.metrics_endpoint import MetricsServer, Series, ask_loop

PREFIX = "guardrun_job_"


def job_series(status: dict[str, Any]) -> list[Series]:
    """status: the data of a supervisor's answer to `status`."""
    run = (str(status["run_id"]),)
    ranks = status["ranks"]
    incidents: dict[tuple[str, ...], float] = {}
    for incident in status["incidents"]:
        key = (*run, str(incident["kind"]), str(incident["cause"]))
        incidents[key] = incidents.get(key, 0.0) + 1
    lost = status["lost_s"] if isinstance(status["lost_s"], dict) else {}
    return [
        _one("state", "1 for the state that the run is in.", (*run, str(status["state"])), 1.0, ("run_id", "state")),
        _one("attempt", "The attempt that runs, from 0.", run, _number(status["attempt"], -1.0)),
        _one("world_size", "Ranks of the run.", run, float(status["world_size"])),
        _one("goodput_ratio", "Share of the run's time that training went on.", run, float(status["goodput"])),
        Series(
            f"{PREFIX}lost_seconds",
            "Time lost, by what it went to.",
            ("run_id", "reason"),
            {(*run, str(reason)): float(seconds) for reason, seconds in lost.items()},
            is_counter=True,
        ),
        Series(f"{PREFIX}restarts", "Restarts.", ("run_id",), {run: float(status["restarts"])}, is_counter=True),
        Series(
            f"{PREFIX}incidents",
            "Incidents, by kind and cause.",
            ("run_id", "kind", "cause"),
            incidents,
            is_counter=True,
        ),
        _ranks("step", "Step of a rank.", run, ranks, "step"),
        _ranks("step_duration_seconds", "What a step takes a rank.", run, ranks, "step_time_s"),
        _ranks("loss", "Loss of a rank: median of its last steps.", run, ranks, "loss"),
        _ranks("gradient_norm", "Norm of a rank's gradients, before clipping.", run, ranks, "grad_norm"),
        _ranks("learning_rate", "Learning rate of a rank's first parameter group.", run, ranks, "learning_rate"),
        _ranks("steps_left_out", "Steps of the attempt that guardrun left out in a rank.", run, ranks, "left_out"),
        _ranks("data_wait_ratio", "Share of a rank's time that it waits for data.", run, ranks, "data_share"),
        _ranks("gc_ratio", "Share of a rank's time in garbage collections.", run, ranks, "gc_share"),
        _ranks("progress_age_seconds", "Since a rank last got anywhere.", run, ranks, "last_progress_s"),
    ]


def start_job_metrics(
    listen: str, post: Callable[[Callable[[], object]], None], status: Callable[[], dict[str, Any]]
) -> MetricsServer | None:
    """Serve a run's figures at [metrics] listen; None where that is empty, or can't be had, which is said.

    post: has the supervisor's loop make a call; status: called there.
    """
    if not listen:
        return None
    try:
        server = MetricsServer(listen, lambda: ask_loop(post, lambda: job_series(status())))
    except (OSError, ValueError, ImportError) as error:
        log.warning("no_metrics", listen=listen, why=str(error))
        return None
    log.info("metrics", address=server.address)
    return server


def _one(name: str, help: str, values: tuple[str, ...], value: float, labels: tuple[str, ...] = ("run_id",)) -> Series:
    return Series(PREFIX + name, help, labels, {values: value})


def _ranks(name: str, help: str, run: tuple[str, ...], ranks: list[dict[str, Any]], key: str) -> Series:
    values = {(*run, str(rank["global_rank"])): float(rank[key]) for rank in ranks if rank[key] is not None}
    return Series(PREFIX + name, help, ("run_id", "rank"), values)


def _number(value: Any, otherwise: float) -> float:
    return float(value) if isinstance(value, int | float) else otherwise
