"""What every test stands on: nothing leaks, real parts are named, runs of guardrun end with their test.

Fixtures
    run_guardrun(arguments, script=…, script_args=…, config=…, env=…, timeout_s=…) -> Finished
    start_guardrun(arguments, script=…, script_args=…, config=…, env=…) -> GuardrunRun, alive
    browser: a headless Chromium, shared by a module; with @pytest.mark.real("chromium")
    slurm_lab: a real Slurm of four idle nodes, shared by the session; with @pytest.mark.real("slurm")
Marks
    real(part): see tests/support/real.py
    cold: its processes are executed, none is forked; see tests/support/forkserver/client.py
    leaks(kind, …): this test may leave a "process", "thread" or "fd"; say why beside it
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support import leaks, real, scenes, shares, spread, timing, turns
from tests.support.forkserver import client
from tests.support.guardrun_run import Finished, GuardrunRun, GuardrunStarter
from tests.support.processes import become_subreaper
from tests.support.slurmlab import SlurmLab

if TYPE_CHECKING:
    from tests.report.browser import Browser

# Deadlines per example would make tests depend on how busy the machine is.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "soak", deadline=None, max_examples=2000, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("default")
FEW_WORKERS = 2
"""As many start what they need of a fork server themselves, if they need one at all."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-durations", action="store_true", help="write what tests took to tests/support/durations.json"
    )
    parser.addoption(
        "--write-faults", action="store_true", help="write what became of each fault to docs/security.md (make soak)"
    )
    parser.addoption(scenes.WRITE, action="store_true", help="write what was printed in scenes to docs/debugging.md")


def pytest_configure(config: pytest.Config) -> None:
    """Make every orphan below a test a child of this process, where the leak guard sees it; and measure."""
    become_subreaper()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # A shell's background: Ctrl-C is among what is tested.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # Below nohup: guardrun leaves what is ignored so.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    scenes.is_written = config.getoption(scenes.WRITE)
    timing.register(config)
    shares.register(config)
    if config.pluginmanager.has_plugin("xdist"):
        config.pluginmanager.register(spread.Spread())
    # One thread a process is what CI's two cores have room for, and what the fork server's libraries have read.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if config.getoption("--write-faults") and not hasattr(config, "workerinput"):
        from tests.faults.page import Recorder  # which imports what all its rows need

        config.pluginmanager.register(Recorder(config))
    workers = config.getoption("numprocesses", None)
    if hasattr(config, "workerinput") or not workers:
        client.install()
    elif workers > FEW_WORKERS:
        client.install_for_workers()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays: next to nothing of it is garbage, now or later. Every worker collects everything."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Where tests ran side by side: their locks go with the last of them."""
    if run_uid := getattr(config, "guardrun_run_uid", ""):
        turns.remove_folder(run_uid)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """pytest-xdist is about to start a worker: this is the process that distributes."""
    node.config.guardrun_run_uid = node.workerinput["testrunuid"]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Beside other workers, a test that computes takes a seat; its time limit begins when it has one."""
    worker = getattr(item.config, "workerinput", None)
    if worker is None or not turns.computes(item.nodeid):
        return (yield)
    with turns.seat(turns.run_folder(worker["testrunuid"])):
        return (yield)


def _is(item: pytest.Item, mark: str) -> bool:
    return item.get_closest_marker(mark) is not None


def _parts(item: pytest.Item) -> list[str]:
    return [str(part) for mark in item.iter_markers("real") for part in mark.args]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip (or, where required, fail) tests whose real part is missing."""
    for part in _parts(item):
        reason = real.missing(part)
        if reason:
            pytest.skip(f"real part {part}: {reason}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn the skip of a test that needs a required real part into a failure that names the part."""
    report = yield
    required = [part for part in _parts(item) if real.is_required(part)]
    if report.skipped and required and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"{real.REQUIRE_VARIABLE} is set and real part {', '.join(required)} was skipped: {reason}"
    return report


@pytest.fixture(autouse=True)
def _cold(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have processes executed, as they are outside tests, where a test is about that."""
    before = client.cold
    client.cold = before or _is(request.node, "cold")
    yield
    client.cold = before


@pytest.fixture(autouse=True)
def _leak_guard(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a process, a thread or a descriptor behind."""
    allowed = frozenset(kind for mark in request.node.iter_markers("leaks") for kind in mark.args)
    unknown = allowed - set(leaks.KINDS)
    assert not unknown, f"leaks() knows {leaks.KINDS}, not {sorted(unknown)}"
    before = leaks.take_snapshot()
    with leaks.child_handler_kept():
        yield
    found = leaks.find_leaks(before, allowed)
    if found:
        pytest.fail("left behind:\n  " + "\n  ".join(leak.text for leak in found), pytrace=False)


@pytest.fixture
def guardrun_starter(tmp_path: Path) -> Iterator[GuardrunStarter]:
    starter = GuardrunStarter(tmp_path)
    try:
        yield starter
    finally:
        starter.close()


@pytest.fixture
def start_guardrun(guardrun_starter: GuardrunStarter) -> Callable[..., GuardrunRun]:
    """Start the real command line; the test gets it alive."""
    return guardrun_starter.start


@pytest.fixture
def run_guardrun(guardrun_starter: GuardrunStarter) -> Callable[..., Finished]:
    """Run the real command line to its end."""
    return guardrun_starter.run


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One for a module: to start it takes longer than what is looked at in it."""
    from tests.report.browser import Browser

    program = real.find_chromium()
    assert program is not None
    opened = Browser(program, tmp_path_factory.mktemp("browser"))
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture(scope="session")
def slurm_session() -> Iterator[SlurmLab]:
    """The Slurm that all tests of the session share."""
    lab = SlurmLab()
    yield lab
    lab.close()


@pytest.fixture
def slurm_lab(slurm_session: SlurmLab) -> Iterator[SlurmLab]:
    """A Slurm of four idle nodes (n1 to n4); jobs, drains and dead nodes are mended when the test is over."""
    yield slurm_session
    slurm_session.clear()
