"""The documentation as a site: complete, loads nothing from elsewhere, and its pictures are small."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
import yaml

from paths import ROOT

DOCS = ROOT / "docs"
CONFIG: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
PICTURE_BYTES_MAX = 300_000
ELSEWHERE = re.compile(
    r"""<(?:script|img|iframe)\b[^>]*\bsrc=["']?https?:|<link\b[^>]*\brel=["']?(?:stylesheet|pre)[^>]*https?:"""
)


def pages(entry: Any) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    return [page for inner in (entry.values() if isinstance(entry, dict) else entry) for page in pages(inner)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built strictly: a link or an anchor that leads nowhere ends it."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(DOCS, folder / "docs")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    command = [str(Path(sysconfig.get_path("scripts")) / "zensical"), "build", "--strict"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / str(CONFIG["site_dir"])


def test_the_navigation_has_every_page_once() -> None:
    assert sorted(pages(CONFIG["nav"])) == sorted(page.name for page in DOCS.glob("*.md"))


def test_the_home_page_leads_to_every_page() -> None:
    links = set(re.findall(r"\]\((\w+\.md)\)", (DOCS / "index.md").read_text(encoding="utf-8")))
    assert links == set(pages(CONFIG["nav"])) - {"index.md"}


def test_the_site_has_every_page_and_loads_nothing_from_elsewhere(site: Path) -> None:
    found = {path.name: path.read_text(encoding="utf-8") for path in site.glob("*.html")}
    assert {page.replace(".md", ".html") for page in pages(CONFIG["nav"])} <= set(found)
    assert [name for name, text in found.items() if ELSEWHERE.search(text)] == []
    assert "repo_url" not in CONFIG, "with it the page would ask the hosting site for numbers"


@pytest.mark.parametrize("picture", sorted(path.name for path in (DOCS / "images").iterdir()))
def test_each_picture_is_small_used_and_loads_nothing(picture: str) -> None:
    path = DOCS / "images" / picture
    assert path.stat().st_size < PICTURE_BYTES_MAX
    texts = [page.read_text(encoding="utf-8") for page in (ROOT / "README.md", *DOCS.glob("*.md"))]
    assert any(f"images/{picture})" in text for text in texts)
    if path.suffix == ".svg":
        text = path.read_text(encoding="utf-8")
        ElementTree.fromstring(text)
        assert not re.search(r"url\(\W?http|href=\W?http|@import|<script", text)


def test_the_drawing_reads_in_the_dark_and_aloud() -> None:
    text = (DOCS / "images" / "flow.svg").read_text(encoding="utf-8")
    assert "prefers-color-scheme: dark" in text
    assert "<title" in text
    assert "<desc" in text
