"""Weights in and out: import from PyTorch, export to it, compare. What `mslaunch ckpt` calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mslaunch.shared import layout

if TYPE_CHECKING:
    from mslaunch.checkpoint.moving.new_files import Planned
    from mslaunch.checkpoint.moving.weights import Weight
    from mslaunch.checkpoint.sharding.strategy import Strategy
    from mslaunch.weights.diff import WeightDifference
    from mslaunch.weights.importing import Naming, Renamed


@dataclass(frozen=True, slots=True)
class PlannedWeights:
    """New files of weights, ready to be written."""

    planned: Planned
    renamed: Renamed
    target: Path
    single: bool
    """One file, not a folder with one for each rank."""

    @property
    def left_out(self) -> tuple[str, ...]:
        """A sentence for each parameter that has no partner; empty unless that was allowed."""
        return self.renamed.left_out

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on rules that apply to no parameter, on what was guessed, and on what needs no partner."""
        return self.renamed.notes

    @property
    def nbytes(self) -> int:
        return self.planned.job.nbytes

    def write(self, progress: Callable[[int], None] = lambda _: None) -> None:
        """Write them; they appear when they are complete."""
        if self.single:
            self.planned.write_file(self.target, progress)
        else:
            self.planned.write(self.target, progress)


@dataclass(frozen=True, slots=True)
class ComparedWeights:
    """What differs between two sets of weights."""

    differences: tuple[WeightDifference, ...]
    renamed: Mapping[str, str]
    """Names of the first that are called otherwise in the second, and what they are called there."""
    notes: tuple[str, ...] = ()
    """A sentence for each rule that applies to no parameter."""


@dataclass(frozen=True, slots=True)
class ListedWeights:
    """Weights under the names that an import reads, and the files that hold them."""

    weights: tuple[Weight, ...]
    files: tuple[Path, ...]

    @property
    def nbytes(self) -> int:
        return sum(path.stat().st_size for path in self.files)


def import_weights(
    source: str,
    target: str,
    *,
    strategy: str | None = None,
    names: str | None = None,
    like: str | None = None,
    dtype: str | None = None,
    partial: bool = False,
    key: str | None = None,
) -> PlannedWeights:
    """Plan MindSpore checkpoints from PyTorch's weights; with a strategy, a folder with one for each rank."""
    from mslaunch.weights.importing import plan_import

    how = _naming(names, like, dtype, partial, key)
    planned, renamed = plan_import(Path(source), how, _strategy(strategy), Path(target))
    return PlannedWeights(planned, renamed, Path(target), strategy is None)


def export_weights(
    source: str,
    target: str,
    *,
    strategy: str | None = None,
    names: str | None = None,
    like: str | None = None,
    dtype: str | None = None,
    partial: bool = False,
    key: str | None = None,
) -> PlannedWeights:
    """Plan a .safetensors with PyTorch's names; a strategy says how the shards of ranks belong together.

    `key` says which value of a .pth that is given as `like`.
    """
    from mslaunch.weights.importing import plan_export

    how = _naming(names, like, dtype, partial, key)
    planned, renamed = plan_export(Path(source), how, _strategy(strategy), Path(target))
    return PlannedWeights(planned, renamed, Path(target), True)


def holds_torch(source: str) -> bool:
    """Tell whether a file or folder holds PyTorch's weights, which import reads."""
    from mslaunch.checkpoint.formats.torch_folders import holds_torch

    return Path(source).exists() and holds_torch(Path(source))


def list_weights(source: str, *, key: str | None = None) -> ListedWeights:
    """List the weights that an import of this file or folder would read."""
    from mslaunch.weights.opening import check_key, files_of, open_weights

    found = open_weights(Path(source), key=key)
    check_key(key, found)
    return ListedWeights(tuple(found.values()), tuple(files_of(found)))


def diff_weights(
    first: str, second: str, *, names: str | None = None, strategy: str | None = None, key: str | None = None
) -> list[WeightDifference]:
    """Compare two sets of weights; `names` are rules for the first, `strategy` is that of shards of ranks."""
    return list(compare_weights(first, second, names=names, strategy=strategy, key=key).differences)


def compare_weights(
    first: str, second: str, *, names: str | None = None, strategy: str | None = None, key: str | None = None
) -> ComparedWeights:
    """Compare as diff_weights does, and return as well which names were taken for which."""
    from mslaunch.weights.diff import compare
    from mslaunch.weights.matching import pair_names
    from mslaunch.weights.names import apply_rules, read_rules, unused_rules
    from mslaunch.weights.opening import check_key, open_weights
    from mslaunch.weights.scales import join_scales

    layout = _strategy(strategy)
    one, other = (
        join_scales(open_weights(Path(path), layout if _is_ranks(path) else None, key)) for path in (first, second)
    )
    check_key(key, one, other)
    rules = read_rules(names) if names else []
    pairs = pair_names(apply_rules(one, rules), other)
    notes = unused_rules(names or "", rules, one)
    return ComparedWeights(tuple(compare(pairs.first, pairs.second)), pairs.renamed, notes)


def _naming(names: str | None, like: str | None, dtype: str | None, partial: bool, key: str | None = None) -> Naming:
    from mslaunch.weights.importing import Naming

    return Naming(names, Path(like) if like else None, dtype, partial, key)


def _is_ranks(path: str) -> bool:
    return Path(path).is_dir() and any(Path(path).glob(f"{layout.RANK}*"))


def _strategy(name: str | None) -> Strategy | None:
    from mslaunch.checkpoint.sharding.strategy import read_strategy

    return read_strategy(Path(name)) if name else None
