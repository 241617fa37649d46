"""The report of a run: one HTML file that opens anywhere, without a network."""

from __future__ import annotations

import os
import time
from pathlib import Path

from mslaunch.errors import NotReadyError
from mslaunch.runs.run import Run
from mslaunch.runs.run_secrets import secrets_of
from mslaunch.runs.writing import write_atomically
from mslaunch.ui.bounds import REPORT
from mslaunch.ui.document import Document, make_document
from mslaunch.ui.page import report_page


def report_document(run: Run) -> Document:
    """Return what the report of a run holds."""
    metrics = run.metrics()
    try:
        return make_document(run, metrics.table, time.time(), REPORT, secrets_of(run.folder, os.environ))
    finally:
        metrics.close()


def make_report(run: Run) -> str:
    """Return the report of a run as HTML."""
    document = report_document(run)
    return report_page(f"{document['name']}: {document['record']['state']}", document)


def write_report(run: Run, path: Path | None = None) -> Path:
    """Write the report of a run, by default into its folder, and return where it is."""
    target = path or run.folder.report
    text = make_report(run)
    try:
        if path is None:
            write_atomically(target, text)
        else:
            target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise NotReadyError(
            f"{target}: the report cannot be written ({error.strerror}). Name another file with -o."
        ) from None
    return target
