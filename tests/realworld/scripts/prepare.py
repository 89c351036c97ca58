"""A model with random weights, its tokenizer and some text, as local folders: what scripts would else download."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
WORDS = [f"w{number}" for number in range(60)]


def write_model(folder: Path) -> None:
    vocabulary = {word: number for number, word in enumerate([*SPECIAL.values(), *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL).save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def write_data(folder: Path) -> None:
    """Sentences that count on from a random word."""
    folder.mkdir()
    source = random.Random(7)
    for name, count in (("train", 400), ("test", 8)):
        starts = (source.randrange(len(WORDS)) for _ in range(count))
        texts = (" ".join(WORDS[(start + step) % len(WORDS)] for step in range(24)) for start in starts)
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


if __name__ == "__main__":
    write_model(Path(sys.argv[1], "model"))
    write_data(Path(sys.argv[1], "data"))
