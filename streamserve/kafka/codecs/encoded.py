"""Records that are ready to be written."""

from __future__ import annotations

from dataclasses import field

from streamserve.core.values import unchanging


@unchanging(eq=False)
class EncodedRecords:
    """n records as columns, in order; what `append(key=, value=, headers=)` of a batch builder takes."""

    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[list[tuple[str, bytes | None]]]
    """Lists, not tuples: aiokafka's builder takes nothing else."""
    too_large: list[int] = field(default_factory=list)
    """Those that took too many bytes and say so instead of what they were to say."""

    def __len__(self) -> int:
        return len(self.values)
