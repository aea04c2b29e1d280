cimport cython
from batchlab.core.sequence cimport Sequence
from batchlab.core.steady cimport Steady
from batchlab.core.step cimport Step

cdef long long BUCKETS


cdef class Script:
    cdef long long[::1] _left
    cdef Steady _steady
    cdef list _buckets, _done
    cdef public long long next_due

    cpdef list finished(self, Step step)
    @cython.locals(seq=Sequence, position=longlong, tokens=longlong)
    cpdef _emit(self, list sequences)
    @cython.locals(due=longlong, bucket=longlong)
    cpdef joined(self, Sequence seq)
    @cython.locals(due=longlong, bucket=longlong, other=Sequence)
    cpdef left(self, Sequence seq)
    @cython.locals(end=longlong)
    cpdef long long look_ahead(self, long long most)
    @cython.locals(steps=longlong, bucket=longlong, seq=Sequence, later=Sequence, following=Sequence)
    cpdef _due(self)
