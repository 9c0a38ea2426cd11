"""Train in PyTorch from TFRecord files, without TensorFlow."""

from torch_tfrecord import tfds
from torch_tfrecord.batch_sampler import RecordBatchSampler
from torch_tfrecord.collate import collate
from torch_tfrecord.containers import RaggedTensor, SparseList
from torch_tfrecord.crops import RandomResizedCrop, ResizedCenterCrop
from torch_tfrecord.errors import (
    CompressionError,
    CorruptRecordError,
    ImageDecodeError,
    IndexMismatchError,
    LimitExceededError,
    ParseError,
    TFRecordError,
)
from torch_tfrecord.example import decode_example, decode_sequence_example, encode_example, encode_sequence_example
from torch_tfrecord.features import FixedLenFeature, Image, RawTensor, SerializedTensor, Text, VarLenFeature
from torch_tfrecord.images import decode_image, encode_image, resize_with_crop_or_pad
from torch_tfrecord.index import RecordIndex, build_index
from torch_tfrecord.inference import format_features, infer_features
from torch_tfrecord.iterable_dataset import TFRecordIterableDataset
from torch_tfrecord.iterable_mixture import IterableMixture
from torch_tfrecord.loader import make_dataloader
from torch_tfrecord.map_dataset import TFRecordDataset
from torch_tfrecord.mixture import Mixture
from torch_tfrecord.native import has_native
from torch_tfrecord.padding import PaddedCollate
from torch_tfrecord.parsing import (
    parse_example,
    parse_sequence_example,
    parse_single_example,
    parse_single_sequence_example,
)
from torch_tfrecord.read_ahead import ReadAheadLoader
from torch_tfrecord.reader import read_records
from torch_tfrecord.samplers import RecordSampler
from torch_tfrecord.structured_features import (
    FixedLenSequenceFeature,
    RaggedFeature,
    SequenceFeatures,
    SparseFeature,
)
from torch_tfrecord.tensors import parse_tensor, serialize_tensor
from torch_tfrecord.weighted_draws import balanced_weights
from torch_tfrecord.writer import ShardedTFRecordWriter, TFRecordWriter

__all__ = [
    "CompressionError",
    "CorruptRecordError",
    "FixedLenFeature",
    "FixedLenSequenceFeature",
    "Image",
    "ImageDecodeError",
    "IndexMismatchError",
    "IterableMixture",
    "LimitExceededError",
    "Mixture",
    "PaddedCollate",
    "ParseError",
    "RaggedFeature",
    "RaggedTensor",
    "RandomResizedCrop",
    "RawTensor",
    "ReadAheadLoader",
    "RecordBatchSampler",
    "RecordIndex",
    "RecordSampler",
    "ResizedCenterCrop",
    "SequenceFeatures",
    "SerializedTensor",
    "ShardedTFRecordWriter",
    "SparseFeature",
    "SparseList",
    "TFRecordDataset",
    "TFRecordError",
    "TFRecordIterableDataset",
    "TFRecordWriter",
    "Text",
    "VarLenFeature",
    "balanced_weights",
    "build_index",
    "collate",
    "decode_example",
    "decode_image",
    "decode_sequence_example",
    "encode_example",
    "encode_image",
    "encode_sequence_example",
    "format_features",
    "has_native",
    "infer_features",
    "make_dataloader",
    "parse_example",
    "parse_sequence_example",
    "parse_single_example",
    "parse_single_sequence_example",
    "parse_tensor",
    "read_records",
    "resize_with_crop_or_pad",
    "serialize_tensor",
    "tfds",
]
