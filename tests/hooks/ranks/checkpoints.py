"""A rank that saves and loads in all ways that the hooks have to see, below the folder in argv[1]."""

from __future__ import annotations

import inspect
import io
import json
import os
import pickle
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import save

from guardrun.hooks import step
from guardrun.hooks.rank import rank
from guardrun.hooks.saves import checkpoint_files
from guardrun.hooks.wire.board import Field

checkpoint_files.SAME_LOAD_NS = 600 * 10**9  # a busy machine may take more than a second from one load to the next
os.chdir(sys.argv[1])
state = {"weight": torch.ones(3), "bias": torch.ones(3), "step": 7, "text": "more than tensors"}

torch.save(state, before := io.BytesIO())
Path("before.pt").write_bytes(before.getvalue())
torch.load("before.pt")

step(7)
save(state, "relative.pt")
torch.save(state, Path("path.pt"))
torch.serialization.save(obj=state, f=os.path.abspath("keyword.pt"))
with open("file.pt", "wb") as file:
    torch.save(state, file)
torch.save(state, io.BytesIO())
torch.save(state, "tmp.pt")
os.replace("tmp.pt", "renamed.pt")
try:
    torch.save(state, "nowhere/failed.pt")
except RuntimeError:
    pass
thread = threading.Thread(target=torch.save, args=[state, "thread.pt"])
thread.start()
thread.join()

step(8)
dcp.save(state, checkpoint_id="dcp", no_dist=True)
dcp.save(state, storage_writer=dcp.FileSystemWriter("writer", thread_count=3), no_dist=True)
future = dcp.async_save(state, checkpoint_id="async", no_dist=True) if sys.argv[2] == "async" else None
step(9)
if future is not None:
    getattr(future, "upload_completion", future).result()

torch.load("relative.pt")
torch.load("relative.pt")
for n in range(300):
    os.link("relative.pt", f"sample-{n}.pt")
    torch.load(f"sample-{n}.pt")
torch.load("path.pt")  # The one that GUARDRUN_RESUME_FROM names.
torch.load(io.BytesIO(Path("path.pt").read_bytes()))
dcp.load({"weight": torch.zeros(3), "step": 0}, checkpoint_id="dcp", no_dist=True)

assert rank.active is not None
print(
    json.dumps(
        {
            "saves": rank.active.words[Field.SAVES],
            "since": rank.active.words[Field.SAVE_SINCE_NS],
            "phase": rank.active.words[Field.PHASE],
            "signature": str(inspect.signature(torch.save)),
            "names": [torch.save.__name__, torch.load.__qualname__, dcp.save.__module__],
            "pickled": pickle.loads(pickle.dumps(torch.save)) is torch.save,
            "loader": type(torch.serialization.__spec__.loader).__name__,
            "source": str(inspect.getsourcefile(torch.serialization)).endswith("serialization.py"),
            "attributes": sorted(vars(torch.serialization.__loader__)),
        }
    )
)
time.sleep(0.2)
