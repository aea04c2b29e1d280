cimport cython
from batchlab.core.load cimport Load
from batchlab.core.scheduler cimport Core
from batchlab.core.script cimport Script
from batchlab.core.steady cimport Steady
from batchlab.core.step cimport Delivery, Step
from batchlab.core.tally cimport Tally
from batchlab.core.work cimport Work
from batchlab.costs.base cimport StepTime


cdef class Loop:
    cdef public object run, observers, on_plan, pulse, client, plan, door, in_flight, serials, sent, watch
    cdef public list stage_free, give_up
    cdef public long long depth, stages, free_at, now, iterations, limit, longest_prompt, most_tokens, never, latest
    cdef public bint jumps, counted, coasts, still, budgeted, identity
    cdef public Core core
    cdef public Tally tally
    cdef Script script
    cdef Load load
    cdef Work ahead
    cdef StepTime time

    @cython.locals(idle=bint, arrival=longlong, pulse=longlong)
    cpdef turn_until_done(self)
    cpdef long long _next_arrival(self) except? -1
    @cython.locals(
        core=Core, tally=Tally, work=Work, steady=Steady, until=longlong, budget=longlong, size=longlong, most=longlong,
        taken=longlong, landed=longlong,
    )
    cpdef _coast(self, long long arrival)
    @cython.locals(
        core=Core, tally=Tally, step=Step, delivered=Step, arrived=bint, end=longlong, ended=longlong, moved=bint,
    )
    cpdef _quick_turn(self)
    @cython.locals(core=Core, step=Step, delivered=Step, delivery=Delivery, end=longlong)
    cpdef _turn(self)
    cpdef tuple _oldest(self, Step step, long long end)
    cpdef _watch(self, Step step, object arrived)
    @cython.locals(duration=longlong, time=longlong)
    cpdef long long _end_of(self, Step step) except? -1
    cpdef _arrivals(self)
    @cython.locals(first=longlong, start=longlong, position=longlong)
    cpdef bint _quick_arrivals(self, Load load) except? -1
    cpdef Delivery _deliver(self, Step step)
    @cython.locals(delivers=bint, waits_until=longlong)
    cpdef _pass_time(self, Step step, Step delivered, long long end)
    cpdef _refuse(self, Step step)
    @cython.locals(tally=Tally)
    cpdef _count(self, Step step, Step delivered, Delivery delivery)
