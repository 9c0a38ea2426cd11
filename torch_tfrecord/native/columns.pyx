# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Parse serialized tf.train.Examples and SequenceExamples into columns, for a plan of the wanted keys, without the GIL.

Only the canonical encoding of an Example is read here, which every writer uses: known fields with minimal tags, in the
order key, value; each key once in a record; one list in a feature. The whole record is checked, also skipped parts.
For a record in another form, or one that does not fit the plan, the caller is asked once, and either returns its
canonical form from protobuf's parser or raises the error. So nothing here has to be lenient.

Records of a file mostly have the same keys in the same order. Each entry is therefore compared, eight bytes at a time,
with the entry in the same place of the previous record, except for its lengths; these follow from one another if a
feature is one packed chunk, so one more comparison checks five tags and lengths at once.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc
from cpython.ref cimport Py_INCREF
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from torch_tfrecord.native.jobs cimport Job

cdef extern from *:
    """
    static _Thread_local int tfr_hides;
    """
    bint tfr_hides

cdef extern from "Python.h":
    void PyObject_GC_Track(void *value)
    void PyObject_GC_UnTrack(void *value)
    bint PyObject_GC_IsTracked(object value)

cdef extern from "varints.h" nogil:
    ctypedef bint (*tfr_decoder)(const uint8_t *p, const uint8_t *end, const uint8_t *limit, int64_t *out)
    tfr_decoder tfr_decoder_of(int level)
    uint64_t tfr_load64(const uint8_t *p)
    bint tfr_varint_of_word(uint64_t word, int64_t length, int64_t *value)
    bint tfr_varint_of_bytes(const uint8_t *p, int64_t length, int64_t *value)
    int64_t tfr_count_varints(const uint8_t *p, int64_t n)
    bint tfr_are_varints(const uint8_t *p, int64_t n)
    bint tfr_is_utf8(const uint8_t *p, int64_t n)
    void tfr_prefetch "__builtin_prefetch"(const void *p)

__all__ = ["Memory", "ParseJob", "Plan", "SequencePlan", "copies", "hide", "show", "string_at", "strings_in", "texts", "varints"]

# The kinds of a Feature's list, by their field numbers.
cdef enum:
    BYTES = 1
    FLOAT = 2
    INT64 = 3

# Tags: the field number, shifted by three, and the wire type (0 varint, 2 with a length, 5 four bytes).
cdef enum:
    FIELD_1_VARINT = 0x08
    FIELD_1 = 0x0A
    FIELD_1_FIXED32 = 0x0D
    FIELD_2 = 0x12

cdef enum:
    # Protobuf's limit for messages and values.
    MAX_LENGTH = 0x7FFFFFFF
    # Below, releasing the GIL costs more than the work.
    SMALL = 1 << 14
    # From here on, strings are copied without it, too.
    LARGE = 1 << 20
    # How many keys are guessed from the previous record, and the maximum eight-byte words of a guess.
    MAX_GUESSES = 256
    MAX_WORDS = 6

cdef enum:
    NOT_ASKED = -1
    NOT_UTF8 = -2

cdef enum:
    # Values of `missing`.
    LACKS_KEY = 1
    LACKS_KIND = 2

cdef tfr_decoder decode_varints = tfr_decoder_of(0)
for _level in (1, 2):
    if tfr_decoder_of(_level) != NULL:
        decode_varints = tfr_decoder_of(_level)


cdef struct Slot:
    # One key of the plan.
    const uint8_t *key
    int64_t key_length
    int kind
    int64_t count  # values in each record; -1 for any number
    int64_t itemsize
    bint is_required


cdef struct Column:
    # The state of a slot's column during one call.
    uint8_t *data
    int64_t size  # values stored; dense columns do not count them
    int64_t capacity
    int64_t *offsets  # of a slot of any count: where each record's values begin
    uint8_t *missing
    int64_t last_row  # that had the key
    int64_t num_missing


cdef struct Guess:
    # An entry of the previous record.
    int slot
    int kind
    int64_t key_length
    const uint8_t *key
    int num_words  # 0: the key is too long to compare by words
    int64_t span  # bytes that the comparison reads
    uint64_t chain  # the six bytes from the value's tag to the chunk's length, for an empty chunk
    uint64_t words[MAX_WORDS]
    uint64_t masks[MAX_WORDS]


cdef struct Call:
    # One call of parse.
    const uint8_t *buffer
    const uint8_t *limit
    int64_t shift  # of spans: where the buffer begins among all bytes
    const Slot *slots
    int num_slots
    const int *table
    uint64_t table_mask
    Column *columns
    Guess *guesses
    int num_guesses
    int most_guesses  # none for a single record
    int64_t row
    int num_settled  # slots that this record had


cdef class Memory:
    """Writable memory that NumPy and torch access through the buffer protocol."""

    cdef uint8_t *data
    cdef Py_ssize_t size

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 0, flags)

    def __dealloc__(self):
        free(self.data)


cdef class Plan:
    """The keys to read. Immutable, so several threads may use one plan at once.

    Args:
        slots: One tuple per column: (key in UTF-8, field number of the list's kind, values in each record or -1 for any
            number, whether every record must have it); no key twice; among those with a number, floats last, so that
            all are aligned.

    Raises:
        ValueError: A key occurs twice, a kind is unknown, or the order is wrong.
    """

    cdef list keys
    cdef Slot *slots
    cdef int num_slots
    cdef int *table
    cdef uint64_t table_mask
    cdef object row_bytes  # of all dense columns; of Python, since it may be large
    cdef int num_any

    def __cinit__(self, slots):
        cdef int i
        cdef uint64_t size = 4
        cdef uint64_t place
        cdef bint has_floats = False
        slots = tuple(slots)  # a list may be changed meanwhile, by another thread or by a key's __bytes__
        self.keys = [bytes(slot[0]) for slot in slots]
        if len(set(self.keys)) < len(self.keys):
            raise ValueError("a key occurs twice")
        self.num_slots = len(self.keys)
        self.row_bytes, self.num_any = 0, 0
        while size < <uint64_t>(2 * self.num_slots):
            size *= 2
        self.table_mask = size - 1
        self.slots = <Slot *>PyMem_Malloc(max(self.num_slots, 1) * sizeof(Slot))
        self.table = <int *>PyMem_Malloc(size * sizeof(int))
        if self.slots == NULL or self.table == NULL:
            raise MemoryError
        for place in range(size):
            self.table[place] = NOT_ASKED
        for i, (_, kind, count, is_required) in enumerate(slots):
            key = self.keys[i]
            self.slots[i].key = <const uint8_t *><const char *>key
            self.slots[i].key_length = len(key)
            self.slots[i].kind = kind
            self.slots[i].count = count
            if kind not in (BYTES, FLOAT, INT64) or count < -1:
                raise ValueError(f"expected a kind from 1 to 3 and a count of at least -1, got {kind}, {count}")
            if kind != FLOAT and count >= 0 and has_floats:
                raise ValueError("float columns of a number must come last")
            has_floats |= kind == FLOAT and count >= 0
            self.slots[i].itemsize = 16 if kind == BYTES else 4 if kind == FLOAT else 8
            self.slots[i].is_required = is_required
            self.num_any += count < 0
            self.row_bytes += max(count, 0) * self.slots[i].itemsize
            place = hash_of(self.slots[i].key, self.slots[i].key_length) & self.table_mask
            while self.table[place] != NOT_ASKED:
                place = (place + 1) & self.table_mask
            self.table[place] = i

    def __dealloc__(self):
        PyMem_Free(self.slots)
        PyMem_Free(self.table)

    cdef void _open(self, Call *call, void *columns, void *guesses, int most_guesses):
        call.slots, call.num_slots = self.slots, self.num_slots
        call.table, call.table_mask = self.table, self.table_mask
        call.columns, call.guesses = <Column *>columns, <Guess *>guesses
        call.num_guesses, call.most_guesses = 0, most_guesses
        call.row = call.shift = 0

    def parse_one(self, const uint8_t[::1] record not None):
        """Parse a single record, faster than `parse`.

        Returns:
            None if it is not canonical, does not fit, or a row of the dense columns is above 64 MiB. Else the dense
            columns; a list of the values of the slots of any count, each a Memory; and why the record lacks a slot, one
            byte per slot as in `missing`, None if it lacks none.
        """
        cdef Call call
        cdef Column *columns
        cdef int64_t *offsets
        cdef uint8_t *missing
        cdef int i
        cdef bint is_read, has_missing = False
        cdef Memory block = Memory()
        cdef list memories = []
        if self.row_bytes > 1 << 26:
            return None
        block.size = self.row_bytes
        block.data = <uint8_t *>malloc(max(block.size, 1))
        columns = <Column *>PyMem_Malloc(max(self.num_slots, 1) * (sizeof(Column) + 2 * sizeof(int64_t) + 1))
        if columns == NULL or block.data == NULL:
            PyMem_Free(columns)
            raise MemoryError
        offsets = <int64_t *>(columns + self.num_slots)
        missing = <uint8_t *>(offsets + 2 * self.num_slots)
        memset(missing, 0, self.num_slots)
        self._begin(columns, 1, block.data, offsets, missing)
        self._open(&call, columns, NULL, 0)
        call.buffer = &record[0] if record.shape[0] else NULL
        call.limit = call.buffer + record.shape[0]
        if record.shape[0] < SMALL:
            is_read = parse_record(&call, call.buffer, call.limit)
        else:
            with nogil:
                is_read = parse_record(&call, call.buffer, call.limit)
        for i in range(self.num_slots):
            has_missing |= missing[i] != 0
            if self.slots[i].count < 0:
                memories.append(owner(columns[i].data, columns[i].size * self.slots[i].itemsize))
        lacking = PyBytes_FromStringAndSize(<const char *>missing, self.num_slots) if has_missing else None
        PyMem_Free(columns)
        return (block, memories, lacking) if is_read else None

    cdef int _check(
        self, const uint8_t[::1] buffer, const int64_t[::1] starts, const int64_t[::1] lengths, uint8_t[::1] block,
        int64_t[:, ::1] offsets, uint8_t[:, ::1] missing,
    ) except -1:
        cdef int64_t num_rows = starts.shape[0]
        check_records(buffer.shape[0], starts, lengths)
        if block.shape[0] != self.row_bytes * num_rows:
            raise ValueError(f"expected a block of {self.row_bytes * num_rows} bytes, got {block.shape[0]}")
        if block.shape[0] and <size_t>&block[0] & 7:
            raise ValueError("expected a block at an address that eight divides")
        if (offsets.shape[0] != self.num_any or offsets.shape[1] != num_rows + 1 or missing.shape[0] != self.num_slots
                or missing.shape[1] != num_rows):
            raise ValueError("the shape of offsets or missing does not fit the plan and the records")
        return 0

    cdef void _begin(
        self, Column *columns, int64_t num_rows, uint8_t *block, int64_t *offsets, uint8_t *missing
    ) noexcept:
        cdef int64_t place = 0, any_place = 0
        cdef int i
        for i in range(self.num_slots):
            memset(&columns[i], 0, sizeof(Column))
            columns[i].last_row = -1
            columns[i].missing = missing + i * num_rows if missing != NULL else NULL
            if self.slots[i].count < 0:
                columns[i].offsets = offsets + any_place * (num_rows + 1)
                columns[i].offsets[0] = 0
                any_place += 1
            elif block != NULL:
                columns[i].data = block + place
                place += self.slots[i].count * num_rows * self.slots[i].itemsize


cdef struct Rows:
    # The records of one batch.
    Call call
    const int64_t *starts
    const int64_t *lengths
    int64_t count


cdef bint parse_rows(void *state) noexcept nogil:
    cdef Rows *rows = <Rows *>state
    cdef Call *call = &rows.call
    cdef const uint8_t *start
    while call.row < rows.count:
        start = call.buffer + rows.starts[call.row]
        if not parse_record(call, start, start + rows.lengths[call.row]):
            roll_back(call)
            return False
        call.row += 1
    return True


cdef class ParseJob(Job):
    """Parses N records into columns, as far as they are canonical and fit the plan; `finish` does the rest.

    Args:
        plan: What to read.
        buffer: Where the records are, once the job runs.
        starts: [N], first byte of each.
        lengths: [N].
        block: Receives the dense columns, concatenated in the order of the slots: [N, count] of int64 (8 bytes),
            float32 (4), or for strings pairs of int64 (16): first byte in the buffer, number of bytes. Rows of records
            that lack the key are zeros.
        offsets: [slots of any count, N + 1], receives the row splits of the records.
        missing: [slots, N], zeros; receives 1 if a record lacks the key, 2 if the kind of its list is not set.

    Raises:
        ValueError: A record is outside the buffer, or arrays have the wrong size.
    """

    cdef Plan plan
    cdef Rows rows
    cdef const uint8_t[::1] buffer
    cdef const int64_t[::1] starts
    cdef const int64_t[::1] lengths
    cdef uint8_t[::1] block
    cdef int64_t[:, ::1] offsets
    cdef uint8_t[:, ::1] missing

    def __cinit__(
        self,
        Plan plan not None,
        const uint8_t[::1] buffer not None,
        const int64_t[::1] starts not None,
        const int64_t[::1] lengths not None,
        uint8_t[::1] block not None,
        int64_t[:, ::1] offsets not None,
        uint8_t[:, ::1] missing not None,
    ):
        cdef Call *call = &self.rows.call
        plan._check(buffer, starts, lengths, block, offsets, missing)
        self.plan, self.buffer, self.starts, self.lengths = plan, buffer, starts, lengths
        self.block, self.offsets, self.missing = block, offsets, missing
        self.rows.count = starts.shape[0]
        plan._open(
            call,
            PyMem_Calloc(max(plan.num_slots, 1), sizeof(Column)),
            PyMem_Malloc(MAX_GUESSES * sizeof(Guess)),
            MAX_GUESSES if self.rows.count > 1 else 0,
        )
        if call.columns == NULL or call.guesses == NULL:
            call.num_slots = 0
            raise MemoryError
        plan._begin(
            call.columns,
            self.rows.count,
            &block[0] if block.shape[0] else NULL,
            &offsets[0, 0] if plan.num_any else NULL,
            &missing[0, 0] if self.rows.count and plan.num_slots else NULL,
        )
        if self.rows.count:
            self.rows.starts, self.rows.lengths = &starts[0], &lengths[0]
        call.buffer = &buffer[0] if buffer.shape[0] else NULL
        call.limit = call.buffer + buffer.shape[0]
        self.call, self.state = parse_rows, &self.rows

    def __dealloc__(self):
        cdef int i
        for i in range(self.rows.call.num_slots):
            if self.rows.call.columns[i].offsets != NULL:
                free(self.rows.call.columns[i].data)
        PyMem_Free(self.rows.call.columns)
        PyMem_Free(self.rows.call.guesses)

    def finish(self, canonical=None):
        """Parse what is left; to be called once.

        Args:
            canonical: Called with the number of a record that is not canonical or does not fit; returns its canonical
                form, bytes, which are parsed instead. None: there is no such record.

        Returns:
            None if a record does not fit, even in its canonical form. Else the values of the slots of any count, a
            list of Memory; for every slot whether a record lacks it, a list of bool, or None if no record lacks any;
            and the concatenated canonical forms: spans address them as if they followed the buffer.
        """
        cdef Call *call = &self.rows.call
        cdef Column *column
        cdef const uint8_t *buffer = call.buffer
        cdef const uint8_t *limit = call.limit
        cdef bint is_done = call.row == self.rows.count
        cdef bint has_missing = False
        cdef list memories = [], extras = []
        cdef bytes extra
        cdef int i
        while not is_done:
            with nogil:
                is_done = parse_rows(&self.rows)
            if is_done:
                break
            if canonical is None:
                return None
            extra = canonical(call.row)
            call.buffer = <const uint8_t *><const char *>extra
            call.limit = call.buffer + len(extra)
            call.shift = self.buffer.shape[0] + sum(map(len, extras))
            extras.append(extra)
            if not parse_record(call, call.buffer, call.limit):
                return None
            call.row += 1
            call.buffer, call.limit, call.shift = buffer, limit, 0
        for i in range(call.num_slots):
            column = &call.columns[i]
            has_missing |= column.num_missing > 0
            if column.offsets != NULL:
                memories.append(owner(column.data, column.size * call.slots[i].itemsize))
                column.data = NULL
        lacking = [call.columns[i].num_missing > 0 for i in range(call.num_slots)] if has_missing else None
        return memories, lacking, extras


cdef struct Steps:
    # The steps of one key's feature lists during one call; their values are in the slot's Column.
    int64_t *offsets  # where each step's values begin and end
    int64_t size
    int64_t capacity
    int64_t *borders  # where each record's steps begin and end


cdef class SequencePlan:
    """The feature lists to read from SequenceExamples. Immutable, like a Plan.

    Args:
        slots: One tuple per key: (key in UTF-8, field number of the list's kind).

    Raises:
        ValueError: As a Plan.
    """

    cdef Plan lists
    cdef Plan context  # asks for nothing, checks all

    def __cinit__(self, slots):
        self.lists = Plan([(key, kind, -1, False) for key, kind in slots])
        self.context = Plan([])

    def parse(
        self,
        const uint8_t[::1] buffer not None,
        const int64_t[::1] starts not None,
        const int64_t[::1] lengths not None,
        int64_t[:, ::1] contexts not None,
        int64_t[:, ::1] borders not None,
        uint8_t[:, ::1] missing not None,
        canonical=None,
    ):
        """Parse the feature lists of N records into columns.

        Args:
            buffer: Where the records are.
            starts: [N], first byte of each.
            lengths: [N].
            contexts: [N, 2], receives the location of each record's context: first byte, number of bytes. With its tag
                and length, as stored in the record, it is an Example with the same features.
            borders: [slots, N + 1], receives the row splits of the records' steps.
            missing: [slots, N], zeros; receives 1 if a record lacks the feature list.
            canonical: See Plan.

        Returns:
            None as for a Plan. Else for every slot the values of all steps, and their row splits, int64 [steps + 1],
            both Memory; and the canonical forms, as for a Plan.

        Raises:
            ValueError: As a Plan.
        """
        cdef int64_t num_rows = starts.shape[0]
        cdef int num_slots = self.lists.num_slots
        cdef int i, most_guesses
        cdef Call lists, context
        cdef Steps *steps
        cdef bint is_plain = True
        cdef list extras = [], parts = []
        cdef bytes extra
        cdef Memory columns, list_guesses, all_steps, guesses
        check_records(buffer.shape[0], starts, lengths)
        if tuple(contexts.shape)[:2] != (num_rows, 2) or tuple(missing.shape)[:2] != (num_slots, num_rows):
            raise ValueError("the shape of contexts or missing does not fit the plan and the records")
        if tuple(borders.shape)[:2] != (num_slots, num_rows + 1):
            raise ValueError("the shape of borders does not fit the plan and the records")
        # Freed with these, however the call ends.
        most_guesses = MAX_GUESSES if num_rows > 1 else 0
        columns, list_guesses = room(num_slots * sizeof(Column)), room(most_guesses * sizeof(Guess))
        all_steps, guesses = room(num_slots * sizeof(Steps)), room(most_guesses * sizeof(Guess))
        self.lists._open(&lists, columns.data, list_guesses.data, most_guesses)
        self.context._open(&context, guesses.data, guesses.data, most_guesses)  # it has no columns
        steps = <Steps *>all_steps.data
        for i in range(num_slots):
            memset(&lists.columns[i], 0, sizeof(Column))
            memset(&steps[i], 0, sizeof(Steps))
            lists.columns[i].last_row = -1
            lists.columns[i].missing = &missing[i, 0] if num_rows else NULL
            steps[i].borders = &borders[i, 0]
            steps[i].borders[0] = 0
        try:
            for i in range(num_slots):
                if not grow_steps(&steps[i]):
                    raise MemoryError
                steps[i].offsets[0] = 0
            set_bytes(&lists, &context, buffer, 0)
            while lists.row < num_rows:
                with nogil:
                    while lists.row < num_rows and parse_sequence(
                        &lists, &context, steps, starts[lists.row], lengths[lists.row], &contexts[lists.row, 0]
                    ):
                        lists.row += 1
                if lists.row < num_rows:
                    forget_steps(&lists, steps)
                    if canonical is None:
                        return None
                    extra = canonical(lists.row)
                    set_bytes(&lists, &context, extra, buffer.shape[0] + sum(map(len, extras)))
                    extras.append(extra)
                    if not parse_sequence(&lists, &context, steps, 0, len(extra), &contexts[lists.row, 0]):
                        return None
                    lists.row += 1
                    set_bytes(&lists, &context, buffer, 0)
        finally:
            for i in range(num_slots):
                values = owner(lists.columns[i].data, lists.columns[i].size * self.lists.slots[i].itemsize)
                parts.append((values, owner(<uint8_t *>steps[i].offsets, (steps[i].size + 1) * sizeof(int64_t))))
        return parts, extras


cdef void set_bytes(Call *lists, Call *context, const uint8_t[::1] buffer, int64_t shift):
    # The buffer that is parsed next.
    lists.buffer = &buffer[0] if buffer.shape[0] else NULL
    lists.limit = lists.buffer + buffer.shape[0]
    lists.shift = shift
    context.buffer, context.limit = lists.buffer, lists.limit


cdef Memory room(int64_t size):
    cdef uint8_t *data = <uint8_t *>malloc(max(size, 1))
    if data == NULL:
        raise MemoryError
    return owner(data, size)


cdef Memory owner(uint8_t *data, int64_t size):
    cdef Memory memory = Memory()
    memory.data, memory.size = data, size
    return memory


cdef uint64_t hash_of(const uint8_t *key, int64_t length) noexcept nogil:
    # FNV-1a.
    cdef uint64_t value = 0xCBF29CE484222325
    cdef int64_t i
    for i in range(length):
        value = (value ^ key[i]) * <uint64_t>0x100000001B3
    return value


cdef int find_slot(const Call *call, const uint8_t *key, int64_t length) noexcept nogil:
    cdef uint64_t place = hash_of(key, length) & call.table_mask
    cdef int slot = call.table[place]
    while slot != NOT_ASKED:
        if call.slots[slot].key_length == length and memcmp(call.slots[slot].key, key, length) == 0:
            return slot
        place = (place + 1) & call.table_mask
        slot = call.table[place]
    return NOT_ASKED


cdef inline int64_t read_length(const uint8_t **p, const uint8_t *end) noexcept nogil:
    # A minimally encoded length that fits up to the end, else -1.
    cdef const uint8_t *at = p[0]
    cdef int64_t length = 0
    cdef int shift = 0
    cdef uint8_t byte = 0x80
    if at < end and at[0] < 0x80:  # most often
        p[0] = at + 1
        return at[0] if at[0] < end - at else -1
    while byte >= 0x80:
        if at >= end or shift > 28:
            return -1
        byte = at[0]
        at += 1
        length |= <int64_t>(byte & 0x7F) << shift
        shift += 7
    if (byte == 0 and shift > 7) or length > MAX_LENGTH:
        return -1
    if length > end - at:
        return -1
    p[0] = at
    return length


cdef void roll_back(Call *call) noexcept nogil:
    # Undo what was parsed of this row's record.
    cdef Column *column
    cdef int slot
    call.num_settled = 0
    for slot in range(call.num_slots):
        column = &call.columns[slot]
        if column.offsets != NULL:
            column.size = column.offsets[call.row]
        if column.last_row == call.row:
            column.last_row = -1
        if column.missing[call.row]:
            column.missing[call.row] = 0
            column.num_missing -= 1


cdef bint parse_record(Call *call, const uint8_t *p, const uint8_t *end) noexcept nogil:
    # Example: field 1, Features: field 1, one entry per key.
    cdef const uint8_t *stop
    cdef int64_t length
    cdef int place = 0
    call.num_settled = 0
    if end - p > MAX_LENGTH:
        return False
    while p < end:
        if p[0] != FIELD_1:
            return False
        p += 1
        length = read_length(&p, end)
        if length < 0:
            return False
        stop = p + length
        while p < stop:
            p = parse_guessed(call, p, stop, place)
            if p == NULL:
                return False
            place += 1
    return finish_record(call)


cdef bint finish_record(Call *call) noexcept nogil:
    cdef Column *column
    cdef int slot
    if call.num_settled < call.num_slots:
        for slot in range(call.num_slots):
            if call.columns[slot].last_row != call.row and not settle_missing(call, slot, LACKS_KEY):
                return False
    for slot in range(call.num_slots):
        column = &call.columns[slot]
        if column.offsets != NULL:
            column.offsets[call.row + 1] = column.size
    return True


cdef bint settle(Call *call, int slot) noexcept nogil:
    # The record has the key; only once, or the messages would have to be merged.
    if call.columns[slot].last_row == call.row:
        return False
    call.columns[slot].last_row = call.row
    call.num_settled += 1
    return True


cdef bint settle_missing(Call *call, int slot, int why) noexcept nogil:
    # The record lacks the key, or its list.
    cdef const Slot *wanted = &call.slots[slot]
    cdef Column *column = &call.columns[slot]
    if wanted.is_required or not settle(call, slot):
        return False
    column.missing[call.row] = why
    column.num_missing += 1
    if wanted.count > 0:
        memset(column.data + call.row * wanted.count * wanted.itemsize, 0, wanted.count * wanted.itemsize)
    return True


cdef const uint8_t *parse_guessed(Call *call, const uint8_t *p, const uint8_t *end, int place) noexcept nogil:
    # Parse an entry that has the key of the guess, and one packed chunk, both in less than 128 bytes.
    cdef const Guess *guess
    cdef uint64_t difference = 0
    cdef int64_t size
    cdef const uint8_t *value
    cdef int i
    if place >= call.num_guesses:
        return parse_entry(call, p, end, place)
    guess = &call.guesses[place]
    if guess.num_words == 0 or call.limit - p < guess.span:
        return parse_entry(call, p, end, place)
    for i in range(guess.num_words):
        difference |= (tfr_load64(p + 8 * i) ^ guess.words[i]) & guess.masks[i]
    value = p + 4 + guess.key_length
    size = p[1] - guess.key_length - 8  # of the chunk, where each length follows from the entry's
    if (
        difference
        or p[1] >= 0x80
        or size < 0
        or end - p < p[1] + 2
        or (tfr_load64(value) & <uint64_t>0xFFFFFFFFFFFF) != guess.chain + size * <uint64_t>0x10001000100
        or not take_chunk(call, guess, value + 6, size)
    ):
        return parse_entry(call, p, end, place)
    return value + 6 + size


cdef inline bint take_chunk(Call *call, const Guess *guess, const uint8_t *p, int64_t size) noexcept nogil:
    # False leaves everything unchanged, for parse_entry to try again.
    cdef int slot = guess.slot
    cdef const Slot *wanted
    cdef Column *column
    cdef int64_t number
    if slot == NOT_ASKED:
        return is_chunk(guess.kind, p, size)
    wanted = &call.slots[slot]
    column = &call.columns[slot]
    if wanted.count != 1 or column.last_row == call.row:
        return False
    if wanted.kind == INT64:
        if size < 1 or size > 8 or call.limit - p < 8:
            if not tfr_varint_of_bytes(p, size, &number):
                return False
        elif not tfr_varint_of_word(tfr_load64(p), size, &number):
            return False
        (<int64_t *>column.data)[call.row] = number
    elif wanted.kind == FLOAT:
        if size != 4:
            return False
        memcpy(column.data + 4 * call.row, p, 4)
    else:
        (<int64_t *>column.data)[2 * call.row] = p - call.buffer + call.shift
        (<int64_t *>column.data)[2 * call.row + 1] = size
    column.last_row = call.row
    call.num_settled += 1
    return True


cdef bint is_chunk(int kind, const uint8_t *p, int64_t length) noexcept nogil:
    # Check a chunk that is not wanted.
    if kind == INT64:
        return tfr_are_varints(p, length)
    return kind == BYTES or (kind == FLOAT and length & 3 == 0)


cdef const uint8_t *parse_entry(Call *call, const uint8_t *p, const uint8_t *end, int place) noexcept nogil:
    # An entry of Features. Returns its end, or NULL if it is not canonical.
    cdef const uint8_t *key = NULL
    cdef int64_t key_length = 0
    cdef int slot
    if not open_entry(&p, &end, &key, &key_length):
        return NULL
    slot = slot_of(call, key, key_length, place, p[0] if p < end else 0)
    if slot == NOT_UTF8 or not parse_feature(call, slot, p, end):
        return NULL
    return end


cdef bint open_entry(
    const uint8_t **start, const uint8_t **stop, const uint8_t **key, int64_t *key_length
) noexcept nogil:
    # An entry of a map: its key, then its value; start and stop become the bounds of the value.
    cdef const uint8_t *p = start[0]
    cdef const uint8_t *end = stop[0]
    cdef int64_t length
    if p[0] != FIELD_1:
        return False
    p += 1
    length = read_length(&p, end)
    if length < 0:
        return False
    end = p + length
    if p == end or p[0] != FIELD_1:
        return False
    p += 1
    key_length[0] = read_length(&p, end)
    if key_length[0] < 0:
        return False
    key[0] = p
    p += key_length[0]
    if p == end or p[0] != FIELD_2:
        return False
    p += 1
    length = read_length(&p, end)
    if length < 0 or p + length != end:
        return False
    start[0], stop[0] = p, end
    return True


cdef int slot_of(Call *call, const uint8_t *key, int64_t length, int place, uint8_t kind_tag) noexcept nogil:
    # The slot of a key, which becomes the guess for the next record; NOT_UTF8 if the key is not UTF-8.
    cdef int slot
    cdef Guess *guess
    if place < call.num_guesses:
        guess = &call.guesses[place]
        if guess.key_length == length and memcmp(guess.key, key, length) == 0:
            expect_kind(call, guess, kind_tag)
            return guess.slot
    slot = find_slot(call, key, length)
    if slot == NOT_ASKED and not tfr_is_utf8(key, length):
        return NOT_UTF8
    if place <= call.num_guesses and place < call.most_guesses:
        learn(&call.guesses[place], slot, key, length)
        expect_kind(call, &call.guesses[place], kind_tag)
        if place == call.num_guesses:
            call.num_guesses += 1
    return slot


cdef void expect_kind(Call *call, Guess *guess, uint8_t kind_tag) noexcept nogil:
    # A wanted list has the plan's kind; a skipped one the kind it had in the previous record.
    guess.kind = kind_tag >> 3 if guess.slot == NOT_ASKED else call.slots[guess.slot].kind
    guess.chain = (
        FIELD_2 | 4 << 8 | <uint64_t>(guess.kind << 3 | 2) << 16 | <uint64_t>2 << 24 | <uint64_t>FIELD_1 << 32
    )


cdef void learn(Guess *guess, int slot, const uint8_t *key, int64_t length) noexcept nogil:
    cdef int64_t header = length + 5  # tag, length, tag, length, key, tag
    cdef uint8_t *words = <uint8_t *>guess.words
    cdef uint8_t *masks = <uint8_t *>guess.masks
    guess.slot, guess.key, guess.key_length = slot, key, length
    guess.num_words = 0
    if header > 8 * MAX_WORDS:
        return
    guess.num_words = <int>((header + 7) // 8)
    guess.span = max(8 * guess.num_words, header + 7)
    memset(guess.words, 0, sizeof(guess.words))
    memset(guess.masks, 0, sizeof(guess.masks))
    words[0], words[2], words[3] = FIELD_1, FIELD_1, <uint8_t>length
    memcpy(words + 4, key, length)
    words[header - 1] = FIELD_2
    memset(masks, 0xFF, header)
    masks[1] = 0  # the entry's length may differ


cdef bint parse_feature(Call *call, int slot, const uint8_t *p, const uint8_t *end) noexcept nogil:
    # A Feature: nothing, or one list.
    cdef int kind = open_feature(&p, end)
    if kind <= 0:
        return kind == 0 and (slot == NOT_ASKED or settle_missing(call, slot, LACKS_KIND))
    if slot == NOT_ASKED:
        return skip_list(kind, p, end)
    if kind != call.slots[slot].kind or not settle(call, slot):
        return False
    return parse_list(call, slot, p, end)


cdef int open_feature(const uint8_t **start, const uint8_t *end) noexcept nogil:
    # The kind of a Feature's list, to which start moves; 0 if it has none, -1 if it is not canonical.
    cdef const uint8_t *p = start[0]
    cdef int kind
    cdef int64_t length
    if p == end:
        return 0
    kind = p[0] >> 3
    if p[0] & 7 != 2 or kind < BYTES or kind > INT64:
        return -1
    p += 1
    length = read_length(&p, end)
    start[0] = p
    return kind if length >= 0 and p + length == end else -1


cdef bint skip_list(int kind, const uint8_t *p, const uint8_t *end) noexcept nogil:
    # Check a list that is not wanted.
    cdef int64_t length
    cdef uint8_t tag
    while p < end:
        tag = p[0]
        p += 1
        if tag == FIELD_1:
            length = read_length(&p, end)
            if length < 0 or not is_chunk(kind, p, length):
                return False
        else:
            length = single_length(kind, tag, p, end)
            if length < 0 or (kind == INT64 and not tfr_are_varints(p, length)):
                return False
        p += length
    return True


cdef int64_t single_length(int kind, uint8_t tag, const uint8_t *p, const uint8_t *end) noexcept nogil:
    # The bytes of an unpacked number; -1 if there is none.
    cdef int64_t length = 0
    if kind == FLOAT and tag == FIELD_1_FIXED32 and end - p >= 4:
        return 4
    if kind == INT64 and tag == FIELD_1_VARINT:
        while length < 10 and length < end - p:
            length += 1
            if p[length - 1] < 0x80:
                return length
    return -1


cdef bint parse_list(Call *call, int slot, const uint8_t *p, const uint8_t *end) noexcept nogil:
    # The values of a list; a chunk may hold several values, and a list may have several chunks.
    cdef const Slot *wanted = &call.slots[slot]
    cdef int64_t length, count, written = 0
    cdef uint8_t tag
    if wanted.kind == BYTES and wanted.count < 0:
        return parse_strings(call, &call.columns[slot], p, end)
    while p < end:
        tag = p[0]
        p += 1
        length = read_length(&p, end) if tag == FIELD_1 else single_length(wanted.kind, tag, p, end)
        if length < 0:
            return False
        count = 1
        if wanted.kind == FLOAT:
            if length & 3:
                return False
            count = length // 4
        elif wanted.kind == INT64:
            count = tfr_count_varints(p, length)
        if not store(call, slot, p, length, count, written):
            return False
        written += count
        p += length
    return wanted.count < 0 or written == wanted.count


cdef bint parse_strings(Call *call, Column *column, const uint8_t *p, const uint8_t *end) noexcept nogil:
    # The values of a list of any number of strings: each is a chunk.
    cdef int64_t length
    cdef int64_t *target
    while p < end:
        if p[0] != FIELD_1:
            return False
        p += 1
        length = read_length(&p, end)
        if length < 0 or (column.size == column.capacity and not grow(column, 1, 2 * sizeof(int64_t))):
            return False
        target = <int64_t *>column.data + 2 * column.size
        target[0], target[1] = p - call.buffer + call.shift, length
        column.size += 1
        p += length
    return True


cdef bint store(Call *call, int slot, const uint8_t *p, int64_t length, int64_t count, int64_t written) noexcept nogil:
    # Append `count` values, starting at p, to a slot's column.
    cdef const Slot *wanted = &call.slots[slot]
    cdef Column *column = &call.columns[slot]
    cdef uint8_t *target
    if count <= 0:
        return count == 0
    if wanted.count >= 0:
        if count > wanted.count - written:
            return False
        target = column.data + (call.row * wanted.count + written) * wanted.itemsize
    else:
        if count > column.capacity - column.size and not grow(column, count, wanted.itemsize):
            return False
        target = column.data + column.size * wanted.itemsize
        column.size += count
    if wanted.kind == FLOAT:
        memcpy(target, p, length)
    elif wanted.kind == BYTES:
        (<int64_t *>target)[0] = p - call.buffer + call.shift
        (<int64_t *>target)[1] = length
    else:
        return decode_varints(p, p + length, call.limit, <int64_t *>target)
    return True


cdef bint grow(Column *column, int64_t count, int64_t itemsize) noexcept nogil:
    # Without memory, the Python fallback tries, and raises the error.
    cdef int64_t capacity = max(2 * column.capacity, column.size + count, 64)
    cdef uint8_t *data = <uint8_t *>realloc(column.data, capacity * itemsize)
    if data == NULL:
        return False
    column.data, column.capacity = data, capacity
    return True


cdef bint parse_sequence(
    Call *lists, Call *context, Steps *steps, int64_t start, int64_t size, int64_t *found
) noexcept nogil:
    # SequenceExample: field 1, Features; field 2, FeatureLists: field 1, one entry per key.
    cdef const uint8_t *p = lists.buffer + start
    cdef const uint8_t *end = p + size
    cdef const uint8_t *stop
    cdef int64_t length
    cdef int place = 0, list_place = 0
    cdef uint8_t tag
    found[0], found[1] = start + lists.shift, 0
    lists.num_settled, context.num_settled = 0, 0
    if size > MAX_LENGTH:
        return False
    while p < end:
        stop = p
        tag = p[0]
        p += 1
        length = read_length(&p, end)
        if length < 0:
            return False
        if tag == FIELD_1 and found[1] == 0:  # one piece, or they would have to be merged
            found[0], found[1] = stop - lists.buffer + lists.shift, p + length - stop
            stop = p + length
            while p < stop:
                p = parse_guessed(context, p, stop, place)
                if p == NULL:
                    return False
                place += 1
        elif tag == FIELD_2:
            stop = p + length
            while p < stop:
                p = parse_feature_list(lists, steps, p, stop, list_place)
                if p == NULL:
                    return False
                list_place += 1
        else:
            return False
    return finish_steps(lists, steps)


cdef bint finish_steps(Call *call, Steps *steps) noexcept nogil:
    cdef int slot
    for slot in range(call.num_slots):
        if call.columns[slot].last_row != call.row:
            call.columns[slot].missing[call.row] = 1
        steps[slot].borders[call.row + 1] = steps[slot].size
    return True


cdef void forget_steps(Call *call, Steps *steps) noexcept nogil:
    # The part of this row's record that was parsed.
    cdef int slot
    for slot in range(call.num_slots):
        call.columns[slot].last_row = -1
        steps[slot].size = steps[slot].borders[call.row]
        call.columns[slot].size = steps[slot].offsets[steps[slot].size]


cdef const uint8_t *parse_feature_list(
    Call *call, Steps *steps, const uint8_t *p, const uint8_t *end, int place
) noexcept nogil:
    # An entry of FeatureLists, whose value is a FeatureList: field 1, one Feature per step. Like parse_entry.
    cdef const uint8_t *key = NULL
    cdef int64_t length, key_length = 0
    cdef int slot
    if not open_entry(&p, &end, &key, &key_length):
        return NULL
    slot = slot_of(call, key, key_length, place, 0)
    if slot == NOT_UTF8 or (slot != NOT_ASKED and not settle(call, slot)):
        return NULL
    while p < end:
        if p[0] != FIELD_1:
            return NULL
        p += 1
        length = read_length(&p, end)
        if 4 * length < end - p:
            tfr_prefetch(p + 4 * length)  # steps mostly have the same size: a later one starts there, or nearby
        if length < 0 or not parse_step(call, steps, slot, p, p + length):
            return NULL
        p += length
    return end


cdef bint parse_step(Call *call, Steps *steps, int slot, const uint8_t *p, const uint8_t *end) noexcept nogil:
    # A step's Feature; if its kind is not set, the step has no values.
    cdef int kind = open_feature(&p, end)
    if kind < 0:
        return False
    if slot == NOT_ASKED:
        return kind == 0 or skip_list(kind, p, end)
    if kind and (kind != call.slots[slot].kind or not parse_list(call, slot, p, end)):
        return False
    if steps[slot].size >= steps[slot].capacity and not grow_steps(&steps[slot]):
        return False
    steps[slot].size += 1
    steps[slot].offsets[steps[slot].size] = call.columns[slot].size
    return True


cdef bint grow_steps(Steps *steps) noexcept nogil:
    cdef int64_t capacity = max(2 * steps.capacity, 64)
    cdef int64_t *offsets = <int64_t *>realloc(steps.offsets, (capacity + 1) * sizeof(int64_t))
    if offsets == NULL:
        return False
    steps.offsets, steps.capacity = offsets, capacity
    return True


cdef int check_records(int64_t size, const int64_t[::1] starts, const int64_t[::1] lengths) except -1:
    cdef int64_t row, num_rows = starts.shape[0]
    if lengths.shape[0] != num_rows:
        raise ValueError(f"expected as many lengths as starts, {num_rows}, got {lengths.shape[0]}")
    for row in range(num_rows):
        if starts[row] < 0 or lengths[row] < 0 or lengths[row] > size or starts[row] > size - lengths[row]:
            raise ValueError(f"record {row} lies outside the buffer of {size} bytes")
    return 0


def copies(const uint8_t[::1] buffer not None, const int64_t[::1] spans not None, const int64_t[::1] offsets=None):
    """Copy values out of the buffer.

    Args:
        buffer: Where the values are.
        spans: First byte and number of bytes of each value.
        offsets: [N + 1], the row splits of N lists.

    Returns:
        A list of bytes, or of N lists of them.
    """
    return strings(buffer, spans, offsets, False)


def texts(const uint8_t[::1] buffer not None, const int64_t[::1] spans not None, const int64_t[::1] offsets=None):
    """Like `copies`, decoded as strict UTF-8 to str.

    Raises:
        UnicodeDecodeError: A value is not UTF-8.
    """
    return strings(buffer, spans, offsets, True)


def hide(bint wanted):
    """Whether the lists of strings that this thread makes from now on are hidden from the garbage collector.

    They refer to nothing, but the collector walks all that the program has, again and again, where many lists stay:
    those of batches that wait. Whoever hands them out must `show` them, since users may put anything into a list.
    """
    global tfr_hides
    tfr_hides = wanted


def show(list values not None):
    """Show a list, and the lists in it, to the garbage collector."""
    if not PyObject_GC_IsTracked(values):
        PyObject_GC_Track(<void *>values)
    if values and type(values[0]) is list:
        for value in values:
            show(value)


cdef struct Copy:
    # A string that has its memory, but not yet its bytes.
    char *target
    const char *source
    int64_t length


cdef list strings(const uint8_t[::1] buffer, const int64_t[::1] spans, const int64_t[::1] offsets, bint is_text):
    cdef const char *base = <const char *>&buffer[0] if buffer.shape[0] else NULL
    cdef const int64_t *first = &spans[0] if spans.shape[0] else NULL
    cdef int64_t begin, end, number, total = 0, count = spans.shape[0] // 2
    cdef Py_ssize_t row, num_rows
    cdef list rows
    cdef Memory memory
    cdef Copy *copies = NULL
    for number in range(0 if is_text else count):
        total += min(<uint64_t>first[2 * number + 1], <uint64_t>LARGE)
    if total >= LARGE:
        memory = room(count * sizeof(Copy))
        memset(memory.data, 0, memory.size)
        copies = <Copy *>memory.data
    if offsets is None:
        rows = strings_of(base, buffer.shape[0], first, count, is_text, copies)
    else:
        num_rows = max(offsets.shape[0] - 1, 0)
        rows = PyList_New(num_rows)
        for row in range(num_rows):
            begin, end = offsets[row], offsets[row + 1]  # read once, as spans
            if begin < 0 or end < begin or end > count:
                raise ValueError(f"list {row} lies outside the {count} values")
            values = strings_of(
                base, buffer.shape[0], first + 2 * begin, end - begin, is_text, copies + begin if copies else NULL
            )
            Py_INCREF(values)  # the list takes one over
            PyList_SET_ITEM(rows, row, values)
    if copies:
        with nogil:
            for number in range(count):
                if copies[number].length:
                    memcpy(copies[number].target, copies[number].source, copies[number].length)
    return rows


cdef list strings_of(
    const char *base, int64_t size, const int64_t *spans, int64_t count, bint is_text, Copy *copies=NULL
):
    # With places for copies, these are left to the caller.
    cdef int64_t number, start, length
    cdef list values = PyList_New(count)
    for number in range(count):
        start, length = spans[2 * number], spans[2 * number + 1]  # read once: what is checked is what is used
        check_span(size, start, length)
        if copies:
            value = PyBytes_FromStringAndSize(NULL, length)
            copies[number] = Copy(value, base + start, length)
        else:
            value = string_of(base + start, length, is_text)
        Py_INCREF(value)
        PyList_SET_ITEM(values, number, value)
    if tfr_hides:
        PyObject_GC_UnTrack(<void *>values)
    return values


cdef inline object string_of(const char *p, int64_t length, bint is_text):
    return PyUnicode_DecodeUTF8(p, length, "strict") if is_text else PyBytes_FromStringAndSize(p, length)


def string_at(bytes record not None, Memory block not None, int64_t place, bint is_text):
    """The string of a record, as bytes or str, whose span is at a byte of a block from `Plan.parse_one`.

    Raises:
        UnicodeDecodeError: See `texts`.
        ValueError: The span is outside the block, or the value outside the record.
    """
    cdef int64_t span[2]
    if place < 0 or place > block.size - <int64_t>sizeof(span):
        raise ValueError(f"a span lies outside the block of {block.size} bytes")
    memcpy(span, block.data + place, sizeof(span))
    check_span(len(record), span[0], span[1])
    return string_of(<const char *>record + span[0], span[1], is_text)


def strings_in(bytes record not None, Memory spans not None, bint is_text):
    """The strings of a record as a list, from spans of `Plan.parse_one`; errors are those of `string_at`."""
    return strings_of(
        record, len(record), <const int64_t *>spans.data, spans.size // (2 * sizeof(int64_t)), is_text
    )


def varints(const uint8_t[::1] buffer not None, int64_t[::1] values not None, int level):
    """Decode a buffer of varints with one decoder, for tests: whether it succeeded; None if the CPU cannot run it.

    Raises:
        ValueError: The buffer does not hold as many varints as ``values`` has places.
    """
    cdef int64_t size = buffer.shape[0]
    cdef tfr_decoder decode = tfr_decoder_of(level)
    if size == 0 or tfr_count_varints(&buffer[0], size) != values.shape[0] or values.shape[0] == 0:
        raise ValueError("expected as many varints as values, at least one")
    if decode == NULL:
        return None
    return bool(decode(&buffer[0], &buffer[0] + size, &buffer[0] + size, &values[0]))


cdef int check_span(int64_t size, int64_t start, int64_t length) except -1:
    if start < 0 or length < 0 or length > size or start > size - length:
        raise ValueError(f"a value lies outside the buffer of {size} bytes")
    return 0
