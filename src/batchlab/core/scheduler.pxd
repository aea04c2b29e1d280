cimport cython
from batchlab.core.batch cimport Batch
from batchlab.core.blocks cimport CountedBlocks
from batchlab.core.line cimport Line
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
    cdef Step _step, _other
    cdef list _ended

    cpdef go_in_step(self, Script script, Tally tally)
    cpdef tell(self, Tally tally)
    @cython.locals(step=Step, batch=Batch, lag=longlong)
    cpdef Step plan(self, object plan)
    @cython.locals(seq=Sequence, decodes=bint)
    cpdef _advance(self, Step step)
    cpdef _note(self, Step step, object reason)
    @cython.locals(seq=Sequence, delivery=Delivery)
    cpdef Delivery commit(self, Step step, list finished)
    @cython.locals(seq=Sequence, ended_waiting=bint, left=bint)
    cpdef bint _finish(self, list ended) except? -1
    @cython.locals(
        seq=Sequence, following=Sequence, batch=Batch, tally=Tally, script=Script, steady=Steady, delivery=Delivery,
        went=bint,
    )
    cpdef long long settle_behind(self, Step step, Step delivered, long long end) except? -1
    @cython.locals(
        seq=Sequence, following=Sequence, batch=Batch, tally=Tally, script=Script, steady=Steady, entries=Line,
        place=longlong, position=longlong, ended=longlong, decodes=bint, joins=bint,
        identity=bint,
    )
    cpdef long long settle(self, Step step, long long end) except? -1
    cpdef tuple _rank(self, Sequence seq, long long place)
    @cython.locals(seq=Sequence)
    cpdef _release(self)
    @cython.locals(counted=CountedBlocks)
    cpdef _end(self, Sequence seq, long long iteration)
    @cython.locals(seq=Sequence, batch=Batch, loose=Line, place=longlong, kept=longlong)
    cpdef _fall_in(self, Step step)
    @cython.locals(batch=Batch, steady=Steady, blocks=longlong)
    cpdef bint coast(self)


@cython.final
cdef class View:
    cdef Core _core
    cdef public object limits
