"""A stack as a person reads it: frames of libraries folded, whose each is, and where its file lies."""

from __future__ import annotations

from guardrun.supervisor.engine.model.looks import Frame
from guardrun.supervisor.engine.observation.frames import fold, library_name, short_path
from tests.report.samples import BLOCKED, SITE, TRAIN, WAITING


def test_folding_keeps_the_innermost_frame_and_the_users() -> None:
    assert [(part.label, [frame.function for frame in part.frames]) for part in fold(BLOCKED)] == [
        ("", ["readinto"]),
        ("2 frames of requests", ["send", "get"]),
        ("", ["fetch_vocabulary_update"]),
        ("", ["main"]),
        ("", ["<module>"]),
    ]
    assert fold([]) == []


def test_folding_leaves_our_own_hooks_out() -> None:
    hook = Frame("collective", f"{SITE}/guardrun/hooks/collectives.py", 59)
    assert fold([hook, WAITING[0], hook, *WAITING[1:]])[0].frames == [WAITING[0]]
    assert [part.frames for part in fold([hook])] == [[hook]]


def test_whose_a_file_is() -> None:
    assert library_name(f"{SITE}/torch/nn/modules/module.py") == "torch"
    assert library_name("/usr/lib/python3.11/socket.py") == "python"
    assert library_name("<frozen runpy>") == "python"
    assert library_name("/build/torch/nn/functional.py") == "torch"
    assert library_name("/opt/elsewhere.py") == "libraries"
    assert short_path(f"{SITE}/torch/nn/modules/module.py") == "torch/nn/modules/module.py"
    assert short_path("/usr/lib/python3.11/json/decoder.py") == "json/decoder.py"
    assert short_path(TRAIN) == "project/train.py"
