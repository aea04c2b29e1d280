cimport cython

cdef long long EXACT_VALUES, FINE_BITS, LARGEST, SMALL, MIX


@cython.final
cdef class Histogram:
    cdef public long long count, largest
    cdef public bint exact
    cdef object _total
    cdef long long _part, _different, _mask
    cdef long long[::1] _keys, _times, _buckets

    @cython.locals(place=longlong)
    cpdef add(self, long long value, long long times)
    cdef _carry(self, object value, object times)
    @cython.locals(place=longlong)
    cdef _coarsen(self)


@cython.locals(shift=longlong, rest=longlong)
cpdef long long bucket_of(long long value)
@cython.locals(shift=longlong, lowest=longlong, width=longlong)
cpdef long long middle_of(long long bucket)
