cimport cython
from batchlab.core.sequence cimport Sequence


@cython.final
cdef class Line:
    cdef public list items
    cdef public long long count

    cpdef clear(self)
    cpdef push(self, object seq)
    @cython.locals(place=longlong, other=Sequence)
    cpdef stand_in(self, Sequence seq)
    @cython.locals(place=longlong)
    cpdef long long remove(self, object seq)
    @cython.locals(place=longlong)
    cpdef bint has(self, object seq)
    cpdef list as_list(self)
