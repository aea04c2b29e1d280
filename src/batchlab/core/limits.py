"""The bounds of one engine instance."""

from batchlab.core.blocks import CountedBlocks, HashedBlocks

NO_LIMIT = 1 << 62
"""Stands for no limit where a number is needed."""


class Limits:
    """The bounds that the batch keeps, whatever the policy does. None means no bound.

    max_num_seqs: sequences holding a seat. max_num_batched_tokens: token budget of an iteration. max_queue: newcomers
    are refused a place in the queue beyond it; with `shed`, a more urgent newcomer takes the least urgent one's place.
    num_gpu_blocks: usable KV blocks of `block_size` tokens each, None if blocks are not modelled; they have identity
    where enable_prefix_caching needs it or track_blocks asks for it, else they are counted. max_model_len: prompt and
    output of a request together; what would be longer ends there.
    """

    def __init__(
        self,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        max_queue: int | None = None,
        shed: bool = False,
        num_gpu_blocks: int | None = None,
        block_size: int = 16,
        enable_prefix_caching: bool = False,
        max_model_len: int | None = None,
        track_blocks: bool = False,
    ) -> None:
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_queue = max_queue
        self.shed = shed
        self.num_gpu_blocks = num_gpu_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.max_model_len = max_model_len
        self.track_blocks = track_blocks

    def make_blocks(self) -> CountedBlocks | HashedBlocks | None:
        """The pool of KV blocks, if there is one."""
        if self.num_gpu_blocks is None:
            return None
        if self.enable_prefix_caching or self.track_blocks:
            return HashedBlocks(self.num_gpu_blocks, self.block_size, self.enable_prefix_caching)
        return CountedBlocks(self.num_gpu_blocks, self.block_size)
