"""The documentation as a site: `make docs` builds it, its links lead somewhere, nothing is loaded from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tools import site_pages


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once; --strict makes a broken link an error, unless --quiet hides it."""
    pytest.importorskip("material", reason="mkdocs-material is not installed (pip install '.[docs]')")
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)]
    env = {**os.environ, "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def test_every_page_is_built(site: Path) -> None:
    """Those of docs/, and those that are files of the repository's root."""
    pages = [path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")]
    pages += [Path(page).with_suffix("") for page in site_pages.PAGES.values()]
    for page in pages:
        folder = page.parent if page.name == "index" else page
        assert (site / folder / "index.html").exists(), page


def test_every_link_of_the_site_leads_to_a_file(site: Path) -> None:
    """Pictures, styles and scripts included."""
    for path in site.rglob("*.html"):
        if path.name == "404.html":
            continue  # its links begin at the address where the site is served
        for target in re.findall(r'(?:href|src)="([^"#?]+)[^"]*"', path.read_text()):
            if not target.startswith(("http", "data:", "mailto:")):
                assert (path.parent / target).exists(), f"{path.relative_to(site)}: {target}"


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    """A cluster without access to the Internet can show the site: no fonts, scripts or pictures of others."""
    for path in site.rglob("*.html"):
        assert re.findall(r'<(?:script|img)[^>]* src="(?:https?:)?//', path.read_text()) == [], path
        assert (
            re.findall(r'<link[^>]* rel="(?:stylesheet|preconnect)"[^>]* href="(?:https?:)?//', path.read_text()) == []
        )


def test_the_search_finds_a_setting(site: Path) -> None:
    """The index has the text of the pages."""
    assert "stall_timeout" in (site / "search" / "search_index.json").read_text()


def test_a_link_that_leaves_the_site_is_shown_as_a_path() -> None:
    """Examples are no pages; their place in the sources is told."""
    link = site_pages.LINK.search("see [the example](../examples/data_parallel)")
    assert link
    assert site_pages.moved(link, "checkpoints.md") == "the example (`examples/data_parallel`)"


def test_links_of_the_readme_fit_the_home_page() -> None:
    """README.md lies one level above docs/, the home page does not."""
    link = site_pages.LINK.search("[figures](docs/speed.md#speed)")
    assert link
    assert site_pages.moved(link, "index.md") == "[figures](speed.md#speed)"


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "images").iterdir()), ids=lambda path: path.name)
def test_pictures_show_no_path_of_the_machine_that_made_them(path: Path) -> None:
    """They are made in /tmp/demo, and load nothing."""
    text = path.read_text()
    assert set(re.findall(r"/(?:root|home|work|tmp)/\w+", text)) <= {"/tmp/demo"}
    assert "url(http" not in text
