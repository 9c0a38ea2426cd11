from .resync import DamageKind, RecordSearch
from .saved_records import SalvageReport, salvage, salvage_file

__all__ = [
    "DamageKind",
    "RecordSearch",
    "SalvageReport",
    "salvage",
    "salvage_file",
]
