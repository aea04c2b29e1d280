from batchlab.core.sequence cimport Sequence


cdef class WaitingQueue:
    cdef object _key, _items
    cdef list _order
    cdef dict _entry_of
    cdef long long _fronts
    cpdef append(self, Sequence seq)
    cpdef push_front(self, Sequence seq)
    cpdef remove(self, Sequence seq)
    cdef _insert(self, tuple entry)
