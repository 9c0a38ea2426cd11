/* Pieces of memory that several processes map: who holds one is counted in front of its data.
 *
 * A process that received a piece, or fills it, counts in `holders`, and lets go when its last view is gone. A process
 * forked from one that holds pieces inherits them, but may end without letting go: it is listed by its pid, and counts
 * as long as it lives. */
#ifndef TORCH_TFRECORD_PIECES_H
#define TORCH_TFRECORD_PIECES_H

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/types.h>
#include <unistd.h>

#define PIECES_HEADER 256 /* so that data is aligned as the widest instructions like it */
#define PIECES_HEIRS (PIECES_HEADER / 4 - 1)

typedef struct {
    uint32_t holders;
    int32_t heirs[PIECES_HEIRS]; /* pids of forked processes; 0 is free */
} piece_header;

/* A piece that this process holds. */
typedef struct piece_link {
    struct piece_link *previous, *next;
    piece_header *header;
    pid_t holder; /* a process that was forked without our handlers does not count */
    int heir;     /* its place in `heirs`; -1 if it counts in `holders` */
} piece_link;

static piece_link *pieces_held;
static int pieces_locked;

static void pieces_lock(void) {
    while (__atomic_exchange_n(&pieces_locked, 1, __ATOMIC_ACQUIRE)) sched_yield();
}

static void pieces_unlock(void) { __atomic_store_n(&pieces_locked, 0, __ATOMIC_RELEASE); }

static void piece_add(piece_header *header) { __atomic_fetch_add(&header->holders, 1, __ATOMIC_ACQ_REL); }

static void piece_subtract(piece_header *header) { __atomic_fetch_sub(&header->holders, 1, __ATOMIC_ACQ_REL); }

/* Start a piece that nobody holds, with one holder. */
static void piece_begin(piece_header *header) { __atomic_store_n(&header->holders, 1, __ATOMIC_RELEASE); }

static uint32_t piece_holders(piece_header *header) {
    uint32_t count = __atomic_load_n(&header->holders, __ATOMIC_ACQUIRE);
    for (int heir = 0; heir < PIECES_HEIRS; heir++) {
        int32_t pid = __atomic_load_n(&header->heirs[heir], __ATOMIC_ACQUIRE);
        if (!pid) continue;
        if (kill(pid, 0) == 0 || errno != ESRCH)
            count++;
        else
            __atomic_compare_exchange_n(&header->heirs[heir], &pid, 0, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    }
    return count;
}

/* Take over one count of a piece. */
static void piece_take(piece_link *link, piece_header *header) {
    link->header = header;
    link->holder = getpid();
    link->heir = -1;
    pieces_lock();
    link->previous = NULL;
    link->next = pieces_held;
    if (pieces_held) pieces_held->previous = link;
    pieces_held = link;
    pieces_unlock();
}

static void piece_let_go(piece_link *link) {
    pieces_lock();
    if (link->next) link->next->previous = link->previous;
    if (link->previous)
        link->previous->next = link->next;
    else
        pieces_held = link->next;
    pieces_unlock();
    if (link->holder != getpid()) return;
    if (link->heir >= 0)
        __atomic_store_n(&link->header->heirs[link->heir], 0, __ATOMIC_RELEASE);
    else
        piece_subtract(link->header);
}

/* At a fork each piece gets one count more, which the new process takes over: the other may let go at once. */
static void pieces_before_fork(void) {
    pieces_lock();
    for (piece_link *link = pieces_held; link; link = link->next) piece_add(link->header);
}

static void pieces_in_child(void) {
    pid_t pid = getpid();
    for (piece_link *link = pieces_held; link; link = link->next) {
        link->holder = pid;
        link->heir = -1; /* if there is no place: the count stays with it */
        for (int heir = 0; heir < PIECES_HEIRS; heir++) {
            int32_t nobody = 0;
            if (!__atomic_compare_exchange_n(
                    &link->header->heirs[heir], &nobody, pid, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
                continue;
            link->heir = heir;
            piece_subtract(link->header);
            break;
        }
    }
    pieces_unlock();
}

static int pieces_follow_forks(void) { return pthread_atfork(pieces_before_fork, pieces_unlock, pieces_in_child); }

#endif
