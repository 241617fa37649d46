"""The checkpoint that a job resumes from: the newest that all ranks have whole, and which rank gets which file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mslaunch.checkpoint.formats.table import read_shard
from mslaunch.checkpoint.sharding.saved_files import files_of_ranks, networks
from mslaunch.checkpoint.sharding.sets import Fault, differing_parameter, newest_complete, only_network
from mslaunch.errors import RequestError


@dataclass(frozen=True, slots=True)
class Resume:
    """Each rank's file of the checkpoint that a further attempt resumes from; none where it starts again."""

    files: Mapping[int, str] = field(default_factory=dict)
    words: str = "from the start"

    def for_world(self, size: int) -> Resume:
        """Give so many ranks their files; a number other than before needs files that are all the same."""
        if not self.files or size == len(self.files):
            return self
        paths = {rank: Path(path) for rank, path in self.files.items()}
        if len({path.resolve() for path in paths.values()}) > 1:
            different = differing_parameter({rank: read_shard(path) for rank, path in paths.items()})
            if different:
                rank, name = different
                raise RequestError(
                    f"{size} ranks cannot resume what {len(paths)} ranks saved: their checkpoints differ "
                    f"({name} of rank {rank} is not rank {min(paths)}'s), so each rank would lack the slices of the "
                    f"others. Cut them for {size} ranks with `mslaunch ckpt reshard` and start a new run"
                )
        first = self.files[min(self.files)]
        return replace(self, files={rank: self.files.get(rank, first) for rank in range(size)})


def find_for_ranks(folders: Mapping[int, Path], place: str, prefix: str | None, starts: Sequence[float]) -> Resume:
    """Find the newest complete checkpoint in one folder per rank.

    `starts` says when the attempts of the job began: older files are another job's.
    """
    several = [network.of_attempts(starts) for network in networks(files_of_ranks(folders, prefix), len(folders))]
    several = [network for network in several if any(saved.step for saved in network.steps)]
    folder = folders[min(folders)]
    if not several:
        return Resume(words=f"no checkpoint found in {place}, starting from step 0")
    try:
        network = only_network(folder, several, prefix, "Name one: launch.checkpoint_prefix:")
        shard_set = newest_complete(network, folder, folders, strict=True)
    except RequestError as error:
        return Resume(words=f"starting from step 0: {error}".removesuffix("."))
    if shard_set.faults:
        faults = _fault_words(next(iter(shard_set.files.values())).name, shard_set.faults)
        return Resume(words=f"no complete checkpoint found in {place} ({faults}), starting from step 0")
    newer = "".join(f" ({_fault_words(passed.saved.name, passed.faults)})" for passed in shard_set.passed_over[:1])
    files = {rank: str(path) for rank, path in shard_set.files.items()}
    return Resume(files, f"resuming from {shard_set.files[min(shard_set.files)].name}{newer}")


def _fault_words(name: str, faults: Mapping[int, Fault]) -> str:
    rank = min(faults)
    return f"{name} on rank {rank}: {faults[rank].what}"
