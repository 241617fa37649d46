"""Which kind of file holds weights: told by its ending, and by its first bytes where the ending does not say it."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

TORCH_SUFFIXES = (".pth", ".pt", ".bin")
_ZIP = b"PK\x03\x04"
_PICKLES = tuple(b"\x80" + bytes([protocol]) for protocol in range(2, 6))


def is_torch(path: Path) -> bool:
    """Tell whether a file is of torch.save; Lightning calls them .ckpt, others .pth.tar, .pkl or anything."""
    if path.suffix in TORCH_SUFFIXES:
        return True
    return path.suffix != ".safetensors" and _head(path).startswith((_ZIP, *_PICKLES))


def _head(path: Path) -> bytes:
    """Return the first bytes, none of what is no regular file or cannot be read."""
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # else a pipe would make it wait
        try:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                return os.pread(fd, len(_ZIP), 0)
        finally:
            os.close(fd)
    return b""
