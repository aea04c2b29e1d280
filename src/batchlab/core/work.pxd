cdef class Work:
    cdef public long long prefill_tokens, decode_tokens, context_tokens, prefill_context, samples
    cdef public long long moved_blocks, padding_tokens
    cdef public list chunks, contexts
