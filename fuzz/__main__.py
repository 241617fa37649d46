"""`python -m fuzz`: runs every border, or one, and says what it found."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from fuzz.borders import BORDERS
from fuzz.run import Border, Outcome, run_border

SAVED = Path("fuzz-findings")


def main() -> int:
    """Run what the command line asks for; 1 where there is a finding."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000, help="cases a border")
    parser.add_argument("--border", choices=[border.name for border in BORDERS], action="append", help="this one only")
    parser.add_argument("--seed", type=int, default=1, help="another seed makes other cases")
    parser.add_argument("--case", type=int, help="this case only")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    cases = range(asked.cases) if asked.case is None else range(asked.case, asked.case + 1)
    found = 0
    for border in BORDERS:
        if not asked.border or border.name in asked.border:
            found += _run(border, asked.seed, cases, asked.processes)
    return 1 if found else 0


def _run(border: Border, seed: int, cases: range, processes: int) -> int:
    began = time.monotonic()

    def show(done: int) -> None:
        if sys.stderr.isatty():
            print(f"\r\x1b[K{border.name}: {done:,} of {len(cases):,}", end="", file=sys.stderr, flush=True)

    outcome = run_border(border, seed, cases, processes, show)
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    seconds = time.monotonic() - began
    print(f"{border.name}: {outcome.cases:,} cases, {outcome.count} findings ({seconds:.0f} s)", flush=True)
    _tell(border, seed, outcome)
    return outcome.count


def _tell(border: Border, seed: int, outcome: Outcome) -> None:
    for finding in sorted(outcome.findings.values(), key=lambda finding: finding.case):
        SAVED.mkdir(exist_ok=True)
        path = SAVED / f"{border.name}-{seed}-{finding.case}"
        path.write_bytes(finding.data)
        path.with_name(f"{path.name}.txt").write_text(finding.trace, errors="backslashreplace")
        last = (finding.trace.strip().splitlines() or [""])[-1][:200]
        print(f"  {finding.what} {finding.where}: {last}")
        print(f"    input saved to {path}; again: make fuzz BORDER={border.name} SEED={seed} CASE={finding.case}")


if __name__ == "__main__":
    sys.exit(main())
