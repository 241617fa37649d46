"""What is said of variables in the shell that describe another job: they reach no rank, and may have been meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

_SIZES = ("RANK_SIZE", "DEVICE_NUM")
"""How many ranks the scripts for rank tables export, of the job and of a host."""


def describe(environment: Mapping[str, str], unset: tuple[str, ...], world_size: int, has_table: bool) -> Iterator[str]:
    """Yield what to say of the variables that are unset for a job of so many ranks."""
    names = [name for name in unset if not name.startswith("MSLAUNCH_")]
    if names:
        shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        yield f"not passed on to the ranks, since another launcher or the shell had set them: {shown}"
    if "MSLAUNCH_RUN_DIR" in environment:
        return  # a rank that launches: these describe its own job
    if environment.get("RANK_TABLE_FILE") and not has_table:
        yield "RANK_TABLE_FILE is not used; give --rank-table FILE"
    yield from _size(environment, world_size)


def _size(environment: Mapping[str, str], world_size: int) -> Iterator[str]:
    for name in _SIZES:
        text = environment.get(name, "")
        if text.isascii() and text.isdigit() and len(text) <= 6:
            if int(text) not in (0, world_size):
                started = "1 rank is" if world_size == 1 else f"{world_size} ranks are"
                yield f"{name}={text} is set here, and {started} started: give --workers {int(text)}"
            return
