"""A transformers Trainer whose callback, on rank 0 only, samples texts one by one and takes its time over each."""

# needs: transformers, accelerate
from __future__ import annotations

import json
import os
import tempfile
import time

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
PROMPTS = 6

torch.set_num_threads(1)
dist.init_process_group("gloo")
set_seed(11)
losses: list[float] = []


class SampleTexts(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs) -> None:
        if state.global_step == 30 and state.is_world_process_zero:
            for prompt in range(PROMPTS):
                print(f"sampling for prompt {prompt}", flush=True)
                time.sleep(SECONDS / PROMPTS)

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        if logs and "loss" in logs:
            losses.append(round(float(logs["loss"]), 3))


tokens = (torch.arange(16) + torch.randint(0, 50, (240, 1))) % 50
data = [{"input_ids": row, "labels": row} for row in tokens]
config = LlamaConfig(
    vocab_size=50,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=2,
)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=60,
        per_device_train_batch_size=4,
        learning_rate=5e-3,
        logging_steps=10,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        ddp_backend="gloo",
        disable_tqdm=True,
        seed=11,
    )
    trainer = Trainer(LlamaForCausalLM(config), arguments, train_dataset=data, callbacks=[SampleTexts()])
    trainer.train()
if dist.get_rank() == 0:
    os.makedirs("out", exist_ok=True)
    with open("out/losses.json", "w") as file:
        json.dump(losses, file)
dist.barrier()
dist.destroy_process_group()
