from .rescue import find_start
from .resync import DamageKind, RecordSearch
from .saved_records import SalvageReport, salvage, salvage_file

__all__ = ["DamageKind", "RecordSearch", "SalvageReport", "find_start", "salvage", "salvage_file"]
