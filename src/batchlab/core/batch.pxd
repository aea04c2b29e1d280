cimport cython
from batchlab.core.queue cimport WaitingQueue
from batchlab.core.sequence cimport Sequence
from batchlab.core.work cimport Work


cdef class Batch:
    cdef public object _kv
    cdef object _shed, _estimator, _holds
    cdef bint _details
    cdef Sequence _hits_for
    cdef list _hits
    cdef public long long moved_blocks, padding_tokens
    cdef list _running
    cdef WaitingQueue _waiting
    cdef long long _seat_cap, _queue_cap, _budget, _left
    cdef public object now
    cdef public list entries, admitted, preempted, rejected, dropped, cached

    cpdef _open(self, object now)
    cpdef admit(self, Sequence seq)
    @cython.locals(tokens=longlong, hits=list)
    cpdef schedule(self, Sequence seq, object at_most=*)
    cpdef enqueue(self, Sequence seq)
    @cython.locals(seq=Sequence, left=longlong)
    cpdef decode_all(self)
    @cython.locals(seq=Sequence)
    cpdef prefill_all(self, object chunk=*)
    @cython.locals(seq=Sequence)
    cpdef admit_waiting(self)
    @cython.locals(
        seq=Sequence, tokens=longlong, after=longlong,
        prefill=longlong, decode=longlong, context=longlong, prefill_context=longlong, samples=longlong,
    )
    cpdef _work(self, Work step)
    cpdef _put(self, Sequence seq, long long tokens)
    cpdef _refund(self, Sequence seq)
    cpdef _drop(self, Sequence seq, object result, object reason)
    cpdef _lookup(self, Sequence seq)
    cpdef _blocks_suffice(self, Sequence seq, long long tokens, list hits)
    cpdef _allocate(self, Sequence seq, long long tokens, list hits)
    cpdef _held_tokens(self, Sequence seq, long long computed)
    cpdef _release(self, Sequence seq)
