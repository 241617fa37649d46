"""The script's configuration: a YAML of 1 to 3 documents, each top-level scalar also a flag."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, Callable

_TAKEN = ("config_path", "help")  # flags that load_config has itself: values of these names come from the file alone


class Config(dict):  # type: ignore[type-arg]
    """A mapping whose keys are attributes as well: `cfg.batch_size` is `cfg["batch_size"]`."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the configuration has no key {name!r}; it has {', '.join(self)}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


def load_config(path: str | os.PathLike[str] | None = None, argv: Sequence[str] | None = None) -> Config:
    """Read the configuration and the command line.

    The file is `--config_path` of the command line, else what the launcher gave, else `path`. Every top-level scalar
    of the file can be overridden with a flag of its name. Its second and third documents, where there are any, hold
    help texts and choices for those flags.
    """
    argv = sys.argv[1:] if argv is None else argv
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--config_path", default=os.environ.get("MSLAUNCH_CONFIG") or (path and os.fspath(path)))
    options, rest = first.parse_known_args(argv)
    if options.config_path is None:
        raise ValueError("no configuration: give --config_path FILE, or start the script with mslaunch --config FILE")
    values, helps, choices = read_documents(options.config_path)
    parser = argparse.ArgumentParser(
        parents=[first], allow_abbrev=False, description=f"Flags override {options.config_path}."
    )
    for name, value in values.items():
        if isinstance(name, str) and name not in _TAKEN and not isinstance(value, (dict, list)):
            about = str(helps[name]).replace("%", "%%") if helps.get(name) is not None else None
            kind = _type_of(value)
            parser.add_argument(f"--{name}", dest=name, type=kind, default=value, help=about, choices=choices.get(name))
    flags = vars(parser.parse_args(rest))
    del flags["config_path"]
    return Config({name: _attributes(value) for name, value in {**values, **flags}.items()})


def read_documents(path: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the values, help texts and choices of a configuration file."""
    beside = os.path.splitext(path)[0] + ".json"
    try:
        import yaml
    except ModuleNotFoundError:
        # The launcher writes the same values as JSON beside its YAML, for hosts without PyYAML.
        if not path.endswith(".json") and not os.path.exists(beside):
            raise
        path = beside
    with open(path, encoding="utf-8") as file:
        documents = [json.load(file)] if path.endswith(".json") else list(yaml.load_all(file, _loader(yaml)))
    values, helps, choices = [*documents, None, None, None][:3]
    if not isinstance(values, dict):
        raise ValueError(f"{path}: the first document must be a mapping of names to values")
    values.pop("launch", None)
    return values, helps or {}, choices or {}


def _loader(yaml: Any) -> Any:
    """PyYAML's safe loader, except that 1e-3 is the number that everybody means, as for mslaunch itself."""
    derived: Any = type("Loader", (yaml.SafeLoader,), {})
    exponent = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+")
    derived.add_implicit_resolver("tag:yaml.org,2002:float", exponent, list("-+0123456789"))
    return derived


def _type_of(value: Any) -> Callable[[str], Any]:
    if isinstance(value, bool):
        return _bool
    return type(value) if isinstance(value, (int, float, str)) else _scalar


def _bool(text: str) -> bool:
    if text.lower() in ("true", "1", "yes", "on"):
        return True
    if text.lower() in ("false", "0", "no", "off"):
        return False
    raise argparse.ArgumentTypeError(f"expected true or false, got {text!r}")


def _scalar(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _attributes(value: Any) -> Any:
    if isinstance(value, dict):
        return Config({name: _attributes(inner) for name, inner in value.items()})
    return value


TARGETS = ("None", "Ascend", "GPU", "CPU")
MODES = ("graph", "pynative")


def init_env(cfg: Any) -> int:
    """Prepare MindSpore as `cfg` says and return this rank's id, which is also set as `cfg.rank_id`.

    Looks at seed, device_target, context_mode, device_num, device_id and all_reduce_fusion_config. With device_num
    over 1 it calls mindspore.communication.init(), checks that the group has that size, and sets up data parallelism.
    """
    target, mode = _get(cfg, "device_target"), _get(cfg, "context_mode")
    for name, value, choices in (("device_target", target, TARGETS), ("context_mode", mode, MODES)):
        if value is not None and value not in choices:
            raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
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
