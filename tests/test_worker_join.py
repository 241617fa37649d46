"""What a rank says when its group has another size than planned, whoever notices first: MindSpore or the check."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mslaunch.worker.join import GroupSizeMismatch, checked

GROUP_OF_ONE = SimpleNamespace(get_group_size=lambda: 1)


def _not_spawned() -> None:
    raise RuntimeError("some processes in the cluster are not successfully spawned")


def test_a_group_that_formed_is_compared_with_the_plan() -> None:
    with pytest.raises(GroupSizeMismatch, match="planned group_size: 2 is not equal to the real group_size: 1"):
        checked(lambda: None, GROUP_OF_ONE, 2)()
    assert checked(lambda: "joined", GROUP_OF_ONE, 1)() == "joined"


def test_an_init_that_fails_because_the_size_was_changed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MS_WORKER_NUM", "1")
    with pytest.raises(GroupSizeMismatch, match="planned group_size: 2 is not equal to the real group_size: 1"):
        checked(_not_spawned, GROUP_OF_ONE, 2)()


@pytest.mark.parametrize("size", ["2", "", "many"])
def test_an_init_that_fails_for_another_reason_keeps_its_error(size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MS_WORKER_NUM", size)
    with pytest.raises(RuntimeError, match="not successfully spawned"):
        checked(_not_spawned, GROUP_OF_ONE, 2)()
