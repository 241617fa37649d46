"""report.html at the end of a run (`launch.report`)."""

from __future__ import annotations

from mslaunch.errors import MslaunchError
from mslaunch.runs.paths import RunFolder
from mslaunch.runs.run import Run


def write_final_report(folder: RunFolder) -> str:
    """Write the report of a run that has ended and say where it is; a failure costs the report, never the run."""
    try:
        from mslaunch.ui.report import write_report

        return f"report: {write_report(Run(folder))}"
    except MslaunchError as error:
        return str(error)
    except Exception as error:
        return f"report.html could not be written: {type(error).__name__}: {error}"
