cimport cython
from batchlab.core.batch cimport Batch
from batchlab.core.scheduler cimport View
from batchlab.core.sequence cimport Sequence


cdef class Walk:
    cdef public long long _cap
    cdef public bint _adaptive, _chunked, _reserve_all, _in_flight
    cdef public double _watermark
    cdef public object _victim, _mode, _place

    cpdef plan(self, View view, Batch batch)
    cpdef _chunk_cap(self, View view, Batch batch)
    @cython.locals(computed=longlong, left=longlong)
    cpdef _most(self, View view, Batch batch, Sequence seq)
    cpdef _make_room(self, Sequence short, View view, Batch batch, object cap, object most_of)
    @cython.locals(seq=Sequence, spare=longlong)
    cpdef _walk_waiting(self, View view, Batch batch, object cap)
