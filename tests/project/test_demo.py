"""`make demo` is quiet: between guardrun's lines and the script's stands no library's warning."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from examples.demo import run as demo
from tests.support.demolines import foreign_lines
from tests.support.guardrun_run import MARK, clean_environment
from tests.support.processes import kill_marked

WITHOUT_NUMPY = """raise ModuleNotFoundError("No module named 'numpy'", name="numpy")\n"""
"""`make demo` installs none. Here it may be there, and torch says nothing."""
SMALL = ("--steps=10", "--batch-size=2", "--context=16", "--layers=1", "--width=32", "--update-at=0")


def train(folder: Path, environment: dict[str, str]) -> str:
    """All that a short training prints, where there is no NumPy."""
    for name in ("train.py", "guardrun.toml"):
        shutil.copy(demo.HERE / name, folder)
    (folder / "without").mkdir()
    (folder / "without" / "numpy.py").write_text(WITHOUT_NUMPY)
    mark = folder.name
    environment = clean_environment(
        mark, {"OMP_NUM_THREADS": None, **environment, "PYTHONPATH": str(folder / "without")}
    )
    program = Path(sys.executable).with_name("guardrun")
    try:
        done = subprocess.run(
            [program, "--nproc_per_node=2", "train.py", *SMALL],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=270,
            check=False,
        )
    finally:
        kill_marked(MARK, mark)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture
def no_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that the demo sets by itself is set already."""
    for name in demo.QUIET:
        monkeypatch.delenv(name, raising=False)


def test_nothing_but_the_script_and_guardrun_is_heard(no_caller: None, tmp_path: Path) -> None:
    """Long on a busy machine: a training from its start to its end."""
    quiet = {name: value for name, value in demo.training_environment().items() if name in demo.QUIET}
    shown = train(tmp_path, quiet)
    assert "step   10  loss " in shown
    assert foreign_lines(shown) == []


def test_what_the_caller_has_set_stays_and_nothing_of_another_run_is_taken_along(
    no_caller: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("GUARDRUN_RUN_ID", "another")
    environment = demo.training_environment()
    assert environment["OMP_NUM_THREADS"] == "7"
    assert "NumPy" in environment["PYTHONWARNINGS"]
    assert "GUARDRUN_RUN_ID" not in environment


def test_foreign_lines_are_found() -> None:
    own = """\
2,000,000 characters, 632,289 parameters, 2 ranks on cpu, from scratch
step   10  loss 3.343    1.2 s
guardrun: incident 001: Rank 1 on vm has waited 30 s

2,000,000 characters, 632,289 parameters, 2 ranks on cpu, resuming from /x/out/ckpt_40.pt
step  200  loss 2.081  134.7 s
"""
    foreign = [
        "W1122 07:58:25.569000 3766 torch/distributed/run.py:874] ",
        "functional_tensor.py:368: UserWarning: Failed to initialize NumPy: No module named 'numpy'",
        "OMP: Info #276: omp_set_nested routine deprecated",
        "loss nan",
    ]
    assert foreign_lines(own) == []
    assert foreign_lines(own + "\n".join(foreign)) == foreign
