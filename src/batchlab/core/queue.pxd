from batchlab.core.sequence cimport Sequence


cdef class WaitingQueue:
    cdef object _items
    cpdef append(self, Sequence seq)
    cpdef push_front(self, Sequence seq)
    cpdef remove(self, Sequence seq)
