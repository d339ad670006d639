"""The table of questions has the command of each section, which the page runs."""

from __future__ import annotations

import re

from tests.docs.refresh import ROOT

ROW = re.compile(r"^\| (\d+) \| (.+) \| `(.+)` \|$", re.M)


def test_each_question_has_the_command_of_its_section() -> None:
    table, *sections = re.split("^## ", (ROOT / "docs/questions.md").read_text("utf-8"), flags=re.M)
    rows = ROW.findall(table)
    assert len(rows) == len(sections) == 25
    for (number, question, command), section in zip(rows, sections, strict=True):
        assert section.startswith(f"{number}. {question}\n")
        assert f"\n$ {command}" in section.replace(" \\\n    ", " ")
