cdef class Sequence:
    cdef public long long position, arrival, prompt_tokens, max_tokens, priority
    cdef public long long known, computed, prefill_target, scheduled, preemptions
    cdef public long long sent, placeholders, held, swapped, registered
    cdef public int state
    cdef public object id, tokens, deadline
    cdef public list blocks, chain
