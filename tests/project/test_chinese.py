"""The Chinese documentation keeps up with the English one: pages, headings, commands, settings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mslaunch.settings.launch import SETTINGS as LAUNCH_SETTINGS
from tests.beds.doc_commands import commands
from tests.conftest import ROOT

ENGLISH = ROOT / "docs"
CHINESE = ROOT / "docs" / "zh"
ENGLISH_ONLY = {
    "cli.md": "generated",
    "records.md": "compared with the types",
    "file-ways.md": "a table that a test checks",
    "design.md": "for contributors",
    "transports.md": "for authors of plug-ins",
    "speed.md": "figures",
}
OF_THE_ROOT = {"README.md", "CONTRIBUTING.md", "CHANGELOG.md"}
PAIRS = [(ROOT / "README.md", ROOT / "README.zh-CN.md")] + [
    (ENGLISH / path.name, path) for path in sorted(CHINESE.glob("*.md"))
]


def headings(path: Path) -> list[int]:
    """The levels of a page's headings, in order."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [len(mark) for mark in re.findall(r"^(#+) ", text, re.MULTILINE)]


def test_every_page_for_users_is_there_in_chinese() -> None:
    """A new page is translated, or named here with the reason why not."""
    english = {path.name for path in ENGLISH.glob("*.md")}
    assert {path.name for path in CHINESE.glob("*.md")} == english - set(ENGLISH_ONLY)


@pytest.mark.parametrize(("english", "chinese"), PAIRS, ids=lambda path: path.name)
def test_both_languages_have_the_same_headings(english: Path, chinese: Path) -> None:
    """As many, on the same levels, in the same order."""
    assert headings(chinese) == headings(english)


@pytest.mark.parametrize(("english", "chinese"), PAIRS, ids=lambda path: path.name)
def test_both_languages_show_the_same_commands(english: Path, chinese: Path) -> None:
    """Their comments are translated, and nothing else."""
    assert commands(chinese) == commands(english)


SETTINGS = set(LAUNCH_SETTINGS)


def test_both_languages_list_the_same_settings() -> None:
    """The table of launch: has the same keys in the same order."""
    rows = [
        [
            key
            for key in re.findall(r"^\| (\w+) \| ", (folder / "config.md").read_text(), re.MULTILINE)
            if key in SETTINGS
        ]
        for folder in (ENGLISH, CHINESE)
    ]
    assert rows[0] == rows[1]
    assert set(rows[0]) == SETTINGS


@pytest.mark.parametrize("chinese", [chinese for _, chinese in PAIRS], ids=lambda path: path.name)
def test_a_chinese_page_links_to_chinese_pages(chinese: Path) -> None:
    """An English page is linked where there is no Chinese one, or where the text says that it is the English one."""
    for text, target in re.findall(r"\[([^][]*)\]\(([^()\s:#]+\.md)", chinese.read_text()):
        name = Path(target).name
        is_chinese = (CHINESE / name).exists() and "zh" in (chinese.parent / target).resolve().parts
        assert is_chinese or name in ENGLISH_ONLY or "英文" in text or name in OF_THE_ROOT, target
