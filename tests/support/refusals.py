"""What every way in says of a record that it refuses."""

import pytest

from torch_tfrecord import (
    ParseError,
    TFRecordDataset,
    TFRecordWriter,
    parse_example,
    parse_single_example,
)


def check_refusals(features, good, told, folder):
    """Each bad record's error: alone, in a batch with a good one, and from a file, where it names
    the place.
    """
    for number, (bad, text) in enumerate(told.items()):
        with pytest.raises(ParseError) as caught:
            parse_single_example(bad, features)
        assert str(caught.value) == text
        with pytest.raises(ParseError) as caught:
            parse_example([good, bad, good], features)
        assert str(caught.value) == f"record 1: {text}"
        path = folder / f"bad{number}.tfrecord"
        with TFRecordWriter(path) as writer:
            for record in (good, bad):
                writer.write(record)
        ds = TFRecordDataset(path, features)
        for read in (lambda ds=ds: ds[1], lambda ds=ds: ds.__getitems__([0, 1])):
            with pytest.raises(ParseError) as caught:
                read()
            assert str(caught.value) == f"{path}: record 1 at byte {ds.locate(1)[1]}: {text}"
