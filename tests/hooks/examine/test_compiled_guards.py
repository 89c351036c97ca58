"""Guards of compiled code that go by global hooks are known by their text; what can't be read is an obstacle, too."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from guardrun.hooks.examine import compiled_guards
from guardrun.hooks.examine.compiled_guards import depends_on_hooks, find_obstacle

PLAIN = """
| +- GuardManager: source=G['torch_nn_modules_module']._global_forward_hooks, accessed_by=GetAttrGuardAccessor
| | +- TYPE_MATCH: ___check_type_id(G['torch_nn_modules_module']._global_forward_hooks, 1397), type=<OrderedDict>
| +- DictGuardManager: source=L['self']._modules
"""
HOOKED = "| +- DictGuardManager: source=G['torch_nn_modules_module']._global_forward_hooks, tag_safe=(False, False)"
OLD = "| +- DICT_LENGTH: not G['torch_nn_modules_module']._global_forward_pre_hooks"


def test_guards_as_text() -> None:
    assert not depends_on_hooks(PLAIN) and not depends_on_hooks("")
    assert depends_on_hooks(PLAIN + HOOKED) and depends_on_hooks(OLD)


def use(monkeypatch: pytest.MonkeyPatch, *guards: str, entries: Any = None) -> None:
    """As if dynamo had compiled something with these guards."""
    codes = SimpleNamespace(input_codes=SimpleNamespace(seen=[lambda: compiled_guards.__spec__, lambda: None]))
    made = [SimpleNamespace(guard_manager=one) for one in guards]
    frames = SimpleNamespace(_debug_get_cache_entry_list=entries or (lambda code: made))
    monkeypatch.setitem(sys.modules, "torch._dynamo.convert_frame", codes)  # type: ignore[arg-type]  # a stand-in
    monkeypatch.setitem(sys.modules, "torch._C._dynamo.eval_frame", frames)  # type: ignore[arg-type]  # likewise


def test_what_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, PLAIN, PLAIN)
    assert find_obstacle() == ""
    use(monkeypatch, PLAIN, HOOKED)
    assert "hooks of their own are compiled" in find_obstacle()
    monkeypatch.setattr(compiled_guards, "MAX_NS", -1)
    use(monkeypatch, PLAIN)
    assert "too much is compiled" in find_obstacle()


def test_a_torch_that_does_not_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, entries=lambda code: [SimpleNamespace()])
    assert "it can't be told" in find_obstacle()
    monkeypatch.setitem(sys.modules, "torch._C._dynamo.eval_frame", SimpleNamespace())  # type: ignore[arg-type]  # as above
    assert "it can't be told" in find_obstacle()
