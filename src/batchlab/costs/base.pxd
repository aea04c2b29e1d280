from batchlab.core.work cimport Work


cdef class StepTime:
    cpdef long long duration(self, Work work) except? -1


cdef class OtherTime(StepTime):
    cdef object _cost
    cpdef long long duration(self, Work work) except? -1
