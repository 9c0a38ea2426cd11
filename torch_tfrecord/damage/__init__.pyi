from .resync import RecordSearch
from .saved_records import SalvageReport, salvage, salvage_file

__all__ = [
    "RecordSearch",
    "SalvageReport",
    "salvage",
    "salvage_file",
]
