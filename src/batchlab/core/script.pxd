cimport cython
from batchlab.core.scheduler cimport Step
from batchlab.core.sequence cimport Sequence


cdef class Script:
    cdef list _left
    @cython.locals(seq=Sequence, left=list, done=list, position=longlong, tokens=longlong)
    cpdef finished(self, Step step)
