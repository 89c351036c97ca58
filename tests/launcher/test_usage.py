"""What guardrun says to a user's mistakes, and that nothing was started or created for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.guardrun_run import GuardrunStarter


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["none.py"], "no such script: none.py"),
        (["--guard-conifg=x", "train.py"], "did you mean --guard-config?"),
        (["--nproc-per-node=many", "train.py"], "many"),
        (["--guard-run-id=a/b", "train.py"], "--guard-run-id a/b: expected letters"),
        (["--guard-hang-floor-s=soon", "train.py"], "--guard-hang-floor-s: expected a number"),
        ([], "training_script"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes(launcher: GuardrunStarter, tmp_path: Path, arguments: list[str], said: str) -> None:
    (tmp_path / "train.py").write_text("print('ran')")
    run = launcher.start(arguments)
    done = run.wait(30)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert said in done.stderr and "Traceback" not in done.stderr
    assert run.alive() == [] and done.run_dir is None


def test_a_program_that_cannot_be_started(launcher: GuardrunStarter) -> None:
    done = launcher.run(["--no-python", "/nonexistent/program"])
    assert done.returncode == 1, done


def test_off_is_torchrun(launcher: GuardrunStarter, tmp_path: Path) -> None:
    script = "import os; print(sorted(name for name in os.environ if 'GUARDRUN' in name))"
    done = launcher.run(
        ["--guard-off", "--nproc-per-node=1"],
        script=script,
        env={"GUARDRUN_DIR": None, "GUARDRUN_PREFLIGHT_LEVEL": None},
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done
    assert not (tmp_path / "guardrun-runs").exists() and not (tmp_path / "stdout").exists()
    bad = launcher.run(["--guard-off"], script="raise SystemExit(3)")
    assert bad.returncode == 1 and "ChildFailedError" in bad.stderr


def test_help_has_both_groups(launcher: GuardrunStarter) -> None:
    done = launcher.run(["--help"])
    assert done.returncode == 0
    assert "--rdzv-backend" in done.stdout and "--guard-run-id" in done.stdout and "plain torchrun" in done.stdout
