"""Files damaged in known ways, and what is still good in them."""

from itertools import pairwise

ZERO_PAGE = 512


def damage(rng, data, kinds, count):
    """Damage data at `count` places, at each in all of the ways.

    Args:
        rng, data: Random numbers, and what is damaged.
        kinds: "flip", "cut", "insert", "zero", "double", "tail".
        count: How many places.

    Returns:
        The damaged data, and the stretches of the original in it: begin, end, and where it is now.
    """
    pieces, at = [], 0  # (begin, end) of the original, or other bytes
    slot = len(data) // count
    for number in range(count):
        room = slot // (2 * len(kinds))
        for turn, kind in enumerate(kinds):
            low = number * slot + slot // 2 + turn * room
            place = rng.randrange(low, low + room * 3 // 4)
            begin, end, new = _change(rng, data, kind, place, slot // 2 - rng.randrange(9, 99))
            if begin >= at:
                pieces += [(at, begin), *new]
                at = end
    if "tail" in kinds:
        pieces += [(at, rng.randrange(at, len(data)))]
    else:
        pieces += [(at, len(data))]
    out, kept = bytearray(), []
    for piece in pieces:
        if isinstance(piece, bytes):
            out += piece
            continue
        begin, end = piece
        if kept and kept[-1][1] == begin and kept[-1][2] + begin - kept[-1][0] == len(out):
            kept[-1] = (kept[-1][0], end, kept[-1][2])
        else:
            kept.append((begin, end, len(out)))
        out += data[begin:end]
    return bytes(out), kept


def _change(rng, data, kind, place, most):
    """Begin and end of what goes, and what takes its place."""
    if kind == "flip":
        return place, place + 1, [bytes([data[place] ^ 1 << rng.randrange(8)])]
    if kind == "cut":
        return place, place + rng.choice([1, 3, 10, 100, most // 4]), []
    if kind == "insert":
        return place, place, [rng.randbytes(rng.choice([1, 3, 10, 100, 5000]))]
    if kind == "zero":  # a zero that was one already is no damage
        begin = place // ZERO_PAGE * ZERO_PAGE
        page = data[begin : begin + rng.choice([ZERO_PAGE, most // 4])]
        new = [(begin + at, begin + at + 1) if byte == 0 else b"\0" for at, byte in enumerate(page)]
        return begin, begin + len(page), new
    if kind == "double":
        return place, place, [(place - min(most, rng.choice([1, 10, 100, 1000, 20_000])), place)]
    return place, place, []


def between(ranges, size):
    """The ranges between others, up to a size."""
    edges = [0, *(edge for range_ in ranges for edge in range_), size]
    return [(begin, end) for begin, end in list(pairwise(edges))[::2] if begin < end]
