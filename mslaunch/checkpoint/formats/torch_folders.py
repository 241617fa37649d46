"""Folders of PyTorch's programs: which of their files hold the network, and which belong together."""

from __future__ import annotations

import re
from pathlib import Path

from mslaunch.checkpoint.formats.table import FOR_TORCH, FORMATS, TORCH_SUFFIXES, is_torch
from mslaunch.errors import RequestError
from mslaunch.shared import layout

_NUMBERED = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.\w+)")
_INDEXES = ("*.safetensors.index.json", "*.bin.index.json", "*.index.json")
_OF_TRAINING = re.compile(
    r"(training_args|optimizer|scheduler|scaler|rng_state|random_states|trainer_state)(_\d+)*\.\w+"
)
"""What a Trainer keeps beside the network."""
_MOST_FILES = 10_000


def find_index(folder: Path) -> Path | None:
    """Find the index of a model in several files."""
    for pattern in _INDEXES:
        if indexes := sorted(folder.glob(pattern)):
            if len(indexes) > 1:
                raise RequestError(f"{folder}: has {len(indexes)} indexes ({indexes[0].name} …). Name one of them.")
            return indexes[0]
    return None


def files_of_torch(folder: Path) -> list[Path]:
    """Find the files of a network: one, or a numbered set; nothing where there are none."""
    check_not_distributed(folder)
    entries = sorted(path for path in folder.iterdir() if not _OF_TRAINING.fullmatch(path.name))
    of_kinds = (
        [path for path in entries if path.suffix in FOR_TORCH],
        [path for path in entries if path.suffix in TORCH_SUFFIXES],
        [path for path in entries if path.is_file() and is_torch(path)],
    )
    files = next((paths for paths in of_kinds if paths), [])
    numbered = [path for path in files if _NUMBERED.fullmatch(path.name)]
    if len(files) > 1 and not numbered:
        names = ", ".join(path.name for path in files[:4])
        raise RequestError(f"{folder}: several files without an index ({names}). Name one of them.")
    return siblings((numbered or files)[0]) if files else []


def check_not_distributed(path: Path) -> None:
    """Refuse what torch.distributed.checkpoint wrote: its tensors are cut into parts."""
    folder = path if path.is_dir() else path.parent
    if path.suffix == ".distcp" or (path.is_dir() and any(folder.glob("*.distcp"))):
        raise RequestError(
            f"{path}: a folder of torch.distributed.checkpoint, which is cut into parts. Write it as one file first: "
            f"python -m torch.distributed.checkpoint.format_utils dcp_to_torch {folder} model.pth"
        )


def siblings(path: Path) -> list[Path]:
    """All files of a numbered set, model-00001-of-00008.safetensors; they must all be there."""
    match = _NUMBERED.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match[3])
    if not 1 <= count <= _MOST_FILES:
        raise RequestError(f"{path}: numbered as one of {count}; from 1 to {_MOST_FILES} are understood.")
    files = [path.with_name(f"{match[1]}-{number:05d}-of-{match[3]}{match[4]}") for number in range(1, count + 1)]
    missing = [file.name for file in files if not file.exists()]
    if missing:
        what = f"{len(missing)} of {count} files are missing ({missing[0]})"
        raise RequestError(f"{path.parent}: {what}. Copy them here.")
    return files


def holds_torch(path: Path) -> bool:
    """Tell whether a file or folder holds a model of PyTorch, not the checkpoints of MindSpore's ranks."""
    if not path.is_dir():
        return path.name.endswith(".index.json") or path.suffix == ".distcp" or is_torch(path)
    entries = list(path.iterdir())
    if any(entry.name.startswith(layout.RANK) for entry in entries):
        return False
    if any(_NUMBERED.fullmatch(entry.name) or entry.name.endswith((".index.json", ".distcp")) for entry in entries):
        return True
    files = [entry for entry in entries if entry.suffix in (*TORCH_SUFFIXES, *FORMATS)]
    return bool(files) and all(map(is_torch, files))
