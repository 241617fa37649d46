"""Hook of mkdocs: pages of the site that are files outside docs/, and links that leave docs/."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PAGES = {
    "README.md": "index.md",
    "README.zh-CN.md": "zh/index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
}
"""File of the repository → page of the site."""

SOURCES = {page: source for source, page in PAGES.items()}
LINK = re.compile(r"\[([^][]*)\]\(([^()\s:#]+)(#[^()\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    return LINK.sub(lambda link: moved(link, page.file.src_uri), markdown)


def moved(link: re.Match[str], page: str) -> str:
    """A link as it is on the site; where the site does not have the file, its path in the sources."""
    text, target, anchor = link[1], link[2], link[3] or ""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(SOURCES.get(page, f"docs/{page}")), target))
    if not (ROOT / path).exists():
        return link[0]  # code that looks like a link, or a mistake that mkdocs reports
    if path not in PAGES and not path.startswith("docs/"):
        return f"{text} (`{path}`)" if path not in text else text
    found = PAGES.get(path, path.removeprefix("docs/"))
    return f"[{text}]({posixpath.relpath(found, posixpath.dirname(page) or '.')}{anchor})"
