cimport cython
from batchlab.core.line cimport Line
from batchlab.core.sequence cimport Sequence


@cython.final
cdef class Running:
    cdef Line _all, _loose
    cdef public long long count
    cdef long long _gone, _taken
    cdef public bint split

    cpdef append(self, Sequence seq)
    cpdef remove(self, Sequence seq)
    cpdef leave(self)
    @cython.locals(seq=Sequence)
    cpdef list take_out_ended(self)
    cpdef Line everyone(self)
    cpdef Line loose(self)
    @cython.locals(seq=Sequence, row=Line)
    cpdef Sequence last(self)
    cpdef part(self)
    cpdef rejoin(self, Sequence seq)
    cpdef reunite(self)
    @cython.locals(seq=Sequence, row=Line, place=longlong, kept=longlong)
    cpdef _tidy(self)
