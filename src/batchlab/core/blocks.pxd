cimport cython
from batchlab.core.sequence cimport Sequence


cdef class CountedBlocks:
    cdef public long long num_blocks, block_size, free
    cpdef blocks_for(self, long long tokens)
    @cython.locals(held=longlong)
    cpdef allocate(self, Sequence seq, list hits, long long tokens)
    cpdef register(self, Sequence seq, long long tokens)
    cpdef release(self, Sequence seq)


cdef class HashedBlocks:
    cdef public long long num_blocks, block_size
    cdef public bint caching
    cdef object _free
    cdef list _users, _link_of
    cdef dict _blocks_of, _links
    cpdef blocks_for(self, long long tokens)
    cpdef lookup(self, Sequence seq)
    cpdef allocate(self, Sequence seq, list hits, long long tokens)
    cpdef register(self, Sequence seq, long long tokens)
    cpdef release(self, Sequence seq)
