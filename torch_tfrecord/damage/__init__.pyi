from .saved_records import SalvageReport, salvage, salvage_file

__all__ = [
    "SalvageReport",
    "salvage",
    "salvage_file",
]
