cimport cython
from batchlab.core.blocks cimport CountedBlocks, HashedBlocks
from batchlab.core.line cimport Line
from batchlab.core.queue cimport WaitingQueue
from batchlab.core.running cimport Running
from batchlab.core.script cimport Script
from batchlab.core.sequence cimport Sequence
from batchlab.core.steady cimport Steady
from batchlab.core.step cimport Step
from batchlab.core.tally cimport Tally
from batchlab.core.work cimport Work


cdef class Building:
    cdef public long long now
    cdef public list preempted, rejected, dropped, cached
    cdef public long long moved_blocks, padding_tokens, plain_steps, wanted
    cdef object _kv, _shed, _estimator, _holds
    cdef CountedBlocks _counted
    cdef HashedBlocks _hashed
    cdef Steady _steady
    cdef Script _script
    cdef Tally _tally
    cdef Step _flying
    cdef Sequence _hits_for, _stopped_at
    cdef list _hits
    cdef Line _entries, _admitted
    cdef bint _chunks, _contexts, _asked, _holds_computed
    cdef long long _place, _until
    cdef Running _running
    cdef WaitingQueue _waiting
    cdef long long _no_limit, _seat_cap, _queue_cap, _budget, _left

    cpdef _open(self, long long now)
    cpdef _new_lists(self)
    cpdef _take_seat(self, Sequence seq)
    @cython.locals(tokens=longlong, hits=list)
    cpdef _schedule(self, Sequence seq, long long most)
    cpdef _sit(self, Sequence seq)
    cpdef _grant(self, Sequence seq, long long tokens)
    @cython.locals(
        seq=Sequence, entries=Line, place=longlong, tokens=longlong, after=longlong,
        prefill=longlong, decode=longlong, context=longlong, prefill_context=longlong, samples=longlong,
    )
    cpdef _work(self, Work step)
    cpdef _fall_out(self, Sequence seq)
    cpdef _stand_alone(self, Sequence seq)
    @cython.locals(seq=Sequence, place=longlong, until=longlong, before=list, among=list)
    cpdef _take_apart(self)
    cpdef _drop(self, Sequence seq, object result, object reason)
    cpdef _lookup(self, Sequence seq)
    @cython.locals(kv=HashedBlocks, covered=longlong, needed=longlong)
    cpdef bint _blocks_suffice(self, Sequence seq, long long tokens, list hits)
    @cython.locals(kv=HashedBlocks)
    cpdef _allocate(self, Sequence seq, long long tokens, list hits)
    cpdef long long _held_tokens(self, Sequence seq, long long computed)
    cpdef _release(self, Sequence seq)
    cpdef _refund(self, Sequence seq)
