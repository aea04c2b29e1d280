cimport cython
from batchlab.core.histogram cimport Histogram
from batchlab.core.sequence cimport Sequence
from batchlab.core.steady cimport Steady
from batchlab.core.step cimport Delivery, Step

cdef signed char WAITING, ACTIVE, RETRYING, COMPLETED, REJECTED
cdef long long UNKNOWN, MANY, MOST


@cython.final
cdef class Tally:
    cdef public bint tied
    cdef public Histogram gaps
    cdef public object each_gap
    cdef public dict reasons
    cdef dict _lost
    cdef public object rejections
    cdef public long long count, emitted, prefill_tokens, decode_tokens, recomputed_tokens, cached_tokens
    cdef public long long preemptions, retries, max_queue_length
    cdef object _unused_total
    cdef long long _unused
    cdef public long long moved_blocks, padding_tokens, decode_stalls, preempted_decode_stalls, slots_opened
    cdef public long long[::1] first_scheduled, first_iteration, first_time, last_time, completed_iteration
    cdef public long long[::1] max_itl, tokens, recomputed
    cdef public int[::1] times_preempted, times_retried
    cdef public signed char[::1] result, in_decode
    cdef long long _seated, _batch, _decoding, _parked, _last, _peaks
    cdef Steady _steady
    cdef list _late
    cdef long long[::1] _peak_gaps, _peak_steps

    cpdef arrived(self, long long position)
    cpdef sits(self, long long position)
    cpdef stands(self, long long position, bint recompute, long long computed)
    cpdef rejected(self, long long position, object reason, bint again)
    cpdef bint dropped(self, long long position, int result, object reason)
    @cython.locals(found_again=longlong)
    cpdef cached(self, long long position, long long tokens)
    cpdef scheduled(self, long long position, long long start)
    cpdef token(self, long long position, long long end)
    @cython.locals(gap=longlong)
    cdef _gap(self, long long position, long long end)
    cpdef prefilled(self, long long position, long long iteration, long long end)
    cpdef bint completed(self, long long position, long long iteration)
    cpdef _leave_decode(self, long long position)
    cpdef computes(self, long long prefill, long long decodes)
    cpdef seats(self, long long admitted, long long preempted, long long dropped, bint works, long long padding)
    cpdef unseated(self, long long completed)
    cpdef unused(self, long long iterations, long long tokens)
    cdef _carry(self, object iterations, object tokens)
    cpdef coasted(self, long long iterations, long long decodes)
    cpdef queued(self, long long length)
    @cython.locals(who=Sequence, unseated=longlong, works=bint)
    cpdef planned(self, Step step)
    @cython.locals(seq=Sequence, unseated=longlong)
    cpdef turn(self, Step step, Step delivered, Delivery delivery, long long end)
    @cython.locals(seq=Sequence, steady=Steady, delivered=longlong, together=longlong, gap=longlong)
    cpdef decoded(self, long long end)
    @cython.locals(last=longlong)
    cpdef joined(self, Sequence seq)
    @cython.locals(position=longlong, delivered=longlong, gap=longlong)
    cpdef left(self, Sequence seq)
    @cython.locals(top=longlong)
    cpdef _push(self, long long gap, long long step)
    @cython.locals(low=longlong, high=longlong, middle=longlong)
    cpdef long long _largest_since(self, long long step)
