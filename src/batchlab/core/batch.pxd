cimport cython
from batchlab.core.blocks cimport CountedBlocks
from batchlab.core.line cimport Line
from batchlab.core.sequence cimport Sequence
from batchlab.core.steady cimport Steady
from batchlab.core.verbs cimport Verbs


cdef class Batch(Verbs):
    @cython.locals(seq=Sequence, loose=Line, place=longlong)
    cpdef decode_all(self)
    @cython.locals(seq=Sequence, most=longlong, loose=Line, place=longlong)
    cpdef prefill_all(self, object chunk=*)
    @cython.locals(seq=Sequence, most=longlong, allowed=longlong, left=longlong, loose=Line, place=longlong)
    cpdef schedule_running(self, object chunk=*, object most_of=*, bint at_end=*)
    @cython.locals(seq=Sequence)
    cpdef admit_waiting(self)
    @cython.locals(seq=Sequence, most=longlong)
    cpdef schedule_waiting(self, object chunk=*, bint whole=*, long long spare=*, bint for_all=*)
    cpdef long long _capped(self, object chunk) except? -1
    @cython.locals(counted=CountedBlocks, cached=longlong, tokens=longlong, free=longlong, held=longlong)
    cpdef _serve(self, Sequence seq, long long most, bint whole, long long spare, bint for_all)
    @cython.locals(seq=Sequence, loose=Line, place=longlong)
    cpdef bint _decode_in_step(self)
    @cython.locals(seq=Sequence, last=Sequence, loose=Line, place=longlong, tokens=longlong, blocks=longlong, more=longlong, each=list)
    cpdef bint _all_in_step(self, long long most, object most_of) except? -1
    @cython.locals(steady=Steady)
    cpdef _give(self)
    @cython.locals(held=longlong)
    cpdef long long _blocks_more(self, Sequence seq, long long tokens)
    cpdef long long _free(self)
    @cython.locals(size=longlong)
    cpdef bint _holds_its_blocks(self, Sequence seq)
    @cython.locals(lag=longlong)
    cpdef bint _may_fall_in(self, Sequence seq)
