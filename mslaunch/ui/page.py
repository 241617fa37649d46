"""The page: its parts are files of this package; a report holds them inline, the server serves them."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
import time
from contextlib import closing
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from mslaunch.errors import NotReadyError
from mslaunch.masking.documents import secrets_of_run
from mslaunch.run.run import Run
from mslaunch.run.writing import write_atomically
from mslaunch.ui.bounds import REPORT
from mslaunch.ui.document import Document, make_document

MODULES = ("text", "axes", "chart", "plots", "heat", "timeline", "head", "sections", "logs", "server", "runs", "main")
"""The script in parts, each of which may use those before it."""
_IMPORT = re.compile(r'^import (\{.*?\}) from "\./(\w+)\.js";$', re.MULTILINE | re.DOTALL)
_EXPORT = re.compile(r"^export ((?:async )?(?:function|class|const) (\w+))", re.MULTILINE)


def _file(name: str) -> str:
    return (resources.files(__package__) / "page" / name).read_text(encoding="utf-8")


@cache
def script() -> str:
    """Return all modules as one, since an inline script can import nothing; names of each stay its own."""
    functions = ""
    for name in MODULES:
        text = _file(f"{name}.js")
        names = ", ".join(export[2] for export in _EXPORT.finditer(text))
        inner = _EXPORT.sub(r"\1", _IMPORT.sub(r"const \1 = from_\2;", text))
        functions += f"const from_{name} = (() => {{\n{inner}return {{ {names} }};\n}})();\n"
    return functions


@cache
def style() -> str:
    return _file("style.css")


def live_page(title: str) -> str:
    """Return the page of the server, which loads its parts from there."""
    head = '<link rel="stylesheet" href="style.css">'
    return _filled(title, head, '<script type="module" src="script.js"></script>')


def report_page(title: str, document: Any) -> str:
    """Return one file that needs nothing else, and that nothing but its own script can run in."""
    policy = (
        f"default-src 'none'; script-src '{_digest(script())}'; style-src '{_digest(style())}'; "
        "base-uri 'none'; form-action 'none'"
    )
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style()}</style>'
    data = f'<script type="application/json" id="document">{_for_html(document)}</script>'
    return _filled(title, head, f'{data}\n<script type="module">{script()}</script>')


def _filled(title: str, head: str, body: str) -> str:
    parts = {"title": html.escape(title), "head": head, "body": body}
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _file("page.html"))


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _for_html(document: Any) -> str:
    """Write JSON that no text in it can end: `</script>` and `<!--` have no `<` left."""
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    safe = text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return safe.encode("utf-8", "replace").decode()


def report_document(run: Run) -> Document:
    """Return what the report of a run holds."""
    with closing(run.metrics()) as metrics:
        return make_document(run, metrics.table, time.time(), REPORT, secrets_of_run(run.path, os.environ))


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
