"""The step in a name."""

from __future__ import annotations

import pytest

from guardrun.supervisor.checkpoints.reading.folder_contents import family_of, parse_step, step_family


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-500", 500),
        ("step-1000", 1000),
        ("step_20", 20),
        ("iter_0000040", 40),
        ("global_step70", 70),
        ("epoch=1-step=200.ckpt", 200),
        ("epoch=1-step=200-v2.ckpt", 200),
        ("epoch=3-val_loss=0.25.ckpt", None),
        ("hpc_ckpt_7.ckpt", 7),
        ("last.ckpt", None),
        ("ep1-ba100-rank0.pt", 100),
        ("model_000040.pt", 40),
        ("ckpt_40.pt", 40),
        ("ckpt40.pt", 40),
        ("ckpt_40_rank1.pt", 40),
        ("rank0.pt", None),
        ("net_g_123.pth", 123),
        ("epoch_3.pt", None),
        ("checkpoint_epoch_3.pt", None),
        ("model_epoch3.pth", None),
        ("model-00001-of-00002.safetensors", None),
        ("ckpt.pt", None),
        ("model_7b.pt", None),
        ("model_best.pth.tar", None),
        ("state_step10_best.pt", 10),
        ("it=12.pt", 12),
        ("unit_12x.pt", None),
    ],
)
def test_the_step_is_read(name: str, step: int | None) -> None:
    assert parse_step(name) == step


def test_a_family_differs_in_numbers_only() -> None:
    assert family_of("ckpt_40.pt") == family_of("ckpt_1000.pt") != family_of("ckpt.pt")


@pytest.mark.parametrize(
    ("path", "family", "step"),
    [
        ("/w/out/ckpt_40.pt", "out/ckpt_#.pt", 40),
        ("/w/out/checkpoint-40", "out/checkpoint-#", 40),
        ("/w/out/checkpoint-40/optimizer.pt", "out/checkpoint-#", 40),
        ("/w/out/iter_0000040/mp_rank_00/model.pt", "", 0),
        ("/w/out/ckpt.pt", "", 0),
        ("/w/run-7/ckpt.pt", "", 0),
        ("/ckpt.pt", "", 0),
    ],
)
def test_the_family_of_a_saved_path(path: str, family: str, step: int) -> None:
    assert step_family(path) == (family, step)
