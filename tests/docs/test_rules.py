"""The rules in docs/rules.md: every reference leads to a heading, every number is the code's; and the glossary."""

from __future__ import annotations

import importlib.util
import re
from typing import Any

from paths import ROOT
from sickbay_events.policy import OTHER_KEYS, keys

RULES = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
CITING = [
    *(ROOT.glob("*.md")),
    *(
        path
        for folder in ("events", "projections", "services", "tests", "bench", "docs", "deploy")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".js", ".md") and path.is_file()
    ),
]
NUMBER = r"\d+(?:\.\d+)?"
REFERENCE = re.compile(rf"\b[Rr]ules? ({NUMBER}(?:(?:, and |, | and | to ){NUMBER}\b)*)(?:,\s+(?:#\s+)?([A-Z][\w ]+))?")
"""A rule's number or several, and the name of a part of it: "Rules 4.1 and 4.2", "Rule 4.0, Whose word"."""


def parts() -> dict[str, list[str]]:
    """Every rule's number with the headings of its own parts."""
    found: dict[str, list[str]] = {}
    number = ""
    for line in RULES.splitlines():
        if rule := re.fullmatch(rf"#{{2,3}} Rule ({NUMBER}) \S.*", line):
            number = rule[1]
            found[number] = []
        elif number and (part := re.fullmatch(r"#{3,4} (.+)", line)):
            found[number].append(part[1])
    return found


def anchors(page: str) -> list[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def glossary_rows() -> list[list[str]]:
    lines = [line for line in GLOSSARY.splitlines() if line.startswith("|")]
    assert lines[:2] == ["| word | standard term | meaning | where |", "|---|---|---|---|"]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_reference_to_a_rule_leads_to_its_heading() -> None:
    known, cited, wrong = parts(), 0, []
    for path in CITING:
        for reference in REFERENCE.finditer(path.read_text(encoding="utf-8")):
            cited += 1
            numbers = re.findall(NUMBER, reference[1])
            name = " ".join(reference[2].split()) if reference[2] else ""
            names = [part for number in numbers if number in known for part in known[number]]
            is_part = not name or any(re.match(rf"{re.escape(part)}\b", name) for part in names)
            if not is_part or not known.keys() >= set(numbers):
                wrong.append(f"{path.relative_to(ROOT)}: {reference[0]!r}")
    assert wrong == []
    assert cited > 100, "the pattern finds references"


PAPERS = re.compile(r"\b(?:SPEC|DESIGN|HOUSE|EVIDENCE)\b")
"""Names of papers that a reader of this repository does not have."""


def test_nothing_is_cited_that_is_no_part_of_the_repository() -> None:
    """Code, tests and pages say the claim itself, or name the rule of docs/rules.md."""
    cited = {
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path in CITING
        for found in PAPERS.finditer(path.read_text(encoding="utf-8"))
    }
    assert {where.partition(":")[0] for where in cited} == {"tests/docs/test_rules.py"}, "this file, and no other"


def test_the_rules_are_numbered_in_order() -> None:
    numbers = re.findall(rf"^#{{2,3}} Rule ({NUMBER}) ", RULES, re.MULTILINE)
    assert numbers == sorted(numbers, key=lambda number: [int(part) for part in number.split(".")])
    for number in numbers:
        level = "##" if "." not in number else "###"
        assert re.search(rf"^{level} Rule {re.escape(number)} ", RULES, re.MULTILINE), number


def test_no_two_headings_of_a_page_are_the_same() -> None:
    for page in (RULES, GLOSSARY):
        found = anchors(page)
        assert len(found) == len(set(found))


def test_links_into_the_rules_lead_to_a_heading() -> None:
    links = [*re.findall(r"\]\(#([^)]+)\)", RULES), *re.findall(r"\]\(rules\.md#([^)]+)\)", GLOSSARY)]
    assert len(links) > 50
    assert set(links) - set(anchors(RULES)) == set()


def test_every_key_of_the_policy_stands_in_a_rule_with_its_default() -> None:
    spec = importlib.util.spec_from_file_location("docs_tables", ROOT / "docs" / "tables.py")
    assert spec
    assert spec.loader
    tables: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    defaults = {key: tables._toml(default) for key, default, _, _ in keys()}
    defaults |= {key: "[]" if default == () else "{}" for key, default, _, _ in OTHER_KEYS}
    headed = re.findall(r"^\| key \| default \| unit \| meaning \|\n\|[-|]+\|\n((?:\|.*\n)+)", RULES, re.MULTILINE)
    rows = re.findall(r"^\| `([\w.]+)` \| `([^`]+)` \|", "".join(headed), re.MULTILINE)
    written = dict(rows)
    assert len(written) == len(rows) == "".join(headed).count("\n"), "each key once, each row a key"
    assert written == defaults


def test_every_word_of_the_glossary_has_all_its_cells() -> None:
    rows = glossary_rows()
    assert len(rows) > 50
    for row in rows:
        assert len(row) == 4, row
        assert all(row), row
        assert row[2].endswith("."), f"{row[0]}: the meaning is a sentence"
        assert re.fullmatch(r"\[[^\]]+\]\([\w.-]+\.md(?:#[^)]+)?\)", row[3]), (
            f"{row[0]}: where it is explained is a link"
        )


def test_the_glossary_is_sorted_and_has_each_word_once() -> None:
    words = [row[0].lower() for row in glossary_rows()]
    assert words == sorted(words)
    assert len(words) == len(set(words))


def test_every_word_of_the_glossary_stands_where_its_link_leads() -> None:
    """In the section that the link names, or on the page, in any form that begins alike."""
    missing = []
    for words, _, _, where in glossary_rows():
        found = re.search(r"\(([\w.-]+)(?:#([^)]+))?\)", where)
        assert found
        text = (ROOT / "docs" / found[1]).read_text(encoding="utf-8")
        if found[2]:
            headings = list(re.finditer(r"^#+ .+$", text, re.MULTILINE))
            at = anchors(text).index(found[2])
            level = len(headings[at][0].partition(" ")[0])
            ends = [h.start() for h in headings[at + 1 :] if len(h[0].partition(" ")[0]) <= level]
            text = text[headings[at].start() : ends[0] if ends else None]
        stems = [re.sub(r"[ey]$", "", word) for word in words.split(", ")]
        if not any(re.search(rf"\b{stem}", " ".join(text.split()), re.IGNORECASE) for stem in stems):
            missing.append(f"{words}: {where}")
    assert missing == []
