cimport cython
from batchlab.core.sequence cimport Sequence


cdef class Running:
    cdef list _all, _loose
    cdef public long long count
    cdef long long _gone
    cdef public bint split

    cpdef append(self, Sequence seq)
    cpdef remove(self, Sequence seq)
    cpdef leave(self, Sequence seq, bint in_step)
    @cython.locals(seq=Sequence)
    cpdef list take_out_ended(self)
    cpdef list everyone(self)
    cpdef list loose(self)
    @cython.locals(seq=Sequence)
    cpdef Sequence last(self)
    cpdef part(self, list loose)
    cpdef reunite(self)
    @cython.locals(seq=Sequence)
    cpdef _tidy(self)
