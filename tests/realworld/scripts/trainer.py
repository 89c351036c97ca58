"""Training with transformers' Trainer, as its documentation has it: every setting on the command line."""

from __future__ import annotations

import torch
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments, set_seed


class Counting(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Tokens that count on from a random one."""

    def __init__(self, length: int = 4096) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(48) + 7 * index) % 64
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    set_seed(arguments.seed)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=64, n_embd=64, n_layer=2, n_head=2))
    trainer = Trainer(model=model, args=arguments, train_dataset=Counting(), eval_dataset=Counting(64))
    trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint)
    trainer.save_model()
    trainer.save_state()


if __name__ == "__main__":
    main()
