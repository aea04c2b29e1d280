"""How many KV blocks a GPU has room for beside a model, as an engine counts them when it starts."""

from typing import NamedTuple

from batchlab.catalog.llm import Llm

GIB = 2**30
MOST_PARALLEL = 64


class Memory(NamedTuple):
    """What one GPU holds, in bytes; of several GPUs, the fullest."""

    total: float
    """What an engine may use of it."""
    weights: float
    reserve: float
    """Activations of a step, and what the runtime takes for itself."""
    kv_token: float
    """Keys and values of one token."""

    @property
    def left(self) -> float:
        """For KV blocks; below 0 where the model does not fit."""
        return self.total - self.weights - self.reserve

    def blocks(self, block_size: int) -> int:
        """Whole KV blocks, 0 where none fits."""
        return max(0, int(self.left // (block_size * self.kv_token)))


def weights_of_one_gpu(
    llm: Llm, tensor_parallel: int, pipeline_parallel: int, layer_bytes: float, other_bytes: float
) -> float:
    """Bytes of the fullest GPU: its share of each layer of its stage, and of embedding, output matrix or both.

    layer_bytes, other_bytes: of one weight within layers and outside them.
    """
    stage = -(-llm.layers // pipeline_parallel) / llm.layers
    layers = (llm.dense_weights + llm.routed_weights) * stage * layer_bytes
    head, embedding = llm.head_weights, llm.embedding_weights
    if pipeline_parallel > 1:  # they are on different stages, a tied one on both
        others = max(head, embedding)
    else:
        others = head + embedding
    return (layers + others * other_bytes) / tensor_parallel


def activations(llm: Llm, tensor_parallel: int, step_tokens: int, value_bytes: float) -> float:
    """Bytes at the widest place of a layer: gate, up and their product, beside the residual stream and its sum."""
    return step_tokens * (3 * llm.step_ffn / tensor_parallel + 2 * llm.hidden) * value_bytes
