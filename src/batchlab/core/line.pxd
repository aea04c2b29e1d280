cimport cython


@cython.final
cdef class Line:
    cdef public list items
    cdef public long long count

    cpdef clear(self)
    cpdef push(self, object seq)
    @cython.locals(place=longlong)
    cpdef long long remove(self, object seq)
    @cython.locals(place=longlong)
    cpdef bint has(self, object seq)
    cpdef list as_list(self)
