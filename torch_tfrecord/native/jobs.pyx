# cython: boundscheck=False, wraparound=False, initializedcheck=False
"""Work that is prepared with the GIL and runs without it: whoever has several jobs asks for the GIL once, not once for
each. A thread that asks for it beside one that computes waits for 5 ms (`sys.getswitchinterval`) each time.
"""

from libc.stdlib cimport free, malloc
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

__all__ = ["Job", "run"]


cdef class Job:
    """One piece of work: reading records, parsing them, decoding pictures. Subclasses set `call` and `state`.

    Attributes:
        seconds: How long it took when it last ran.
    """


cdef double now() noexcept nogil:
    cdef timespec time
    clock_gettime(CLOCK_MONOTONIC, &time)
    return time.tv_sec + 1e-9 * time.tv_nsec


def run(jobs):
    """Run jobs in order, without the GIL, until one says that it has found something unusual.

    Returns:
        The number of jobs before that one; their number if all are done.
    """
    cdef tuple kept = tuple(jobs)  # keeps them alive
    cdef Py_ssize_t count = len(kept), done = 0
    cdef job_call *calls = <job_call *>malloc((count + 1) * (sizeof(job_call) + sizeof(void *) + sizeof(double *)))
    cdef void **states = <void **>(calls + count + 1)
    cdef double **seconds = <double **>(states + count + 1)
    cdef double begin
    cdef bint is_done = True
    cdef Job job
    if calls == NULL:
        raise MemoryError
    try:
        for done in range(count):
            job = <Job?>kept[done]
            calls[done], states[done], seconds[done] = job.call, job.state, &job.seconds
            if job.call == NULL:
                raise ValueError(f"expected a job that was prepared, got {type(job).__name__}()")
        done = 0
        with nogil:
            while is_done and done < count:
                begin = now()
                is_done = calls[done](states[done])
                seconds[done][0] = now() - begin
                done += is_done
    finally:
        free(calls)
    return done
