"""init_env: seed, target, mode and the communication group, from the keys that all configurations share."""

from __future__ import annotations

from typing import Any

TARGETS = ("None", "Ascend", "GPU", "CPU")
MODES = ("graph", "pynative")


def init_env(cfg: Any) -> int:
    """Prepare MindSpore as `cfg` says and return this rank's id, which is also set as `cfg.rank_id`.

    Looks at seed, device_target, context_mode, device_num, device_id and all_reduce_fusion_config. With device_num
    over 1 it calls mindspore.communication.init(), checks that the group has that size, and sets up data parallelism.
    """
    target = _one_of("device_target", _get(cfg, "device_target"), TARGETS)
    mode = _one_of("context_mode", _get(cfg, "context_mode"), MODES)
    import mindspore as ms

    if _get(cfg, "seed") is not None:
        ms.set_seed(_get(cfg, "seed"))
    if mode is not None:
        ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE)
    device_num = _get(cfg, "device_num") or 1
    if target not in (None, "None"):
        ms.set_context(device_target=target)
    if device_num == 1 and _get(cfg, "device_id") is not None and ms.get_context("device_target") != "CPU":
        ms.set_context(device_id=_get(cfg, "device_id"))
    cfg.rank_id = _join(cfg, device_num) if device_num > 1 else 0
    return int(cfg.rank_id)


def _join(cfg: Any, device_num: int) -> int:
    import mindspore as ms
    from mindspore.communication import get_group_size, get_rank, init

    init()
    group_size = get_group_size()
    if device_num != group_size:
        raise ValueError(f"the setting device_num: {device_num} not equal to the real group_size: {group_size}")
    ms.set_auto_parallel_context(
        device_num=group_size, parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True
    )
    fusion = _get(cfg, "all_reduce_fusion_config")
    if fusion:
        ms.set_auto_parallel_context(all_reduce_fusion_config=list(fusion))
    return int(get_rank())


def _get(cfg: Any, name: str) -> Any:
    return getattr(cfg, name, None)


def _one_of(name: str, value: Any, choices: tuple[str, ...]) -> Any:
    if value is not None and value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    return value
