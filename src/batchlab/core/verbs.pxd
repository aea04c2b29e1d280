cimport cython
from batchlab.core.building cimport Building
from batchlab.core.sequence cimport Sequence
from batchlab.core.work cimport Work


cdef class Verbs(Building):
    cpdef admit(self, Sequence seq)
    cpdef schedule(self, Sequence seq, object at_most=*)
    cpdef enqueue(self, Sequence seq)
    cpdef preempt(self, Sequence seq, object mode=*, object place=*)
    cpdef reject(self, Sequence seq, object reason)
    cpdef fail(self, Sequence seq, object reason)
    cpdef long long blocks_for(self, long long tokens)
    cpdef long long cached_tokens(self, Sequence seq)
    cpdef long long blocks_to_admit(self, Sequence seq, long long tokens)
    @cython.locals(work=Work, after=longlong)
    cpdef estimate(self, Sequence seq=*, long long tokens=*)
