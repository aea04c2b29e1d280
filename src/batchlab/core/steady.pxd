cimport cython
from batchlab.core.sequence cimport Pace, Sequence


@cython.final
cdef class Steady(Pace):
    cdef public long long size, context
    cdef long long[::1] classes
    cdef long long _turn

    @cython.locals(computed=longlong)
    cpdef join(self, Sequence seq)
    @cython.locals(computed=longlong)
    cpdef leave(self, Sequence seq)
    cpdef long long blocks_needed(self)
    cpdef advance(self)
