ctypedef bint (*job_call)(void *state) noexcept nogil

cdef class Job:
    cdef job_call call
    cdef void *state  # what the call needs, as prepared with the GIL; the job keeps it alive
    cdef readonly double seconds
