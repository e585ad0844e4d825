"""Input codec `text`: the value is UTF-8 text, one row; batches are arrays of `str`."""

from __future__ import annotations

from collections.abc import Sequence

from streamserve.core.codec import Decoded
from streamserve.core.messages import Headers
from streamserve.core.reasons import Reason
from streamserve.kafka.codecs.columns import TEXT, ColumnsBuilder, Refusal, Tensor, unreadable


class TextCodec:
    """Reads each value as one text. See the module's words."""

    __slots__ = ("max_request_bytes",)
    name = "text"

    def __init__(self, max_request_bytes: int) -> None:
        self.max_request_bytes = max_request_bytes

    def decode(self, values: Sequence[bytes | None], headers: Sequence[Headers]) -> Decoded:
        columns, limit = ColumnsBuilder(), self.max_request_bytes
        for value in values:
            if not value or len(value) > limit:
                columns.refuse(unreadable(value, limit))
                continue
            try:
                text = value.decode()
            except UnicodeDecodeError as error:
                columns.refuse(Refusal(Reason.WRONG_FORM, f"the value is not UTF-8: bad byte at {error.start}"))
            else:
                columns.add(Tensor(dtype=TEXT, trailing=(), n_rows=1, payload=[text]), None)
        return columns.finish()
