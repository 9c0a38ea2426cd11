from .loader import make_dataloader, replay
from .record_loader import RecordLoader

__all__ = [
    "RecordLoader",
    "make_dataloader",
    "replay",
]
