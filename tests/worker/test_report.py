"""A rank's messages are JSON, whatever is in them."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from mslaunch.worker.report import to_json

VALUES = st.text() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.none()


@given(st.dictionaries(st.text(), VALUES))
def test_what_is_written_by_hand_is_read_by_json(data: dict[str, str | int | float | None]) -> None:
    """Quotes, controls, emoji and lone surrogates included."""
    assert json.loads(to_json(data)) == data
