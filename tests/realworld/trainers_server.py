"""A fork server (tests/support/forkserver/server.py) that has imported the trainers, too: see training.py."""

from __future__ import annotations

import os
import sys

PATH = sys.path[1:]
sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from tests.support.forkserver.stash import Recorder

FRESH = list(sys.modules)
RECORDER = Recorder()
RECORDER.begin()

# ruff: noqa: E402
from tests.support.forkserver import server

TRAINERS = (
    "trl.scripts.sft", "trl.trainer.sft_trainer", "transformers.trainer",
    "transformers.models.gpt2.modeling_gpt2", "transformers.models.llama.modeling_llama",
    "lightning.pytorch.demos", "lightning.pytorch.loggers",
)  # fmt: skip
"""Those that stand on others first: what they import by a lazy module's attribute is noted for who is first to ask."""
_import_all = server.import_all


def import_all() -> None:
    """In place of the server's."""
    _import_all((*server.IMPORTED, *TRAINERS))
    for module in list(sys.modules.values()):
        # transformers' and TRL's: an attribute is imported when it is first asked for, and stays.
        if type(module).__name__ == "_LazyModule":
            for name in (*module._class_to_module, *module._modules):
                vars(module).pop(name, None)


def main() -> None:
    # pyarrow's allocator would start a thread, beside which nothing can be forked.
    os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
    server.PATH, server.FRESH, server.RECORDER, server.import_all = PATH, FRESH, RECORDER, import_all
    server.main()


if __name__ == "__main__":
    main()
