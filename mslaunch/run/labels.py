"""labels.json: the tags and notes that people give a run. A file of its own, since the launcher rewrites run.json."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from mslaunch.documents.limits import Unreadable, read_text
from mslaunch.documents.schema import SCHEMA_VERSION, parse_record
from mslaunch.documents.typed import make
from mslaunch.errors import RecordUnreadable, RequestError, RunsFolderUnwritable
from mslaunch.run.ownership import check_owner
from mslaunch.run.paths import RunFolder
from mslaunch.run.record import iso
from mslaunch.run.writing import why, write_atomically

LARGEST = 1 << 20
LONGEST_NOTE = 4096
MOST = 1000


@dataclass(frozen=True, slots=True)
class UserNote:
    """A sentence that somebody has written about a run."""

    time: str
    text: str


@dataclass(frozen=True, slots=True)
class Labels:
    """What people say about a run."""

    tags: tuple[str, ...] = ()
    notes: tuple[UserNote, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def read(folder: RunFolder) -> Labels:
    """Return a run's labels; none where the file is not there or cannot be read."""
    try:
        return read_strictly(folder)
    except RecordUnreadable:
        return Labels()


def read_strictly(folder: RunFolder) -> Labels:
    """Return a run's labels; raise RecordUnreadable where they cannot be read."""
    name = str(folder.labels)
    try:
        return make(Labels, parse_record(read_text(folder.labels, LARGEST, only_files=True), name))
    except FileNotFoundError:
        return Labels()
    except (OSError, Unreadable) as error:
        raise RecordUnreadable(name, error) from None


def save(folder: RunFolder, labels: Labels) -> None:
    """Write the labels of a run."""
    raw = {"schema_version": SCHEMA_VERSION, **labels.to_dict()}
    write_atomically(folder.labels, json.dumps(raw, indent=1) + "\n")


def label(folder: RunFolder, note: str | None = None, add: Sequence[str] = (), remove: Sequence[str] = ()) -> Labels:
    """Add a note and tags to one's own run, and remove tags; two that do so at once wait for each other."""
    check_owner(folder, "note")
    lock = -1
    try:
        lock = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        labels = change_tags(read_strictly(folder), add, remove)
        if note is not None:
            if not note.strip() or len(note) > LONGEST_NOTE or "\0" in note:
                raise RequestError(f"a note has 1 to {LONGEST_NOTE} characters of text, got {len(note)}.")
            labels = replace(labels, notes=(*labels.notes, UserNote(iso(time.time()), note))[-MOST:])
        save(folder, labels)
    except OSError as error:
        raise RunsFolderUnwritable(str(folder.path), why(error)) from None
    finally:
        if lock >= 0:
            os.close(lock)
    return labels


def change_tags(labels: Labels, add: Sequence[str], remove: Sequence[str]) -> Labels:
    """Add and remove tags; each is there once, in the order in which they came."""
    from mslaunch.settings.value_types import WHAT_A_TAG_IS, is_tag

    for tag in remove:
        if tag not in labels.tags:
            has = f"it has {', '.join(labels.tags)}" if labels.tags else "it has no tags"
            raise RequestError(f"the run has no tag {tag!r} to remove; {has}.")
    for tag in add:
        if not is_tag(tag):
            raise RequestError(f"{tag!r} is no tag. Write {WHAT_A_TAG_IS}.")
    remaining = [tag for tag in labels.tags if tag not in remove]
    return replace(labels, tags=tuple(dict.fromkeys([*remaining, *add]))[:MOST])
