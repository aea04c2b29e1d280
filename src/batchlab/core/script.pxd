cimport cython
from batchlab.core.sequence cimport Sequence
from batchlab.core.steady cimport Steady
from batchlab.core.step cimport Step

cdef long long BUCKETS


@cython.final
cdef class Script:
    cdef long long[::1] _left
    cdef Steady _steady
    cdef list _buckets
    cdef public long long next_due

    @cython.locals(seq=Sequence)
    cpdef list finished(self, Step step)
    @cython.locals(tokens=longlong)
    cpdef long long emits(self, long long position)
    cpdef bint stays(self, long long position)
    @cython.locals(due=longlong, bucket=longlong)
    cpdef joined(self, Sequence seq)
    @cython.locals(due=longlong, bucket=longlong, other=Sequence)
    cpdef left(self, Sequence seq)
    @cython.locals(end=longlong)
    cpdef long long look_ahead(self, long long most)
    @cython.locals(
        steps=longlong, bucket=longlong, seq=Sequence, later=Sequence, ends=Sequence,
        following=Sequence,
    )
    cpdef Sequence due(self)
