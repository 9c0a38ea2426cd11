from .described import open_described
from .loader import make_dataloader
from .record_loader import RecordLoader

__all__ = ["RecordLoader", "make_dataloader", "open_described"]
