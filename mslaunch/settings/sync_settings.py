"""`launch.sync`: data that each host fetches before its ranks start, and sends after they have ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlsplit

from mslaunch.settings.setting import Before, Matching, setting

SCHEMES = ("obs", "s3")


def _bucket(value: str) -> str:
    scheme, separator, rest = value.partition("://")
    bucket = rest.partition("/")[0]
    if scheme not in SCHEMES or not separator or not bucket or not value.isprintable() or set(bucket) & set(" @?#:"):
        raise ValueError("name a bucket and a folder in it, for example obs://bucket/data")
    return value.rstrip("/")


def _local(value: str) -> str:
    if not value or "://" in value or not value.isprintable():
        raise ValueError("name a folder of the host, for example /cache/data")
    return value


def _endpoint(value: str) -> str:
    try:
        parts = urlsplit(value)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address or not value.isprintable() or " " in value:
        raise ValueError("write the whole address, for example https://obs.cn-north-4.myhuaweicloud.com")
    return value


def _without_keys(value: Any) -> Any:
    """Refuse keys in an address: the plan would hold them."""
    if isinstance(value, str) and "://" in value and "@" in value:
        raise ValueError("leave keys out of the address: they come from the environment (--env AWS_SECRET_ACCESS_KEY)")
    return value


Bucket = Annotated[str, _bucket, Before(_without_keys)]
Local = Annotated[str, _local]
Absolute = Annotated[Local, Matching("/.*", "name a folder of the host by its absolute path, for example /cache/data")]


@dataclass(frozen=True)
class Fetched:
    """One of `launch.sync.before`."""

    source: Bucket = setting(..., "Folder or object of a bucket.", key="from")
    target: Absolute = setting(..., "Folder of the host that it is written into.", key="to")


@dataclass(frozen=True)
class Sent:
    """One of `launch.sync.after`."""

    source: Local = setting(
        ..., "Folder or file; a relative path is looked up in the working directory of each rank.", key="from"
    )
    target: Bucket = setting(..., "Folder of a bucket that it is written into.", key="to")


@dataclass(frozen=True)
class SyncSettings:
    """What stands under `launch.sync`."""

    before: tuple[Fetched, ...] = setting((), "Fetched on each host before its ranks start.")
    after: tuple[Sent, ...] = setting((), "Sent from each host when its ranks have ended.")
    endpoint: Annotated[str, _endpoint, Before(_without_keys)] | None = setting(
        None, "Address of the object store; by default S3_ENDPOINT_URL, then AWS_ENDPOINT_URL."
    )

    def __str__(self) -> str:
        moves = [
            f"{name} {copy.source} to {copy.target}" for name in ("before", "after") for copy in getattr(self, name)
        ]
        return "; ".join([*moves, *([f"endpoint {self.endpoint}"] if self.endpoint else [])])
