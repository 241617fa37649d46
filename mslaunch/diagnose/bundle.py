"""A bundle: one zip file with everything that a verdict rests on, without secrets, to be read on another machine."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mslaunch.diagnose.excerpt import excerpt
from mslaunch.diagnose.masked_documents import TELLING, find_secrets, mask_document
from mslaunch.diagnose.masked_text import mask_text
from mslaunch.diagnose.masked_values import mask_values
from mslaunch.diagnose.reading import Read
from mslaunch.diagnose.sources import BROKEN, MEMBERS, Source, members_of
from mslaunch.documents.json_text import parse_json
from mslaunch.documents.limits import Unreadable
from mslaunch.shared import layout

LARGEST = 20_000_000
ABOUT = "bundle.json"
_FULL = 19_000_000  # nothing more is added
_ALL_EXCERPTS = 96_000_000  # before they are packed
_LONGEST_EXCERPT, _SHORTEST_EXCERPT = 2_000_000, 16_000
_LARGEST_DOCUMENT = 2_000_000
_LARGEST_ABOUT = 64 << 20
_DOCUMENTS = {
    *(layout.PLAN, layout.RECORD, layout.CONFIG, layout.CONFIG_JSON, layout.EVENTS, layout.LAUNCHER_LOG),
    *(layout.ERROR, layout.EXIT, layout.STACK, layout.ENV_LOG),
    *(log.rpartition("/")[2] for log in (layout.SETUP_LOG, layout.SYNC_LOG)),
}
_README = """A bundle of mslaunch: `mslaunch diagnose FILE.zip` reads it.

bundle.json   verdict, record, versions, environment and host, secrets masked
logs/         of every log the lines that matter; a line says how many were left out
"""


@dataclass(frozen=True, slots=True)
class Bundle:
    """What a bundle holds besides its logs."""

    about: Mapping[str, Any]
    sources: tuple[Source, ...]


def write_bundle(
    target: Path,
    about: Mapping[str, Any],
    sources: Sequence[Source],
    reads: Sequence[Read],
    environment: Mapping[str, str],
) -> list[str]:
    """Write a bundle below 20 MB; return what had to be left out. Secrets of the environment are masked in it."""
    known = _secrets(sources, environment)
    mask = partial(mask_text, known=known)
    omitted: list[str] = []
    with zipfile.ZipFile(target, "x", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("README.txt", _README)
        archive.writestr(ABOUT, json.dumps(mask_values(about, known), indent=1))
        _write_excerpts(archive, reads, mask, omitted)
        _write_documents(archive, sources, {read.source.name for read in reads}, known, omitted)
    return omitted


def _secrets(sources: Sequence[Source], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return what is secret by its name in the documents of a run and in an environment."""
    telling = (source for source in sources if source.name.rpartition("/")[2] in TELLING)
    texts = ((source.name, source.read_text(_LARGEST_DOCUMENT)) for source in telling)
    return find_secrets(((name, text) for name, text in texts if text is not None), environment)


def _write_excerpts(archive: zipfile.ZipFile, reads: Sequence[Read], mask: Any, omitted: list[str]) -> None:
    """Write the logs that tell most first."""
    share = max(_SHORTEST_EXCERPT, min(_LONGEST_EXCERPT, _ALL_EXCERPTS // max(1, len(reads))))
    order = sorted(reads, key=lambda read: not (read.findings.hits or read.findings.facts or read.findings.raised))
    for read in order:
        if _size(archive) > _FULL - share // 2:
            share = _SHORTEST_EXCERPT
        if _size(archive) > _FULL:
            omitted.append(read.source.name)
            continue
        try:
            text = b"".join(excerpt(read, share, mask))
        except BROKEN:
            omitted.append(read.source.name)
            continue
        archive.writestr(MEMBERS + read.source.name.removesuffix(".gz"), text)


def _write_documents(
    archive: zipfile.ZipFile, sources: Sequence[Source], written: set[str], known: Collection[str], omitted: list[str]
) -> None:
    """Write the small files of a run, and rank tables."""
    for source in sources:
        *folders, name = source.name.split("/")
        is_table = name.endswith(".json") and source.size <= _LARGEST_DOCUMENT
        if source.name in written or layout.CODE in folders or not (name in _DOCUMENTS or is_table):
            continue
        text = source.read_text(_LARGEST_DOCUMENT) if _size(archive) < _FULL else None
        if text is None:
            omitted.append(source.name)
        elif name in _DOCUMENTS or '"server_list"' in text:
            archive.writestr(MEMBERS + source.name, mask_document(source.name, text, known))


def _size(archive: zipfile.ZipFile) -> int:
    return 0 if archive.fp is None else archive.fp.tell()


def read_bundle(path: Path) -> Bundle:
    """Open a bundle; what is wrong with it is Unreadable."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(ABOUT) as file:
            data = file.read(_LARGEST_ABOUT + 1)
        if len(data) > _LARGEST_ABOUT:
            raise Unreadable(f"its {ABOUT} is larger than {_LARGEST_ABOUT >> 20} MB")
        about = parse_json(data.decode("utf-8", "replace"))
        sources = tuple(members_of(path))
    except Unreadable:
        raise
    except BROKEN as error:
        raise Unreadable(str(error)) from None
    if not isinstance(about, dict):
        raise Unreadable(f"its {ABOUT} is not a JSON object")
    return Bundle(about, sources)
