cimport cython
from batchlab.core.batch cimport Batch
from batchlab.core.blocks cimport CountedBlocks
from batchlab.core.queue cimport WaitingQueue
from batchlab.core.running cimport Running
from batchlab.core.script cimport Script
from batchlab.core.sequence cimport Sequence
from batchlab.core.steady cimport Steady
from batchlab.core.step cimport Delivery, Step
from batchlab.core.tally cimport Tally


cdef class Core:
    cdef public object limits, view, kv
    cdef public Running running
    cdef public WaitingQueue waiting
    cdef public Batch batch
    cdef public Steady steady
    cdef public long long serial, steps_in_flight
    cdef public bint quick
    cdef Script script
    cdef Tally tally
    cdef Step _step
    cdef Delivery _delivery

    cpdef go_in_step(self, Script script, Tally tally)
    @cython.locals(step=Step, batch=Batch)
    cpdef Step plan(self, object plan)
    cpdef _clean(self, Step step)
    @cython.locals(seq=Sequence, batch=Batch, decodes=bint)
    cpdef _advance(self, Step step)
    cpdef _note(self, Step step, object reason)
    @cython.locals(seq=Sequence, delivery=Delivery)
    cpdef Delivery commit(self, Step step, list finished)
    @cython.locals(seq=Sequence)
    cpdef Delivery _commit_quickly(self, Step step, list finished)
    @cython.locals(seq=Sequence, counted=CountedBlocks, in_step=bint, ended_waiting=bint)
    cpdef bint _finish(self, list ended) except? -1
    @cython.locals(counted=CountedBlocks, steady=Steady, blocks=longlong)
    cpdef bint coast(self)
    @cython.locals(seq=Sequence, batch=Batch, running=Running, before=list, loose=list)
    cpdef fall_in(self)


cdef class View:
    cdef Core _core
    cdef public object limits
