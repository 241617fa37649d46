"""The screen of a running job: output of ranks with a prefix, one live line in a terminal, the verdict at the end."""

from __future__ import annotations

import shutil
import time
from typing import Any, TextIO

from mslaunch.cli.describe import describe_end, describe_verdict
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
        self._headlined = False
        self._shown = ""

    def open(self) -> None:
        plan = self.plan
        ranks = f"{plan.world_size} rank{'s' if plan.world_size > 1 else ''}"
        self.write(
            [f"mslaunch: run {plan.run_id}: {ranks} on {plan.device_target}, {plan.method}; logs in {plan.run_dir}"]
        )
        self.write([f"mslaunch: {note}" for note in plan.notes])

    def observe(self, event: dict[str, Any], story: Story) -> None:
        """Show one event, and what the story has to say by now."""
        kind = event["ev"]
        if kind == "lines":
            self._show_output(event["rank"], event["lines"])
        elif kind == "signal" and story.interrupt is not None:
            self.write(["mslaunch: stopping all ranks (Ctrl-C again ends them at once)"])
        elif kind == "restart":
            self._headlined = False
        self.write([f"mslaunch: {note}" for note in story.take_notes()])
        if story.failures and not self._headlined and kind != "restart":
            self._headlined = True
            self.write([headline(story)])
        if self.live:
            self._draw(story)

    def close(self, final: RunRecord) -> None:
        """Say how it ended; a failure with its whole verdict, last on the screen."""
        self._clear()
        self.write([describe_end(final, time.monotonic() - self.began)])
        show_verdict(final, self.stream)

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


def headline(story: Story) -> str:
    """One line, at once: who failed, and what is done about it."""
    failure = story.failures[0]
    who = f"rank {failure.rank} on {failure.host}: " if failure.rank is not None else ""
    what = (failure.summary.splitlines() or [""])[-1][:200]
    others = len(story.running) - (1 if failure.rank in story.running else 0)
    rest = f"; stopping {others} other rank{'s' if others > 1 else ''}" if others else ""
    return f"mslaunch: {who}{what}{rest}"


def show_verdict(final: RunRecord, stream: TextIO) -> None:
    """Show a failed run's verdict: in a terminal as a panel, elsewhere indented."""
    lines = describe_verdict(final)
    if not lines:
        return
    if stream.isatty():
        from rich.console import Console as RichConsole
        from rich.panel import Panel
        from rich.text import Text

        panel = Panel(Text("\n".join(lines)), title=f"why run {final.run_id} failed", border_style="red")
        RichConsole(file=stream).print(panel)
    else:
        stream.write("".join(f"  {line}".rstrip() + "\n" for line in lines))
        stream.flush()
