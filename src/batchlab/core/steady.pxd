cimport cython
from batchlab.core.blocks cimport HashedBlocks
from batchlab.core.line cimport Line
from batchlab.core.sequence cimport Pace, Sequence


@cython.final
cdef class Steady(Pace):
    cdef public long long size, context
    cdef long long[::1] classes
    cdef long long _turn, _taking, _filling
    cdef HashedBlocks _hashed
    cdef list _rows

    @cython.locals(computed=longlong, place=longlong)
    cpdef join(self, Sequence seq)
    @cython.locals(computed=longlong, place=longlong, row=Line)
    cpdef leave(self, Sequence seq)
    @cython.locals(taking=Line, filling=Line, seq=Sequence)
    cpdef serve(self, long long before)
    cpdef long long blocks_needed(self)
    cpdef give(self)
    cpdef advance(self)
