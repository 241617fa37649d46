"""Progress read from what MindSpore's callbacks print."""

from __future__ import annotations

from mslaunch.store.progress import Progress


def test_loss_monitor_lines_give_step_loss_and_rate() -> None:
    """Two steps of one epoch give a rate."""
    progress = Progress().read("epoch: 1 step: 100, loss is 0.53", 10.0).read("epoch: 1 step: 150, loss is 0.5", 12.0)
    assert progress.words() == ["epoch 1 step 150", "loss 0.5", "25.0 steps/s"]


def test_time_monitor_gives_the_rate() -> None:
    """Per step time is what MindSpore measured itself."""
    progress = Progress().read("Train epoch time: 1234.5 ms, per step time: 4.0 ms", 1.0)
    assert progress.words() == ["250.0 steps/s"]


def test_a_new_epoch_keeps_the_last_rate() -> None:
    """Steps are counted anew in each epoch, and a rate across the border would be wrong."""
    first = Progress().read("epoch: 1 step: 10, loss is 1", 1.0).read("epoch: 1 step: 20, loss is 1", 2.0)
    assert first.read("epoch: 2 step: 10, loss is nan", 3.0).words() == ["epoch 2 step 10", "loss nan", "10.0 steps/s"]


def test_other_lines_change_nothing() -> None:
    """Most of what a rank prints is not progress."""
    assert Progress().read("loading epoch data", 1.0) == Progress()
