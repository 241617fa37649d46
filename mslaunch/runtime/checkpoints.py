"""Sharded checkpoints inside a rank: which files there are, loading this rank's slices, predicting on Ascend."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

LOAD_OPTIONS = {".ckpt": {}, ".safetensors": {"format": "safetensors"}}
"""What mindspore.load_checkpoint has to be given for each checkpoint format, by suffix."""
_MERGED = ".ckpt"  # the suffix of the files of ranks that MindSpore merges


def checkpoint_files() -> list[str]:
    """Return the checkpoint files of all ranks, sorted by rank id, as `mslaunch infer` chose them."""
    return list(_manifest()["files"])


def checkpoint_file() -> str:
    """Return this rank's own checkpoint file."""
    files = checkpoint_files()
    rank = int(os.environ.get("RANK_ID", "0"))
    return files[rank] if rank < len(files) else files[0]


def load_sharded(net: Any, strict: bool = True) -> list[str]:
    """Load this rank's slices, and only those, into a network whose parameters are slices.

    Returns the names of parameters that the file does not hold; unless `strict` is False there may be none.
    """
    import mindspore

    path = checkpoint_file()
    options = LOAD_OPTIONS.get(os.path.splitext(path)[1], {})
    try:
        missing, _ = mindspore.load_param_into_net(net, mindspore.load_checkpoint(path, **options))
    except RuntimeError as error:
        ranks = os.environ.get("RANK_SIZE", "1")
        raise ValueError(
            f"{path} does not fit the network: {error}. This job has {ranks} ranks: build it with slices for so many, "
            f"along the dimensions that the strategy cuts."
        ) from error
    if missing and strict:
        raise ValueError(
            f"{path} does not hold {len(missing)} parameters of the network, for example {missing[0]}. "
            f"Build the network as it was trained, or call load_sharded(net, strict=False)."
        )
    return list(missing)


def distributed_predict(model: Any, *data: Any) -> Any:
    """Predict on Ascend with a network that MindSpore cuts by itself, in the order that it documents.

    full_batch and semi_auto_parallel, then infer_predict_layout, load_distributed_checkpoint, predict.
    """
    manifest = _manifest()
    ranks = int(os.environ.get("RANK_SIZE", "1"))
    if ranks == 1:
        load_sharded(model.predict_network)
        return model.predict(*data)
    for path in manifest["files"]:
        if not path.endswith(_MERGED):
            raise ValueError(
                f"{path}: distributed_predict needs .ckpt files, since MindSpore merges no other ones of ranks. Write "
                f"some: mslaunch ckpt convert DIR -o NEW --format ckpt."
            )
    import mindspore

    settings = {"parallel_mode": "semi_auto_parallel", "full_batch": True}
    if manifest["strategy"]:
        settings["strategy_ckpt_load_file"] = manifest["strategy"]
    mindspore.set_auto_parallel_context(**settings)
    layout = model.infer_predict_layout(*data)
    mindspore.load_distributed_checkpoint(
        model.predict_network, manifest["files"], layout, train_strategy_filename=manifest["strategy"]
    )
    return model.predict(*data)


def save_strategy(path: str | os.PathLike[str], net: Any, cuts: Mapping[str, int]) -> None:
    """Write the strategy of a network whose parameters were cut by hand, so that its shards can be transformed.

    `cuts` says along which dimension a parameter is cut over all ranks; parameters that it does not name are whole.
    Rank 0 writes. The file is MindSpore's JSON form, so its name must end in .json.
    """
    path = os.fspath(path)
    if not path.endswith(".json"):
        raise ValueError(f"{path}: the strategy is written as JSON; give it a name that ends in .json.")
    if os.environ.get("RANK_ID", "0") != "0":
        return
    ranks = int(os.environ.get("RANK_SIZE", "1"))
    shapes = {parameter.name: list(parameter.shape) for parameter in net.get_parameters()}
    unknown = sorted(set(cuts) - set(shapes))
    if unknown:
        raise ValueError(
            f"the network has no parameter {unknown[0]}; it has {', '.join(sorted(shapes)[:5])} and so on."
        )
    items = {}
    for name, shape in shapes.items():
        cut = _dimension(name, shape, cuts[name]) if name in cuts else None
        items[name] = {
            "dev_matrix": [ranks],
            "tensor_map": [0 if index == cut else -1 for index in range(len(shape))],
            "tensor_shape": [size * (ranks if index == cut else 1) for index, size in enumerate(shape)],
            "field": 0,
            "opt_weight_shard_step": 0,
            "opt_weight_shard_size": 0,
        }
    operator = {"by_hand": {"stage": 0, "parallel_strategy": [[1]]}}
    whole = {"current_stage": 1, "parallel_strategy_item": operator, "parallel_layout_item": items}
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    beside = f"{path}.{os.getpid()}"
    with open(beside, "w", encoding="utf-8") as file:
        json.dump(whole, file)
    os.replace(beside, path)


def _dimension(name: str, shape: list[int], cut: int) -> int:
    """Return a dimension that may be counted from the end, counted from the start."""
    if not -len(shape) <= cut < len(shape):
        raise ValueError(f"{name} has {len(shape)} dimensions, and cannot be cut along dimension {cut}.")
    return cut % len(shape)


def _manifest() -> dict[str, Any]:
    path = os.environ.get("MSLAUNCH_CHECKPOINTS")
    if not path:
        raise RuntimeError("no checkpoint was given to this job. Start it with `mslaunch infer --ckpt DIR`.")
    with open(path, encoding="utf-8") as file:
        manifest: dict[str, Any] = json.load(file)
    return manifest


def resume() -> str | None:
    """Return this rank's checkpoint file to go on from, or None where the job starts from the beginning."""
    return os.environ.get("MSLAUNCH_RESUME") or None
