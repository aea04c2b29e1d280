cimport cython
from batchlab.core.work cimport Work
from batchlab.costs.base cimport StepTime


cdef class LinearTime(StepTime):
    cdef bint _whole, _ranged, _pairs
    cdef double _a, _b, _c, _d, _e, _f
    cdef long long _i, _j, _k, _l, _m, _n

    @cython.locals(total=double, exact=longlong, decodes=longlong)
    cpdef long long duration(self, Work work) except? -1
