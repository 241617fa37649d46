"""The screen of a running job: output of ranks with a prefix, one live line in a terminal, the verdict at the end."""

from __future__ import annotations

import shutil
import time
from typing import Any, TextIO

from mslaunch.cli.describe import describe_end
from mslaunch.cli.progress import Progress
from mslaunch.launch.record import RunRecord
from mslaunch.launch.story import Story
from mslaunch.plan.model import Plan

CLEAR = "\r\x1b[K"


class Console:
    """Shows events as they come. With no terminal, plain lines only."""

    def __init__(self, plan: Plan, stream: TextIO) -> None:
        self.plan = plan
        self.stream = stream
        self.live = stream.isatty()
        self.progress = Progress()
        self.began = time.monotonic()
        self._headline = False
        self._shown = ""

    def open(self) -> None:
        plan = self.plan
        ranks = f"{plan.world_size} rank{'s' if plan.world_size > 1 else ''}"
        self.write(
            [f"mslaunch: run {plan.run_id}: {ranks} on {plan.device_target}, {plan.method}; logs in {plan.run_dir}"]
        )
        self.write([f"mslaunch: {note}" for note in plan.notes])

    def observe(self, event: dict[str, Any], story: Story) -> None:
        """Show one event."""
        kind = event["ev"]
        if kind == "lines":
            self._show_output(event["rank"], event["lines"])
        elif kind == "signal":
            how = "Ctrl-C again ends them at once" if len(story.ranks) > story_ended(story) else "almost done"
            self.write([f"mslaunch: stopping all ranks ({how})"])
        elif story.failures and not self._headline:
            self._headline = True
            failure = story.failures[0]
            who = f"rank {failure.rank} on {failure.host}: " if failure.rank is not None else ""
            self.write([f"mslaunch: {who}{failure.summary.splitlines()[-1]}; stopping the others"])
        if self.live:
            self._draw(story)

    def close(self, final: RunRecord) -> None:
        self._clear()
        self.write(describe_end(final, time.monotonic() - self.began))

    def write(self, lines: list[str]) -> None:
        if lines:
            self._clear()
            self.stream.write("".join(f"{line}\n" for line in lines))
            self.stream.flush()

    def _show_output(self, rank: int, lines: list[str]) -> None:
        now = time.monotonic()
        if rank == self.plan.tail[0]:
            for line in lines:
                self.progress = self.progress.read(line, now)
        self.write([f"[rank {rank}] {line}" for line in lines])

    def _draw(self, story: Story) -> None:
        up = sum(1 for record in story.ranks.values() if record.state == "running")
        parts = [f"{up}/{self.plan.world_size} ranks up"]
        if story.joined and len(story.joined) < self.plan.world_size:
            parts.append(f"{len(story.joined)} joined")
        parts += self.progress.words()
        seconds = int(time.monotonic() - self.began)
        parts.append(f"{seconds // 60}:{seconds % 60:02d}")
        text = " | ".join(parts)[: shutil.get_terminal_size().columns - 1]
        if text != self._shown:
            self.stream.write(f"{CLEAR}{text}")
            self.stream.flush()
            self._shown = text

    def _clear(self) -> None:
        if self._shown:
            self.stream.write(CLEAR)
            self._shown = ""


def story_ended(story: Story) -> int:
    return sum(1 for record in story.ranks.values() if record.ended)
