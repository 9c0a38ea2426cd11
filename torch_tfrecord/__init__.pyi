from . import tfds
from .columns.containers import RaggedTensor, SparseList
from .columns.example_lists import ListFeatures, NestedExample
from .columns.feature import SequenceFeatures
from .columns.image import Image
from .columns.index_columns import build_index
from .columns.inference import infer_features
from .columns.lists import FixedLenFeature, FixedLenSequenceFeature, VarLenFeature
from .columns.media import Audio, Video
from .columns.one_value import Json, Proto, SerializedTensor, Text
from .columns.ragged import RaggedFeature
from .columns.raw_tensor import RawTensor
from .columns.record_parsers import (
    Source,
    parse_example,
    parse_sequence_example,
    parse_single_example,
    parse_single_sequence_example,
)
from .columns.sparse import SparseFeature
from .columns.tensors import parse_tensor, serialize_tensor
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
from .images.codec import decode_image, encode_image, resize_with_crop_or_pad
from .images.crops import RandomResizedCrop, ResizedCenterCrop
from .loading.arrow import write_arrow
from .loading.collate import collate
from .loading.device import DevicePrefetcher
from .loading.display import show
from .loading.iterable_dataset import TFRecordIterableDataset
from .loading.loader import make_dataloader
from .loading.map_dataset import TFRecordDataset
from .loading.packing import PackedCollate
from .loading.padding import PaddedCollate
from .loading.record_loader import RecordLoader
from .loading.scan_tasks import ScanTask
from .order.mixture import Mixture
from .order.orders import balanced_weights
from .order.samplers import LengthBatchSampler, RecordSampler
from .protobuf.example import (
    decode_example,
    decode_sequence_example,
    encode_example,
    encode_sequence_example,
)
from .records.index import RecordIndex
from .records.manifest_shards import build_manifest
from .records.paths import find_files
from .records.reader import read_records
from .records.salvage import SalvageReport, salvage
from .records.writer import ShardedTFRecordWriter, TFRecordWriter

__version__: str
__all__ = [
    "Audio",
    "CompressionError",
    "CorruptRecordError",
    "DevicePrefetcher",
    "FixedLenFeature",
    "FixedLenSequenceFeature",
    "Image",
    "ImageDecodeError",
    "IndexMismatchError",
    "Json",
    "LengthBatchSampler",
    "LimitExceededError",
    "ListFeatures",
    "Mixture",
    "NestedExample",
    "PackedCollate",
    "PaddedCollate",
    "ParseError",
    "Proto",
    "RaggedFeature",
    "RaggedTensor",
    "RandomResizedCrop",
    "RawTensor",
    "RecordIndex",
    "RecordLoader",
    "RecordSampler",
    "RemoteError",
    "ResizedCenterCrop",
    "SalvageReport",
    "ScanTask",
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
    "infer_features",
    "make_dataloader",
    "parse_example",
    "parse_sequence_example",
    "parse_single_example",
    "parse_single_sequence_example",
    "parse_tensor",
    "read_records",
    "resize_with_crop_or_pad",
    "salvage",
    "serialize_tensor",
    "show",
    "tfds",
    "write_arrow",
]
