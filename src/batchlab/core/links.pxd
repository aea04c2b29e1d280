cimport cython

cdef long long MIX_PARENT, MIX_SEGMENT, MIX_START


@cython.final
cdef class Links:
    cdef public long long count
    cdef long long[::1] _rows, _table
    cdef long long _mask

    @cython.locals(place=longlong, row=longlong)
    cpdef long long number(self, long long parent, long long segment, long long start, long long length)
    @cython.locals(mixed=longlong)
    cpdef long long _place(self, long long parent, long long segment, long long start, long long length)
    @cython.locals(number=longlong, row=longlong)
    cpdef long long _enter(self, long long place, long long parent, long long segment, long long start, long long length)
    @cython.locals(number=longlong, place=longlong, row=longlong)
    cpdef _spread(self)
