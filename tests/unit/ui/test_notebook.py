"""A plan in a notebook: valid markup, its own numbers, nothing that runs or loads."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

import shardwise as sw

VOID = {"br"}


class Checker(HTMLParser):
    """Collects tags, and asserts that each is closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open_tags: list[str] = []
        self.tags: list[str] = []
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.update(name for name, _ in attrs)
        if tag not in VOID:
            self.open_tags.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.update(name for name, _ in attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open_tags.pop() == tag


def training() -> sw.Plan:
    return sw.plan(
        sw.model("llama3.2-1b"), sw.hardware("v5e:2x4"), sw.Train(batch=64, seq=2048, tokens=1e9)
    )


def serving() -> sw.ServingPlan:
    plan = sw.plan(sw.model("llama3.2-1b"), sw.hardware("v5e:2x2"), sw.Serve(context=2048))
    assert isinstance(plan, sw.ServingPlan)
    return plan


@pytest.mark.parametrize("make", [training, serving])
def test_it_is_markup_that_runs_and_loads_nothing(make: object) -> None:
    assert callable(make)
    plan = make()
    text = plan._repr_html_()
    checker = Checker()
    checker.feed(text)
    assert checker.open_tags == []
    assert checker.tags.count("svg") == 2
    assert checker.tags.count("rect") >= 4
    assert not {"script", "link", "img"} & set(checker.tags)
    assert not {"src", "href", "onclick"} & checker.attributes
    assert len(plan.why) == checker.tags.count("li")
