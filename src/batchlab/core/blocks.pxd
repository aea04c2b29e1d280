cimport cython
from batchlab.core.links cimport Links
from batchlab.core.sequence cimport Sequence

cdef long long NO_LINK


@cython.final
cdef class CountedBlocks:
    cdef public long long num_blocks, block_size, free
    cpdef long long blocks_for(self, long long tokens)
    @cython.locals(held=longlong)
    cpdef allocate(self, Sequence seq, list hits, long long tokens)
    cpdef register(self, Sequence seq, long long tokens)
    cpdef release(self, Sequence seq)


cdef class Tokens:
    cdef list _runs, _starts
    cdef public long long segment, first
    cdef long long _begin, _start, _end
    cpdef long long piece(self, long long position, long long length)
    @cython.locals(taken=longlong)
    cpdef runs(self, long long position, long long length)
    @cython.locals(low=longlong, high=longlong, middle=longlong, size=longlong)
    cpdef _find(self, long long position)


cdef class HashedBlocks:
    cdef public long long num_blocks, block_size, free
    cdef public bint caching
    cdef long long[::1] _next, _previous, _users, _link_of, _newer, _older, _oldest, _newest
    cdef Links _links
    cpdef long long blocks_for(self, long long tokens)
    @cython.locals(hits=list, index=longlong, link=longlong, block=longlong)
    cpdef lookup(self, Sequence seq)
    @cython.locals(block=longlong, count=longlong)
    cpdef long long evictable(self, list hits)
    @cython.locals(blocks=list, block=longlong, missing=longlong)
    cpdef allocate(self, Sequence seq, list hits, long long tokens)
    @cython.locals(index=longlong, link=longlong, block=longlong, newest=longlong, full=longlong)
    cpdef register(self, Sequence seq, long long tokens)
    @cython.locals(front=longlong, block=longlong)
    cpdef release(self, Sequence seq)
    @cython.locals(after=longlong, before=longlong)
    cdef _take(self, long long block)
    @cython.locals(after=longlong)
    cdef _put_after(self, long long before, long long block)
    @cython.locals(link=longlong, newer=longlong, older=longlong)
    cdef _forget(self, long long block)
    @cython.locals(chain=list, link=longlong, position=longlong, missing=longlong, taken=longlong, tokens=Tokens)
    cdef long long _link(self, Sequence seq, long long index) except? -1
    cdef _more_links(self)
