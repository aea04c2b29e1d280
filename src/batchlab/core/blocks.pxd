cimport cython
from batchlab.core.sequence cimport Sequence


cdef class CountedBlocks:
    cdef public long long num_blocks, block_size, free
    cpdef long long blocks_for(self, long long tokens)
    @cython.locals(held=longlong)
    cpdef allocate(self, Sequence seq, list hits, long long tokens)
    cpdef register(self, Sequence seq, long long tokens)
    cpdef release(self, Sequence seq)


cdef class Tokens:
    cdef list _runs, _starts
    cdef long long _last
    @cython.locals(index=longlong, start=longlong, size=longlong, inside=longlong, taken=longlong)
    cpdef runs(self, long long position, long long length)
    @cython.locals(low=longlong, high=longlong, middle=longlong)
    cpdef _find(self, long long position)


cdef class HashedBlocks:
    cdef public long long num_blocks, block_size
    cdef public bint caching
    cdef object _free
    cdef list _users, _link_of
    cdef dict _blocks_of, _links
    cpdef long long blocks_for(self, long long tokens)
    @cython.locals(hits=list, index=longlong)
    cpdef lookup(self, Sequence seq)
    cpdef allocate(self, Sequence seq, list hits, long long tokens)
    cpdef register(self, Sequence seq, long long tokens)
    cpdef release(self, Sequence seq)
