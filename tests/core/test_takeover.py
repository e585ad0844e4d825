from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streamserve.core.events import Resume
from streamserve.core.takeover import Ownership, parse_metadata
from tests.effort import examples


def scan_from(owner: Ownership, lowest_open: int) -> int:
    return parse_metadata(owner.metadata(1 << 60, lowest_open))[1]


def test_what_the_predecessor_wrote_is_found_by_the_successor_too() -> None:
    owner = Ownership(Resume(position=10, metadata='{"v":1,"answers":0,"predictions":5}', answered=np.array([11, 12])))
    owner.sending(0, 10)
    owner.wrote(0, 7)
    assert scan_from(owner, 11) == 5
    assert scan_from(owner, 13) == 7


def test_acknowledgements_out_of_order_hide_no_record() -> None:
    owner = Ownership(Resume(position=0))
    owner.sending(0, 20)
    owner.sending(1, 10)
    owner.wrote(1, 50)
    assert scan_from(owner, 15) == 0  # token 0 may stand before 50
    owner.wrote(0, 40)
    assert scan_from(owner, 15) == 40
    assert scan_from(owner, 21) == 50


@settings(max_examples=examples(200))
@given(st.data())
def test_no_record_of_an_open_request_stands_before_the_scan(data: st.DataObject) -> None:
    """Sends, acknowledgements and landings in any order; records land in any order before they are acknowledged."""
    owner, log = Ownership(Resume(position=0)), []
    flying: dict[int, int] = {}
    landed: dict[int, int] = {}
    for token in range(data.draw(st.integers(1, 12))):
        highest = data.draw(st.integers(0, 30))
        owner.sending(token, highest)
        flying[token] = highest
        for _ in range(data.draw(st.integers(0, 3))):
            if flying and data.draw(st.booleans()):
                arrives = data.draw(st.sampled_from(sorted(flying)))
                landed[arrives] = len(log)
                log.append(flying.pop(arrives))
            elif landed:
                acknowledged = data.draw(st.sampled_from(sorted(landed)))
                owner.wrote(acknowledged, landed.pop(acknowledged))
    lowest_open = data.draw(st.integers(0, 31))
    needed = [at for at, highest in enumerate(log) if highest >= lowest_open]
    assert scan_from(owner, lowest_open) <= min(needed, default=len(log))
