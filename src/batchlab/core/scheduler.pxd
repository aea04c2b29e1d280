cimport cython
from batchlab.core.batch cimport Batch
from batchlab.core.queue cimport WaitingQueue
from batchlab.core.sequence cimport Sequence
from batchlab.core.work cimport Work


cdef class Step(Work):
    cdef public object serial, start, unused, note, wake
    cdef public bint works
    cdef public list entries, admitted, preempted, rejected, dropped, cached, sampled, prefill_done
    cdef public long long free_blocks


cdef class Delivery:
    cdef public list prefill_done, completed, first, discarded


cdef class Core:
    cdef public object limits, view, kv
    cdef public list running
    cdef public WaitingQueue waiting
    cdef public Batch batch
    cdef public long long serial, steps_in_flight

    @cython.locals(seq=Sequence, step=Step, tokens=longlong)
    cpdef plan(self, object plan)
    @cython.locals(seq=Sequence, delivery=Delivery)
    cpdef commit(self, Step step, list finished)
    @cython.locals(seq=Sequence)
    cpdef _finish(self, list finished, Delivery delivery)
