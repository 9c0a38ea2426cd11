"""Who reads what, when: orders, shares, mixtures, samplers."""

__all__: list[str] = []
