"""The harness finds what is wrong in a page, and mends only that."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs import pages

PAGE = """\
# A page

```python
x = 2
```

Some words.

```python
>>> x + 1
4
>>> print("a\\nb")
a
b
>>> x
2
>>> {}["k"]
```

```toml data/chip.toml
name = "one"
```

```text
>>> not_run
$ shardwise not run
```
"""


def console(*lines: str) -> str:
    return "\n".join(["```console", *lines, "```", "after", ""])


def run(page: str, folder: Path) -> list[pages.Example]:
    return pages.run_page(page, folder)


def test_python_examples(tmp_path: Path) -> None:
    examples = run(PAGE, tmp_path)
    assert [e.agrees for e in examples] == [False, True, True, False]
    assert examples[0].got == ("3",)
    assert examples[0].first == 11
    assert examples[3].got[-1] == "KeyError: 'k'"
    assert (tmp_path / "data" / "chip.toml").read_text() == 'name = "one"\n'


def test_refreshed_python_then_agrees(tmp_path: Path) -> None:
    once = pages.refreshed(PAGE, run(PAGE, tmp_path))
    assert once.splitlines()[10] == "3"
    examples = run(once, tmp_path)
    assert all(e.agrees for e in examples)
    assert pages.refreshed(once, examples) == once
    changed = set(PAGE.splitlines()) ^ set(once.splitlines())
    assert changed == {"4", "3", "Traceback (most recent call last):", "    ...", "KeyError: 'k'"}


def test_plain_python_that_raises_fails_the_page(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        run("```python\n1 / 0\n```\n", tmp_path)


def test_fences_of_any_kind_are_told_apart() -> None:
    page = "```json of a plan\n{}\n```\nwords\n````text\n```python\n1 / 0\n```\n````\n"
    page += "```toml a.toml\n```\n"
    found = [(b.language, b.file, b.first, len(b.lines)) for b in pages.blocks(page)]
    assert found == [("json", "", 2, 1), ("text", "", 6, 3), ("toml", "a.toml", 11, 0)]


def test_console_agreement_and_difference(tmp_path: Path) -> None:
    good = console("$ shardwise --help", "...", "$ pip install nothing", "never run")
    assert [e.agrees for e in run(good, tmp_path)] == [True]
    bad = console("$ shardwise --help", "Wrong.", "$ shardwise --help", "...")
    examples = run(bad, tmp_path)
    assert [(e.agrees, e.first) for e in examples] == [(False, 3), (True, 5)]
    mended = pages.refreshed(bad, examples)
    assert "Wrong." not in mended
    assert mended.endswith("$ shardwise --help\n...\n```\nafter\n")
    assert all(e.agrees for e in run(mended, tmp_path))


def test_exit_code_and_errors_are_shown(tmp_path: Path) -> None:
    (example,) = run(console("$ shardwise no-such-verb"), tmp_path)
    assert not example.agrees
    assert example.got[-1] == "[exit 2]"
    assert len(example.got) > 1


def test_commands_share_the_folder_and_go_on_over_lines(tmp_path: Path) -> None:
    page = console(
        "$ shardwise --help \\", "    > told.txt", '$ shardwise --help | grep -c ""', "x"
    )
    first, second = run(page, tmp_path)
    assert first.agrees
    assert second.got == (str(len((tmp_path / "told.txt").read_text().splitlines())),)


@pytest.mark.parametrize(
    ("shown", "got", "agree"),
    [
        ("a b", "a b", True),
        ("a b", "a c", False),
        ("a", "a b", False),
        ("...", "", True),
        ("a ...", "a", True),
        ("a ... d", "a b c d", True),
        ("a ... d ...", "a b d c d e", True),
        ("... d", "a b", False),
        ("a ... a", "a", False),
    ],
)
def test_three_dots_stand_for_any_lines(shown: str, got: str, agree: bool) -> None:
    assert pages.matches(tuple(shown.split()), tuple(got.split())) is agree
