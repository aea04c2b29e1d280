cdef class Work:
    cdef public long long prefill_tokens, decode_tokens, context_tokens, moved_blocks, padding_tokens
