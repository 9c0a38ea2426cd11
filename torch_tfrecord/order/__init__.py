"""Which rank and worker reads which records, in what order: orders, shares, mixtures, samplers."""

__all__: list[str] = []
