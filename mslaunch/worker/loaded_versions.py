"""mslaunch_versions.json: the versions of what rank 0 has loaded, for whoever compares runs later."""

from __future__ import annotations

import os
import sys

from mslaunch import __version__
from mslaunch.shared import layout
from mslaunch.worker import report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mslaunch.worker.report import Value

LIBRARIES = (
    *("mindspore", "numpy", "mindformers", "mindcv", "mindnlp", "mindone", "mindyolo", "msadapter", "torch"),
    *("transformers", "tokenizers", "datasets", "safetensors", "scipy", "pandas"),
)


def write() -> None:
    """Write the versions of what is loaded by now; only rank 0 does, since all have the same."""
    if report.me.rank != 0 or os.getpid() != report.me.pid:
        return
    versions: dict[str, Value] = {"mslaunch": __version__, "python": sys.version.split()[0]}
    for name in LIBRARIES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            versions[name] = version[:100]
    try:
        report.write_json(os.path.join(report.me.folder, layout.VERSIONS), versions)
    except OSError:
        pass  # a full disk: the job has other worries
