from . import tfds
from .batches.collate import collate
from .batches.padding import PaddedCollate
from .errors import (
    CompressionError,
    CorruptRecordError,
    ImageDecodeError,
    IndexMismatchError,
    LimitExceededError,
    ParseError,
    RemoteError,
    TFRecordError,
)
from .features.audio import Audio
from .features.example_list import ExampleListFeatures
from .features.feature import SequenceFeatures
from .features.image import Image
from .features.inference import format_features, infer_features
from .features.lists import FixedLenFeature, VarLenFeature
from .features.one_value import SerializedTensor, Text
from .features.ragged import RaggedFeature
from .features.raw_tensor import RawTensor
from .features.rows import FixedLenSequenceFeature
from .features.source import Source
from .features.sparse import SparseFeature
from .features.video import Video
from .features.whole_values import Json, Proto
from .images.codec import decode_image, encode_image, resize_with_crop_or_pad
from .images.crops import RandomResizedCrop, ResizedCenterCrop
from .loading.iterable_dataset import TFRecordIterableDataset
from .loading.loader import make_dataloader
from .loading.map_dataset import TFRecordDataset
from .loading.read_ahead import ReadAheadLoader
from .native import has_native
from .order.batch_sampler import RecordBatchSampler
from .order.iterable_mixture import IterableMixture
from .order.mixture import Mixture
from .order.orders import balanced_weights
from .order.samplers import RecordSampler
from .parsing.functions import (
    parse_example,
    parse_sequence_example,
    parse_single_example,
    parse_single_sequence_example,
)
from .parsing.nested import Nested
from .protobuf.example import decode_example, decode_sequence_example, encode_example, encode_sequence_example
from .records.index import RecordIndex, build_index
from .records.manifest_build import build_manifest
from .records.paths import find_files
from .records.reader import read_records
from .records.writer import ShardedTFRecordWriter, TFRecordWriter
from .values.containers import RaggedTensor, SparseList
from .values.tensors import parse_tensor, serialize_tensor

__version__: str
__all__ = [
    "Audio",
    "CompressionError",
    "CorruptRecordError",
    "ExampleListFeatures",
    "FixedLenFeature",
    "FixedLenSequenceFeature",
    "Image",
    "ImageDecodeError",
    "IndexMismatchError",
    "IterableMixture",
    "Json",
    "LimitExceededError",
    "Mixture",
    "Nested",
    "PaddedCollate",
    "ParseError",
    "Proto",
    "RaggedFeature",
    "RaggedTensor",
    "RandomResizedCrop",
    "RawTensor",
    "ReadAheadLoader",
    "RecordBatchSampler",
    "RecordIndex",
    "RecordSampler",
    "RemoteError",
    "ResizedCenterCrop",
    "SequenceFeatures",
    "SerializedTensor",
    "ShardedTFRecordWriter",
    "Source",
    "SparseFeature",
    "SparseList",
    "TFRecordDataset",
    "TFRecordError",
    "TFRecordIterableDataset",
    "TFRecordWriter",
    "Text",
    "VarLenFeature",
    "Video",
    "balanced_weights",
    "build_index",
    "build_manifest",
    "collate",
    "decode_example",
    "decode_image",
    "decode_sequence_example",
    "encode_example",
    "encode_image",
    "encode_sequence_example",
    "find_files",
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
