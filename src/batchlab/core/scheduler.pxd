cimport cython
from batchlab.core.batch cimport Batch
from batchlab.core.queue cimport WaitingQueue
from batchlab.core.sequence cimport Sequence


cdef class Step:
    cdef public object serial, start, unused, idle
    cdef public list entries, admitted, preempted, rejected, sampled, prefill_done
    cdef public long long prefill_tokens, decode_tokens, context_tokens


cdef class Core:
    cdef public object limits, view
    cdef public list running
    cdef public WaitingQueue waiting
    cdef public Batch batch
    cdef public long long serial

    @cython.locals(seq=Sequence, step=Step, prefill=longlong, decode=longlong, context=longlong, computed=longlong, tokens=longlong)
    cpdef plan(self, object plan)
    @cython.locals(seq=Sequence)
    cpdef commit(self, Step step, list finished)
