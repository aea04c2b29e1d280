cimport cython
from batchlab.core.load cimport Load
from batchlab.core.sequence cimport Sequence


@cython.final
cdef class WaitingQueue:
    cdef object _key, _items
    cdef list _order
    cdef dict _entry_of
    cdef long long _count, _fronts, _pending, _end
    cdef Load _load
    cdef Sequence _first

    cpdef append(self, Sequence seq)
    cpdef push_front(self, Sequence seq)
    cpdef pend(self, Load load, long long start, long long end)
    cpdef remove(self, Sequence seq)
    cpdef Sequence front(self)
    cpdef long long length(self)
    @cython.locals(place=longlong, seq=Sequence)
    cpdef _make_all(self)
