cimport cython
from batchlab.core.sequence cimport Sequence

cdef long long NEVER


@cython.final
cdef class Load:
    cdef const long long[::1] arrival, prompt, max_tokens, priority, order
    cdef object names
    cdef bint ordered, prioritised
    cdef public long long count, sent, due

    cpdef long long position(self, long long place)
    cdef _look(self)
    cpdef long long skip(self)
    @cython.locals(position=longlong)
    cpdef long long send(self, long long now, long long longest_prompt, long long most_tokens)
    @cython.locals(position=longlong, arrival=longlong, seq=Sequence)
    cpdef Sequence make(self, long long place)
