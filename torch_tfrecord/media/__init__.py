"""Sounds and videos: WAV files by our own code, everything else by torchcodec, which needs FFmpeg."""

__all__: list[str] = []
