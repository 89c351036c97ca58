"""What to do about data that is not what one thinks: of notes, not of incidents."""

from __future__ import annotations

SAME_SAMPLES = (
    "Each step then computes one gradient several times over. Give each rank its share (a DistributedSampler, "
    "datasets.distributed.split_dataset_by_node), or a seed of its own where it draws at random."
)
SAME_ORDER = "Call sampler.set_epoch(epoch) before each epoch: it is what the order is drawn from."
UNEVEN_LOADERS = (
    "A DistributedSampler makes all ranks' shares equal; torch.distributed.algorithms.Join bridges what is left. Where "
    "the script goes by steps and begins its loader again, nothing is wrong."
)
CHANCE_LOSS = (
    "Try to overfit one batch: if that fails, see whether labels belong to their inputs, whether gradients reach the "
    "parameters that the optimizer has, and whether the learning rate is far too high or too low."
)
DEAD_MODULES = (
    "What lies before it learns nothing any more. Mostly one step was too large, and left all inputs of a ReLU "
    "negative: see the learning rate and the gradient norm around that step, and go on from a checkpoint before it, "
    "with a lower rate, a longer warm-up or clipping. Where a gate or a schedule of the script's own shuts it, nothing "
    "is wrong."
)
EMPTY_BATCHES = (
    "That rank adds nothing, and a mean over such a batch is NaN. See what the loader and the collate function return "
    "there: a shard or a split with nothing in it, a filter that nothing passes, fewer files than ranks. Where that "
    "rank is meant to take part without data, nothing is wrong."
)
CONSTANT_BATCHES = (
    "See what the dataset returns for a few samples, before and after each transform: files that could not be read, an "
    "integer division, a buffer that is never filled. Where a benchmark makes its data up so, nothing is wrong."
)
