"""Writes a container image for nodes that mount the machine's programs into containers: image.py FILE BUSYBOX.

It has empty folders, and one program for the container that holds a pod's namespaces, which mounts nothing.
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path

NAME = "docker.io/local/job:1"
PASSWD = b"root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/tmp:/bin/sh\n"
FOLDERS = {"etc": 0o755, "tmp": 0o1777, "var": 0o755, "var/tmp": 0o1777, "run": 0o755, "root": 0o755, "usr": 0o755}
LINKS = ("bin", "lib", "lib64", "sbin")


def layer(busybox: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, mode in FOLDERS.items():
            info = tarfile.TarInfo(name)
            info.type, info.mode = tarfile.DIRTYPE, mode
            archive.addfile(info)
        for name in LINKS:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, f"usr/{name}"
            archive.addfile(info)
        _add(archive, "etc/passwd", PASSWD)
        _add(archive, "sleep", busybox, 0o755)
    return packed.getvalue()


def write(path: str, busybox: str) -> None:
    """Write the archive that `ctr images import` reads."""
    content = layer(Path(busybox).read_bytes())
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": ["/sleep", "infinity"], "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(content).hexdigest()}"]},
        "history": [{}],
    }
    described = json.dumps(config).encode()
    name = f"{hashlib.sha256(described).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": [NAME], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as archive:
        _add(archive, name, described)
        _add(archive, "layer.tar", content)
        _add(archive, "manifest.json", json.dumps(manifest).encode())


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), mode
    archive.addfile(info, io.BytesIO(content))


if __name__ == "__main__":
    write(*sys.argv[1:])
