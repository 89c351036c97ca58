"""Each codebase's layout: found, whole, and torn in every way that its adapter knows."""

from __future__ import annotations

import gzip
import io
import pickle
import shutil
import struct
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from guardrun.supervisor.checkpoints.chooser import Chooser
from guardrun.supervisor.checkpoints.format_table import FORMAT_NAMES, FORMATS, UnknownFormat, get_formats
from tests.checkpoints.conftest import Write

Break = Callable[[Path], None]


def remove(*names: str) -> Break:
    """Take files or folders away."""

    def change(folder: Path) -> None:
        for name in names:
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return change


def cut(name: str) -> Break:
    """Take the last third of a file away."""

    def change(folder: Path) -> None:
        path = folder / name
        path.write_bytes(path.read_bytes()[: -max(1, path.stat().st_size // 3)])

    return change


def put(name: str, text: str = "") -> Break:
    """Write a file."""

    def change(folder: Path) -> None:
        (folder / name).write_text(text)

    return change


def empty(name: str) -> Break:
    """Leave a folder with nothing in it."""

    def change(folder: Path) -> None:
        shutil.rmtree(folder / name)
        (folder / name).mkdir()

    return change


@dataclass
class Layout:
    """One checkpoint of a format, and the ways to break it."""

    format: str
    files: dict[str, Any]
    path: str
    step: int
    breaks: dict[str, Break]
    """By a part of the reason that must be given."""
    world_size: int = 2
    id: str = ""
    auto: str = ""
    """The format that auto takes it for, where that is another."""
    decoys: dict[str, Any] = field(default_factory=dict)


HF = {
    "checkpoint-40/trainer_state.json": {"global_step": 40},
    "checkpoint-40/config.json": {},
    "checkpoint-40/model.safetensors": "@safetensors",
    "checkpoint-40/optimizer.pt": "@training",
    "checkpoint-40/scheduler.pt": "@metrics",
    "checkpoint-40/training_args.bin": "@metrics",
}
RNG = {f"checkpoint-40/rng_state_{rank}.pth": "@cache" for rank in range(2)}
SHARDS = {
    "checkpoint-40/model.safetensors.index.json": {"weight_map": {"a": "model-00001-of-00002.safetensors"}},
    "checkpoint-40/model-00001-of-00002.safetensors": "@safetensors",
}
ZERO = {
    "global_step40/mp_rank_00_model_states.pt": "@weights",
    "global_step40/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt": "@training",
    "global_step40/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt": "@training",
}

LAYOUTS = [
    Layout(
        "huggingface",
        HF | RNG,
        "checkpoint-40",
        40,
        {
            "lacks trainer_state.json": remove("checkpoint-40/trainer_state.json"),
            "trainer_state.json says step 20": put("checkpoint-40/trainer_state.json", '{"global_step": 20}'),
            "trainer_state.json: is damaged": put("checkpoint-40/trainer_state.json", '{"global_st'),
            "fresh optimizer": remove("checkpoint-40/optimizer.pt"),
            "lacks scheduler.pt": remove("checkpoint-40/scheduler.pt"),
            "lacks rng_state_1.pth": remove("checkpoint-40/rng_state_1.pth"),
            "optimizer.pt: ends too early": cut("checkpoint-40/optimizer.pt"),
            "lacks the model's weights": remove("checkpoint-40/model.safetensors"),
            "model.safetensors: has": cut("checkpoint-40/model.safetensors"),
            "incomplete": put("checkpoint-40/checkpoint-is-incomplete.txt"),
        },
    ),
    Layout(
        "huggingface",
        {name: value for name, value in HF.items() if "model.safe" not in name}
        | SHARDS
        | {"checkpoint-40/rng_state.pth": "@cache"},
        "checkpoint-40",
        40,
        {
            "lacks model-00001": remove("checkpoint-40/model-00001-of-00002.safetensors"),
            "lacks rng_state.pth": remove("checkpoint-40/rng_state.pth"),
            "index.json: is damaged": cut("checkpoint-40/model.safetensors.index.json"),
        },
        world_size=1,
        id="huggingface-shards",
    ),
    Layout(
        "huggingface",
        {name: value for name, value in (HF | RNG).items() if "model.safe" not in name and "optimizer" not in name}
        | {f"checkpoint-40/{name}": value for name, value in ZERO.items()},
        "checkpoint-40",
        40,
        {
            "optimizer shard of rank 1": remove(
                "checkpoint-40/global_step40/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
            )
        },
        id="huggingface-deepspeed",
    ),
    Layout(
        "huggingface",
        {name: value for name, value in (HF | RNG).items() if "model.safe" not in name and "optimizer" not in name}
        | {"checkpoint-40/pytorch_model_fsdp_0": "@dcp", "checkpoint-40/optimizer_0": "@dcp"},
        "checkpoint-40",
        40,
        {
            "pytorch_model_fsdp_0: has": cut("checkpoint-40/pytorch_model_fsdp_0/__0_0.distcp"),
            "optimizer_0: lacks .metadata": remove("checkpoint-40/optimizer_0/.metadata"),
        },
        id="huggingface-fsdp",
    ),
    Layout(
        "nanogpt",
        {"ckpt.pt": "@training"},
        "ckpt.pt",
        40,
        {"ends too early": cut("ckpt.pt"), "empty": put("ckpt.pt")},
    ),
    Layout(
        "nanochat",
        {
            "model_000040.pt": "@weights",
            "meta_000040.json": {"step": 40},
            "optim_000040_rank0.pt": "@training",
            "optim_000040_rank1.pt": "@training",
        },
        "model_000040.pt",
        40,
        {
            "lacks meta_000040.json": remove("meta_000040.json"),
            "optimizer of rank 1": remove("optim_000040_rank1.pt"),
            "optimizer of ranks 0, 1": remove("optim_000040_rank0.pt", "optim_000040_rank1.pt"),
            "lacks model_000040.pt": remove("model_000040.pt"),
            "optim_000040_rank1.pt: ends": cut("optim_000040_rank1.pt"),
        },
    ),
    Layout(
        "lightning",
        {"logs/version_0/checkpoints/epoch=1-step=40.ckpt": "@lightning"},
        "logs/version_0/checkpoints/epoch=1-step=40.ckpt",
        77,
        {"ends too early": cut("logs/version_0/checkpoints/epoch=1-step=40.ckpt")},
    ),
    Layout(
        "lightning",
        {"step=40.ckpt": "@dcp", "step=40.ckpt/meta.pt": "@lightning"},
        "step=40.ckpt",
        40,
        {"lacks .metadata": remove("step=40.ckpt/.metadata"), "the folder is empty": empty("step=40.ckpt")},
        id="lightning-sharded",
    ),
    Layout(
        "torchtitan",
        {"checkpoint/step-40": "@dcp"},
        "checkpoint/step-40",
        40,
        {
            "lacks .metadata": remove("checkpoint/step-40/.metadata"),
            "lacks __0_0.distcp": remove("checkpoint/step-40/__0_0.distcp"),
            "has only": cut("checkpoint/step-40/__0_0.distcp"),
        },
    ),
    Layout(
        "megatron",
        {
            "iter_0000040": "@dcp",
            "iter_0000040/metadata.json": {"sharded_backend": "torch_dist"},
            "iter_0000040/common.pt": "@metrics",
        },
        "iter_0000040",
        40,
        {
            "lacks metadata.json": remove("iter_0000040/metadata.json"),
            "lacks .metadata": remove("iter_0000040/.metadata"),
            "lacks common.pt": remove("iter_0000040/common.pt"),
            "the folder is empty": empty("iter_0000040"),
        },
    ),
    Layout(
        "megatron",
        {
            f"iter_0000040/mp_rank_0{rank}/{name}.pt": "@training"
            for rank in range(3)
            for name in ("model_optim_rng", "distrib_optim")
        },
        "iter_0000040",
        40,
        {
            "lacks tensor-parallel rank 1": remove("iter_0000040/mp_rank_01"),
            "lacks mp_rank_02/distrib_optim.pt": remove("iter_0000040/mp_rank_02/distrib_optim.pt"),
            "ends too early": cut("iter_0000040/mp_rank_02/model_optim_rng.pt"),
        },
        id="megatron-legacy",
    ),
    Layout(
        "deepspeed",
        ZERO | {"latest": "global_step40"},
        "global_step40",
        40,
        {
            "optimizer shard of rank 1": remove("global_step40/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"),
            "model_states.pt": remove("global_step40/mp_rank_00_model_states.pt"),
            "ends too early": cut("global_step40/mp_rank_00_model_states.pt"),
        },
    ),
    Layout(
        "composer",
        {"ep1-ba40-rank0.pt": "@training", "ep1-ba40-rank1.pt": "@training"},
        "ep1-ba40-rank0.pt",
        40,
        {"file of rank 0": remove("ep1-ba40-rank0.pt"), "ends too early": cut("ep1-ba40-rank1.pt")},
    ),
    Layout(
        "litgpt",
        {"step-00000040/lit_model.pth": "@training", "step-00000040/model_config.yaml": "name: x"},
        "step-00000040",
        40,
        {
            "lacks model_config.yaml": remove("step-00000040/model_config.yaml"),
            "lit_model.pth: ends": cut("step-00000040/lit_model.pth"),
        },
    ),
    Layout(
        "torchtune",
        {
            "step_40/model-00001-of-00002.safetensors": "@safetensors",
            "step_40/model-00002-of-00002.safetensors": "@safetensors",
            "recipe_state/recipe_state.pt": "@training",
        },
        "step_40",
        40,
        {
            "lacks model-00001-of-00002": remove("step_40/model-00001-of-00002.safetensors"),
            "recipe_state.pt: ends": cut("recipe_state/recipe_state.pt"),
        },
    ),
    Layout(
        "kempnerforge",
        {"step_40": "@dcp", "step_40/train_state.pt": "@metrics", "step_40/metadata.json": {"step": 40}},
        "step_40",
        40,
        {
            "lacks .metadata": remove("step_40/.metadata"),
            "lacks metadata.json": remove("step_40/metadata.json"),
            "train_state.pt: ends": cut("step_40/train_state.pt"),
        },
    ),
    Layout(
        "open_clip",
        {"epoch_3.pt": "@training"},
        "epoch_3.pt",
        0,
        {"ends too early": cut("epoch_3.pt")},
    ),
    Layout(
        "fairseq2",
        {
            "checkpoints/step_40/trainer/rank_00.pt": "@metrics",
            "checkpoints/step_40/trainer/rank_01.pt": "@metrics",
            "checkpoints/step_40/model/pp_00/tp_00/sdp_00.pt": "@weights",
            "checkpoints/step_40/model/pp_00/tp_00/sdp_01.pt": "@weights",
            "checkpoints/step_40/optimizer/pp_00/tp_00/sdp_00.pt": "@training",
            "checkpoints/step_40/optimizer/pp_00/tp_00/sdp_01.pt": "@training",
            "checkpoints/step_40/data_reader/dp_00.pt": "@metrics",
        },
        "checkpoints/step_40",
        40,
        {
            "lacks data_reader": remove("checkpoints/step_40/data_reader"),
            "trainer's state of rank 1": remove("checkpoints/step_40/trainer/rank_01.pt"),
            "lacks optimizer/pp_00/tp_00/sdp_01.pt": remove("checkpoints/step_40/optimizer/pp_00/tp_00/sdp_01.pt"),
        },
        decoys={"checkpoints/step_60.tmp/trainer/rank_00.pt": "@metrics"},
    ),
    Layout(
        "dcp",
        {"run/latest_state": "@dcp"},
        "run/latest_state",
        0,
        {"has only": cut("run/latest_state/__0_0.distcp")},
    ),
    Layout(
        "sharded",
        {"ckpt_40_rank0.pt": "@training", "ckpt_40_rank1.pt": "@training"},
        "ckpt_40_rank0.pt",
        40,
        {"file of rank 0": remove("ckpt_40_rank0.pt"), "ckpt_40_rank1.pt: ends": cut("ckpt_40_rank1.pt")},
    ),
    Layout(
        "folder",
        {
            "checkpoint_40/model.safetensors": "@safetensors",
            "checkpoint_40/optimizer.bin": "@training",
            "checkpoint_40/random_states_0.pkl": b"\x80\x04}.",
            "checkpoint_40/random_states_1.pkl": b"\x80\x04}.",
        },
        "checkpoint_40",
        40,
        {
            "of rank 0": remove("checkpoint_40/random_states_0.pkl"),
            "optimizer.bin: ends": cut("checkpoint_40/optimizer.bin"),
            "random_states_1.pkl: is a damaged": cut("checkpoint_40/random_states_1.pkl"),
        },
        id="folder-accelerate",
    ),
    Layout(
        "file",
        {"net_40.pth": "@training"},
        "net_40.pth",
        40,
        {"ends too early": cut("net_40.pth")},
    ),
    Layout(
        "file",
        {"model_40.pt": "@weights", "optim_40.pt": "@training"},
        "model_40.pt",
        40,
        {"optim_40.pt: ends": cut("optim_40.pt")},
        id="file-with-optimizer",
    ),
    Layout(
        "file",
        {"model_40.safetensors": "@safetensors"},
        "model_40.safetensors",
        40,
        {"has": cut("model_40.safetensors")},
        id="file-safetensors",
    ),
]
NAMES = [layout.id or layout.format for layout in LAYOUTS]


def _choose(folder: Path, layout: Layout, name: str) -> Any:
    return Chooser(0.0, str(folder), name, layout.world_size).choose(resume_first=True)


@pytest.mark.parametrize("name", ["auto", "named"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=NAMES)
def test_a_whole_one_is_found(tmp_path: Path, write: Write, layout: Layout, name: str) -> None:
    write(tmp_path, layout.files | layout.decoys)
    choice = _choose(tmp_path, layout, "auto" if name == "auto" else layout.format)
    assert choice.checkpoint is not None, choice.skipped
    assert choice.checkpoint.path == str(tmp_path / layout.path)
    assert (choice.checkpoint.format, choice.checkpoint.step) == (layout.format, layout.step)
    assert choice.skipped == []


@pytest.mark.parametrize("name", ["auto", "named"])
@pytest.mark.parametrize(
    ("layout", "reason"),
    [(layout, reason) for layout in LAYOUTS for reason in layout.breaks],
    ids=[f"{layout.id or layout.format}: {reason}" for layout in LAYOUTS for reason in layout.breaks],
)
def test_a_torn_one_is_named_with_its_reason(
    tmp_path: Path, write: Write, layout: Layout, reason: str, name: str
) -> None:
    write(tmp_path, layout.files)
    layout.breaks[reason](tmp_path)
    before = sorted((str(path), path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    choice = _choose(tmp_path, layout, "auto" if name == "auto" else layout.format)
    assert choice.checkpoint is None
    assert [skipped.path for skipped in choice.skipped] == [str(tmp_path / layout.path)]
    assert reason in choice.skipped[0].reason
    assert sorted((str(path), path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before


FOLDERS = [
    layout
    for layout in LAYOUTS
    if "40" in layout.path and any(name == layout.path or name.startswith(f"{layout.path}/") for name in layout.files)
    if not layout.path.endswith((".pt", ".pth", ".safetensors")) and "version_0" not in layout.path
]


@pytest.mark.parametrize("layout", FOLDERS, ids=[layout.id or layout.format for layout in FOLDERS])
def test_an_empty_newer_folder_is_taken_for_what_its_siblings_are(tmp_path: Path, write: Write, layout: Layout) -> None:
    write(tmp_path, layout.files)
    newest = tmp_path / layout.path.replace("40", "60")
    newest.mkdir()
    choice = _choose(tmp_path, layout, "auto")
    assert choice.checkpoint is not None and choice.checkpoint.path == str(tmp_path / layout.path)
    assert [skipped.path for skipped in choice.skipped] == [str(newest)]
    assert choice.checkpoint.format == layout.format


def test_every_format_has_a_layout_here_and_says_how_it_resumes() -> None:
    assert {layout.format for layout in LAYOUTS} == {known.name for known in FORMATS}
    assert len(set(FORMAT_NAMES)) == len(FORMATS) + 1
    assert all(known.resume for known in FORMATS)


def test_an_unknown_format_names_the_nearest() -> None:
    with pytest.raises(UnknownFormat, match=r"'hugingface'.*'huggingface'"):
        get_formats("hugingface")
    assert get_formats("auto") is get_formats("") is FORMATS


def test_a_file_kind_that_the_checkpoint_before_had_must_be_there(tmp_path: Path, write: Write) -> None:
    write(tmp_path, {"step_20/model.pt": "@weights", "step_20/extra.pt": "@metrics", "step_40/model.pt": "@weights"})
    choice = Chooser(0.0, str(tmp_path), "folder").choose(resume_first=True)
    assert choice.checkpoint is not None and choice.checkpoint.step == 20
    assert "lacks extra.pt" in choice.skipped[0].reason


def companions(torch: ModuleType, folder: Path) -> dict[str, bytes]:
    """Files that people keep beside a checkpoint's own, named as they name them."""
    torch.save({"python": 1, "torch": torch.get_rng_state()}, folder / "random_states_0.pkl")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated; its files are there.
        torch.jit.save(torch.jit.script(torch.nn.Linear(4, 2)), str(folder / "scripted.pt"))
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    arrays = io.BytesIO()
    np.savez(arrays, a=np.arange(9))
    one = io.BytesIO()
    np.save(one, np.arange(9))
    return {
        **found,
        "scaler.pkl": pickle.dumps({"mean": 1.5}),
        "pipeline.pkl": b"\x80\x04\x95\x20" + b"\0" * 7 + b"\x8c\x13joblib.numpy_pickle\x94" + bytes(range(256)),
        "vectorizer.pkl": gzip.compress(pickle.dumps([1, 2])),
        "vocabulary.bin": zlib.compress(b"words" * 99),
        "tokens.bin": bytes(range(256)) * 9,
        "counts.bin": struct.pack("<q", 0),
        "embeddings.bin": one.getvalue(),
        "arrays.pt": arrays.getvalue(),
        "log.json": b'{"loss": 1.5}\n{"loss": NaN}\n',
        "history.json": gzip.compress(b"[]"),
        "state.json": b"\xef\xbb\xbf{}",
        "notes.tar": b"notes",
    }


def test_a_companion_of_whatever_kind_condemns_no_checkpoint(torch: ModuleType, tmp_path: Path, write: Write) -> None:
    """Each by itself, in a folder as accelerate's save_state makes it, or as people do."""
    (tmp_path / "made").mkdir()
    for name, data in companions(torch, tmp_path / "made").items():
        folder = tmp_path / name.replace(".", "-")
        write(folder, {"checkpoint_20/model.pt": "@weights"})
        (folder / "checkpoint_20" / name).write_bytes(data)
        choice = Chooser(0.0, str(folder), "folder").choose(resume_first=True)
        assert choice.checkpoint is not None and choice.checkpoint.step == 20, choice.skipped


@pytest.mark.parametrize("name", ["random_states_0.pkl", "scripted.pt", "scaler.pkl", "arrays.pt"])
def test_one_that_is_cut_short_does(torch: ModuleType, tmp_path: Path, write: Write, name: str) -> None:
    (tmp_path / "made").mkdir()
    data = companions(torch, tmp_path / "made")[name]
    for number, torn in enumerate((data[:-4], b"\0" * 600, b"")):
        folder = tmp_path / str(number)
        write(folder, {"checkpoint_20/model.pt": "@weights"})
        (folder / "checkpoint_20" / name).write_bytes(torn)
        choice = Chooser(0.0, str(folder), "folder").choose(resume_first=True)
        assert choice.checkpoint is None and name in choice.skipped[0].reason


def test_json_that_is_cut_short_does(tmp_path: Path, write: Write) -> None:
    for number, text in enumerate(('{\n  "a": 1,\n  "b"', '{"a": 1}\n{"a', "", "\0\0\0\0")):
        folder = tmp_path / str(number)
        write(folder, {"checkpoint_20/model.pt": "@weights"})
        (folder / "checkpoint_20/state.json").write_text(text)
        assert Chooser(0.0, str(folder), "folder").choose(resume_first=True).checkpoint is None
