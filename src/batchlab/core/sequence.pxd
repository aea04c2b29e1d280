cimport cython


cdef class Pace:
    cdef public long long block_size, steps, lag
    cdef public bint given


@cython.freelist(512)
cdef class Sequence:
    cdef public long long position, arrival, prompt_tokens, max_tokens, priority
    cdef public long long prefill_target, preemptions, sent, placeholders, swapped, registered
    cdef public bint waiting, running, ended
    cdef public object tokens, deadline
    cdef public list blocks, chain
    cdef public long long _known, _computed, _scheduled, _held
    cdef long long _joined, _seat
    cdef object _id, _names
    cdef Pace _pace
    cdef Sequence _next
