"""Examples and SequenceExamples as messages."""

__all__: list[str] = []
