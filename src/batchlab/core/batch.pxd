cimport cython
from batchlab.core.queue cimport WaitingQueue
from batchlab.core.sequence cimport Sequence


cdef class Batch:
    cdef object _limits
    cdef list _running
    cdef WaitingQueue _waiting
    cdef long long _seat_cap, _queue_cap, _budget, _left
    cdef public object now
    cdef public list entries, admitted, preempted, rejected

    cpdef _open(self, object now)
    cpdef admit(self, Sequence seq)
    @cython.locals(tokens=longlong)
    cpdef schedule(self, Sequence seq, object at_most=*)
    cpdef enqueue(self, Sequence seq)
    @cython.locals(seq=Sequence, left=longlong)
    cpdef decode_all(self)
    @cython.locals(seq=Sequence)
    cpdef prefill_all(self, object chunk=*)
    @cython.locals(seq=Sequence)
    cpdef admit_waiting(self)
    cpdef _put(self, Sequence seq, long long tokens)
    cpdef _refund(self, Sequence seq)
