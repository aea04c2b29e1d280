from batchlab.core.line cimport Line
from batchlab.core.work cimport Work


cdef class Step(Work):
    cdef public object wake, unused, note
    cdef public long long serial, start, steady, free_blocks
    cdef public bint works
    cdef public Line scheduled, admitted
    cdef public list entries, preempted, rejected, dropped, cached, sampled, prefill_done, decoding


cdef class Delivery:
    cdef public list prefill_done, completed, first, discarded
