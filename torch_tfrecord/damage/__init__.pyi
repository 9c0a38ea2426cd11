from .saved_records import SalvageReport, salvage

__all__ = [
    "SalvageReport",
    "salvage",
]
