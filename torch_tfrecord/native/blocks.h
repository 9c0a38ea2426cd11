/* A cache of freed memory blocks, reused for allocations of similar size.
 *
 * The system clears fresh memory page by page, and it is in no CPU cache: for batches of numbers, that
 * costs as much as parsing them. Thread-safe without a lock: a place is emptied and filled with one atomic
 * exchange each. */
#ifndef TORCH_TFRECORD_BLOCKS_H
#define TORCH_TFRECORD_BLOCKS_H

#include <stdint.h>
#include <stdlib.h>

#define BLOCKS_PLACES 64 /* fast batches are made several at a time */
#define BLOCKS_KEPT_BYTES ((size_t)384 << 20) /* of all that are kept: eight threads' large batches come and go together */
#define BLOCKS_HEADER 64                      /* so that data is aligned as the widest instructions like it */

typedef struct {
    size_t capacity;
} block_header;

static block_header *blocks_places[BLOCKS_PLACES];
static size_t blocks_kept;

static inline block_header *blocks_take(int place) {
    block_header *block = __atomic_exchange_n(&blocks_places[place], NULL, __ATOMIC_ACQ_REL);
    if (block) __atomic_fetch_sub(&blocks_kept, block->capacity, __ATOMIC_RELAXED);
    return block;
}

/* False if the place is taken. */
static inline int blocks_put(int place, block_header *block) {
    block_header *none = NULL;
    __atomic_fetch_add(&blocks_kept, block->capacity, __ATOMIC_RELAXED);
    if (__atomic_compare_exchange_n(&blocks_places[place], &none, block, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return 1;
    __atomic_fetch_sub(&blocks_kept, block->capacity, __ATOMIC_RELAXED);
    return 0;
}

static inline uint8_t *block_data(block_header *block) {
    return (uint8_t *)block + BLOCKS_HEADER;
}

/* An uninitialised block of at least that many bytes; NULL if there is no memory. */
static block_header *block_new(size_t size) {
    block_header *block;
    for (int place = 0; place < BLOCKS_PLACES; place++) {
        if (!__atomic_load_n(&blocks_places[place], __ATOMIC_RELAXED)) continue;
        block = blocks_take(place);
        if (!block) continue;
        if (block->capacity >= size && block->capacity / 2 <= size) return block;
        if (!blocks_put(place, block)) free(block);
    }
    size_t capacity = (size + 4095) / 4096 * 4096; /* sizes of a few bytes more or less share blocks */
    if (capacity < size || capacity > SIZE_MAX / 2) return NULL;
    block = (block_header *)aligned_alloc(BLOCKS_HEADER, BLOCKS_HEADER + capacity);
    if (block) block->capacity = capacity;
    return block;
}

/* Keep a block for reuse; if too much is kept, older blocks are freed. */
static void block_give_back(block_header *block) {
    for (int place = 0; place < BLOCKS_PLACES; place++)
        if (!__atomic_load_n(&blocks_places[place], __ATOMIC_RELAXED) &&
            __atomic_load_n(&blocks_kept, __ATOMIC_RELAXED) + block->capacity <= BLOCKS_KEPT_BYTES &&
            blocks_put(place, block))
            return;
    for (int place = 0; place < BLOCKS_PLACES; place++) { /* of other sizes, most likely: nobody took them */
        block_header *old = blocks_take(place);
        if (old) free(old);
    }
    if (block->capacity > BLOCKS_KEPT_BYTES || !blocks_put(0, block)) free(block);
}

#endif
