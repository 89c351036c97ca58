"""TRL's SFTTrainer twice; before the second round texts are formatted slowly, on rank 0 first."""

# needs: trl, transformers, datasets, tokenizers
from __future__ import annotations

import json
import os
import tempfile
import time

import torch
import torch.distributed as dist
from datasets import Dataset, disable_progress_bars
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import SFTConfig, SFTTrainer

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
SPECIAL = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
WORDS = [f"w{i}" for i in range(40)]


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {word: number for number, word in enumerate([*SPECIAL.values(), *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL)


def tiny_model() -> LlamaForCausalLM:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=44, pad_token_id=0, bos_token_id=1, eos_token_id=2, **sizes))


def sentences(first: int) -> Dataset:
    return Dataset.from_list([{"text": " ".join(WORDS[(first + i + j) % 40] for j in range(12))} for i in range(40)])


def polish(row: dict) -> str:
    time.sleep(SECONDS / 40 / dist.get_world_size())
    return row["text"].replace("w39", "w0")


torch.set_num_threads(1)
dist.init_process_group("gloo")
disable_progress_bars()
set_seed(5)
losses = []
trainers = []
model = tiny_model()
with tempfile.TemporaryDirectory() as folder:
    for number, formatting in enumerate((None, polish)):
        config = SFTConfig(
            folder,
            max_steps=25,
            per_device_train_batch_size=4,
            max_length=16,
            bf16=False,
            use_cpu=True,
            ddp_backend="gloo",
            gradient_checkpointing=False,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = SFTTrainer(
            model,
            config,
            train_dataset=sentences(number),
            processing_class=tiny_tokenizer(),
            formatting_func=formatting,
        )
        losses.append(round(trainer.train().training_loss, 3))
        trainers.append(trainer)
if dist.get_rank() == 0:
    os.makedirs("out", exist_ok=True)
    with open("out/losses.json", "w") as file:
        json.dump(losses, file)
dist.barrier()
dist.destroy_process_group()
