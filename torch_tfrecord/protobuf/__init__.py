"""Encode and decode Examples and SequenceExamples."""

__all__: list[str] = []
