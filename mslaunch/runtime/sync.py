"""launch.sync on one host: copies between a bucket and the host, with moxing or boto3, whichever the job's Python has.

`python -m mslaunch.runtime.sync FD ORDER` writes one sentence to the open file FD where something failed.
"""

from __future__ import annotations

import json
import os
import sys

from mslaunch.shared import layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

ENDPOINTS = ("S3_ENDPOINT_URL", "AWS_ENDPOINT_URL")
AT_ONCE = 8  # files that are copied at the same time
NEITHER = (
    f"neither moxing nor boto3 can be imported by {sys.executable}, and launch.sync needs one of them. "
    "Install it there, for example with pip install boto3."
)


class CopyFailed(Exception):
    """Something was not copied; the message is one sentence."""


class Moxing:
    """Copies with ModelArts' own library."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def fetch(self, source: str, target: str) -> None:
        if not self._file.exists(source):
            raise CopyFailed(f"{source} holds nothing")
        os.makedirs(target, exist_ok=True)
        if self._file.is_directory(source):
            self._file.copy_parallel(source, target)
        else:
            self._file.copy(source, os.path.join(target, os.path.basename(source)))

    def send(self, source: str, target: str) -> None:
        if os.path.isdir(source):
            self._file.copy_parallel(source, target)
        else:
            self._file.copy(source, f"{target}/{os.path.basename(source)}")


class Boto:
    """Copies with boto3 from and to any store that speaks S3, OBS among them."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def fetch(self, source: str, target: str) -> None:
        bucket, prefix = split_address(source)
        files: dict[str, str] = {}
        for key in self._keys(bucket, prefix):
            below = key[len(prefix) :].lstrip("/") if key != prefix else key.rpartition("/")[2]
            if {"", ".", ".."} & set(below.split("/")) or "\0" in below:
                raise CopyFailed(f"{source} holds the name {key!r}, which would be written outside of {target}")
            files[key] = os.path.join(target, below)
        if not files:
            raise CopyFailed(f"{source} holds nothing")
        for folder in sorted({os.path.dirname(path) for path in files.values()}):
            os.makedirs(folder, exist_ok=True)
        self._copy_all([(self._client.download_file, (bucket, key, path), key) for key, path in files.items()])

    def send(self, source: str, target: str) -> None:
        bucket, prefix = split_address(target)
        above = f"{prefix}/" if prefix else ""
        upload = self._client.upload_file
        self._copy_all([(upload, (path, bucket, above + name), name) for path, name in files_below(source)])

    def _keys(self, bucket: str, prefix: str) -> Iterator[str]:
        """Every object of this name or in the folder of this name; entries that only stand for folders are none."""
        for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
            for entry in page.get("Contents", ()):
                key = entry["Key"]
                if not key.endswith("/") and (not prefix or key == prefix or key.startswith(f"{prefix}/")):
                    yield key

    def _copy_all(self, copies: list[tuple[Any, tuple[str, ...], str]]) -> None:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(AT_ONCE) as pool:
            results = [(pool.submit(copy, *args), name) for copy, args, name in copies]
            errors = [(name, result.exception()) for result, name in results]
        failed = [(name, error) for name, error in errors if error is not None]
        if failed:
            name, error = failed[0]
            raise CopyFailed(
                f"{len(failed)} of {len(copies)} files were not copied, the first is {name}: {describe(error)}"
            )


def describe(error: BaseException) -> str:
    """An error as one line."""
    return (" ".join(str(error).split()) or type(error).__name__)[:500]


def split_address(address: str) -> tuple[str, str]:
    bucket, _, name = address.partition("://")[2].partition("/")
    return bucket, name


def files_below(source: str) -> Iterator[tuple[str, str]]:
    """Every file of a folder, or the file itself, with its name in the bucket."""
    if not os.path.isdir(source):
        yield source, os.path.basename(source)
    for folder, _, names in os.walk(source):
        for name in sorted(names):
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                yield path, os.path.relpath(path, source)


def load_library(endpoint: str | None, schemes: set[str]) -> Moxing | Boto:
    """Take moxing where it is installed, else boto3."""
    try:
        import moxing

        return Moxing(moxing.file)
    except ImportError:
        pass
    try:
        import boto3
        from botocore.config import Config
    except ImportError:
        raise CopyFailed(NEITHER) from None
    endpoint = endpoint or next((os.environ[name] for name in ENDPOINTS if os.environ.get(name)), None)
    if endpoint is None and "obs" in schemes:
        raise CopyFailed("no address of the object store is given: set launch.sync.endpoint or S3_ENDPOINT_URL")
    try:  # stores other than Amazon's may not know its newer checksums
        config = Config(request_checksum_calculation="when_required", response_checksum_validation="when_required")
    except TypeError:  # before botocore 1.36
        config = Config()
    return Boto(boto3.client("s3", endpoint_url=endpoint, config=config))


def expand(source: str, target: str, ranks: list[tuple[int, str]], run_dir: str) -> list[tuple[str, str]]:
    """Find what a relative path names for each rank: what lies in a rank's own folder goes to a folder of its own."""
    targets: dict[str, str] = {}
    if os.path.isabs(source):
        if os.path.exists(source):
            targets[source] = target
    else:
        for rank, cwd in ranks:
            path = os.path.realpath(os.path.join(cwd, source))
            own = os.path.realpath(os.path.join(run_dir, layout.rank_folder(rank)))
            if os.path.exists(path):
                is_own = path == own or path.startswith(f"{own}/")
                targets[path] = f"{target}/{layout.rank_folder(rank)}" if is_own else target
    if not targets:
        raise CopyFailed(f"{source} does not exist")
    return list(targets.items())


def copy(order: dict[str, Any]) -> list[str]:
    """Do all copies of an order; return a sentence for each that failed."""
    moves = [(move["source"], move["target"]) for move in order["moves"]]
    schemes = {address.partition("://")[0] for move in moves for address in move if "://" in address}
    try:
        library = load_library(order["endpoint"], schemes)
    except Exception as error:
        return [describe(error)]
    failed = []
    for source, target in moves:
        try:
            if order["phase"] == "before":
                library.fetch(source, target)
            else:
                for path, place in expand(source, target, order["ranks"], order["run_dir"]):
                    library.send(path, place)
        except Exception as error:
            failed.append(f"{source} to {target}: {describe(error)}")
            if order["phase"] == "before":
                break  # the ranks will not be started
    return failed


def main() -> None:
    failed = copy(json.loads(sys.argv[2]))
    if failed:
        with os.fdopen(int(sys.argv[1]), "w", encoding="utf-8", errors="replace") as file:
            file.write("; ".join(failed))
        sys.exit(1)


if __name__ == "__main__":
    main()
