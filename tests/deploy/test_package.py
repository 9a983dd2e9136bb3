"""What is handed to others: a complete source distribution, and a page of it that needs no file beside it."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from email import message_from_bytes
from email.message import Message

import pytest

from paths import ROOT


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Every file of the source distribution by its path in it; built without a network."""
    folder = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        files = {member.name.partition("/")[2]: archive.extractfile(member) for member in archive if member.isfile()}
        return {name: content.read() for name, content in files.items() if content}


@pytest.fixture(scope="module")
def metadata(sdist: dict[str, bytes]) -> Message:
    return message_from_bytes(sdist["PKG-INFO"])


def test_the_source_distribution_has_all_that_a_checkout_has(sdist: dict[str, bytes]) -> None:
    """So `make`, the tests and the compose file work from it."""
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("this is no git checkout")
    tracked = {name for name in done.stdout.splitlines() if (ROOT / name).is_file()}
    assert tracked - set(sdist) == set()
    assert {"Makefile", "docker-compose.yml", "Dockerfile", "constraints.txt", ".ci/run", "mkdocs.yml"} <= set(sdist)


def test_links_of_the_page_on_a_package_index_are_whole(metadata: Message) -> None:
    page = metadata.get_payload()
    assert isinstance(page, str)
    links = re.findall(r"\]\(([^)]+)\)", page)
    assert len(links) > 10
    assert [link for link in links if not link.startswith("https://")] == []
    bases = [url for name, url in (row.split(", ") for row in metadata.get_all("Project-URL", [])) if name == "Source"]
    for link in links:
        kind, _, name = link.partition("#")[0].removeprefix(f"{bases[0]}/").partition("/main/")
        assert (kind, (ROOT / name).exists()) == ("raw" if "/images/" in link else "blob", True), link


def test_the_metadata_names_the_license_and_the_projects_pages(metadata: Message) -> None:
    urls = dict(row.split(", ") for row in metadata.get_all("Project-URL", []))
    assert {"Source", "Issues", "Changelog", "Documentation"} <= set(urls)
    assert metadata["License-Expression"] == "Apache-2.0"
