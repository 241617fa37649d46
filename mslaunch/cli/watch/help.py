"""What the view says about its keys: the last line of the screen, and the help."""

from __future__ import annotations

from collections.abc import Sequence

_KEYS = (
    ("q", "quit"),
    ("↑↓", "rank"),
    ("l", "log"),
    ("s", "stacks"),
    ("n", "notes"),
    ("v", "verdict"),
    ("/", "filter"),
    ("x", "stop"),
    ("?", "help"),
)
_OF_A_RUNNING_JOB = ("s", "x")
HELP = (
    *"""Keys
  up, down, j, k        choose a rank
  page up, page down    a page of ranks
  home, end, g, G       the first, the last rank
  0-9                   the rank with that number
  l                     its log on the whole screen
  s                     stacks of all ranks, of a job that runs
  n                     all notes
  v                     why the run failed
  /                     filter: ranks (0-7,12), or part of a state or host
  x                     stop the job, after a question
  Esc                   back to all ranks; there: no filter
  Ctrl-L                draw the screen again
  Ctrl-Z                suspend
  q                     quit
""".splitlines(),
    "",
    "Ranks in trouble come first: failed; suspended (SIGSTOP); silent: no step for 30 s, or for 10 steps where that is "
    "longer; nan: its loss is no number; slow: its step time is 1.5 times the median or more, or its threads wait for "
    "a core much longer than those of the median rank.",
)


def key_words(is_over: bool) -> str:
    """Return the keys in one line; those that do nothing for a run that is over are left out."""
    keys: Sequence[tuple[str, str]] = [one for one in _KEYS if not (is_over and one[0] in _OF_A_RUNNING_JOB)]
    return "  ".join(f"{key} {words}" for key, words in keys)
