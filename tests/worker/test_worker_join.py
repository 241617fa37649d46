"""Which size a script has given its group, as far as its environment tells."""

from __future__ import annotations

import pytest

from mslaunch.worker.watch import changed_size


@pytest.mark.parametrize(
    ("asked", "found"), [("1", 1), ("16", 16), ("2", None), ("", None), ("many", None), ("-1", None)]
)
def test_a_changed_size_is_found(asked: str, found: int | None) -> None:
    assert changed_size(2, {"MS_WORKER_NUM": asked}) == found


def test_without_the_variable_no_size_was_changed() -> None:
    assert changed_size(2, {}) is None
