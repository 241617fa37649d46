"""Copies a stretch of one file to another without passing through Python, where the kernel can do that."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from mslaunch.errors import ShardUnreadable

WORTH_IT = 64 << 10
"""Shorter stretches cost more in calls than a buffer costs in copying."""
_CANNOT = (errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM, errno.EBADF)


class KernelCopy:
    """copy_file_range, until a pair of file systems is found that it cannot serve."""

    def __init__(self) -> None:
        self.works = hasattr(os, "copy_file_range")

    def copy(self, source: int, path: Path, at: int, target: int, to: int, length: int) -> bool:
        """Copy a stretch; False where the kernel cannot, and it has to be read and written."""
        done = 0
        while done < length:
            try:
                count = os.copy_file_range(source, target, length - done, at + done, to + done)
            except OSError as error:
                if error.errno not in _CANNOT:
                    raise
                self.works = False
                return False
            if count == 0:
                raise ShardUnreadable(str(path), "it became shorter while it was read")
            done += count
        return True
