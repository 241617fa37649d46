"""What nodes that join and their launcher send each other, and what systems tell a node by variables."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fuzz.mutate import mutate_json
from fuzz.run import Border, samples
from mslaunch.cli.console.console import verdict_text
from mslaunch.cli.console.describe import describe_end
from mslaunch.run.record import from_dict
from mslaunch.transports.cluster_environment import detect
from mslaunch.transports.join.listener import LONGEST_HELLO, Places, Refused, read_hello
from mslaunch.transports.join.tls_stream import RECORD, BrokenStream, FrameReader, frame, read_record


def _open_hello(folder: Path) -> Callable[[bytes], object]:
    del folder

    def read(data: bytes) -> None:
        with suppress(BrokenStream):
            FrameReader(LONGEST_HELLO).feed(data)
        with suppress(BrokenStream, Refused):
            for kind, payload in FrameReader(LONGEST_HELLO).feed(frame(RECORD, data)):
                assert kind == RECORD
                hello = read_hello(read_record(payload))
                place = Places(4, "0.1", may_come_back=True).admit(hello)
                assert (place.refusal is None) == (0 <= place.rank < 4)

    return read


def _open_end(folder: Path) -> Callable[[bytes], object]:
    del folder

    def read(data: bytes) -> None:
        try:
            end = read_record(data)
        except BrokenStream:
            return
        record = end.get("record")
        if isinstance(record, dict):
            made = from_dict(record, "n0:29400")
            describe_end(made, 1.0)
            verdict_text(made, False)

    return read


def _open_variables(folder: Path) -> Callable[[bytes], object]:
    del folder

    def read(data: bytes) -> None:
        try:
            variables = json.loads(data)
        except (ValueError, RecursionError):
            return
        if isinstance(variables, dict):
            texts = {str(name): value for name, value in variables.items() if isinstance(value, str)}
            if found := detect(texts):
                found.words()

    return read


BORDERS = (
    Border("join-hello", samples("join-hello"), mutate_json, _open_hello),
    Border("join-end", samples("join-end"), mutate_json, _open_end),
    Border("join-variables", samples("join-variables"), mutate_json, _open_variables),
)
