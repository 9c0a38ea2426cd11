# cython: boundscheck=False, wraparound=False, initializedcheck=False
"""Work that is prepared with the GIL and runs without it: whoever has several jobs asks for the GIL once, not once for
each. A thread that asks for it beside one that computes waits for 5 ms (`sys.getswitchinterval`) each time.
"""

cimport cython
from libc.stdlib cimport free, malloc
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
from posix.unistd cimport getpid

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_t:
        pass
    int pthread_create(pthread_t *thread, void *attributes, void *(*function)(void *) noexcept nogil, void *state)
    int pthread_join(pthread_t thread, void **result)

__all__ = ["Job", "Started", "run"]


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


cdef struct Task:
    job_call call
    void *state
    bint is_done


@cython.no_gc  # else the garbage collector could clear the job while the thread is at work on it
cdef class Started:
    """A job that a thread of its own runs while Python goes on; who drops this waits for it."""

    cdef Job job
    cdef Task task
    cdef pthread_t thread
    cdef int process  # that has the thread

    def __cinit__(self, Job job not None):
        self.job, self.task.call, self.task.state = job, job.call, job.state
        if job.call != NULL and pthread_create(&self.thread, NULL, work, &self.task) == 0:
            self.process = getpid()

    def finish(self):
        """Wait for it; whether it found nothing unusual. False where there is no thread: none could be started, or this
        process was forked meanwhile.
        """
        if self.process != getpid():
            return False
        self.process = 0
        with nogil:
            pthread_join(self.thread, NULL)
        return self.task.is_done

    def __dealloc__(self):
        self.finish()


cdef void *work(void *state) noexcept nogil:
    cdef Task *task = <Task *>state
    task.is_done = task.call(task.state)
    return NULL
