"""The page in a real browser: what it shows at first, and what moves and searches change."""

from __future__ import annotations

import json

import pytest

from tests.browser import Browser, Page
from tests.oracle.page_views import MARKS, SMALL, click, facts, move, show, text, write
from tests.page_server import server

pytestmark = MARKS

PLOTS = "[...document.querySelectorAll('#charts figure')].map(f => [f.querySelector('h3').innerText"
PLOTS += ", f.querySelectorAll('svg rect, svg path, svg circle, td').length])"
MARKED = "new Set(document.querySelector('canvas').getContext('2d')"
MARKED += ".getImageData(0, 0, 200, 90).data).size"  # different values of a part of the picture
CURVES = "document.querySelectorAll('#inputs .curve circle').length"
CHARTS = {"Timeline of one step", "Memory of a chip at its peak", "Roofline"}
CHARTS |= {"Latency and throughput", "Strategies"}


def test_the_first_view_shows_everything_without_a_click(page: Page, address: str) -> None:
    show(page, address)
    assert "llama3-70b on v5p:16x20x28" in text(page, "h1")
    assert "8,960 chips" in text(page, ".headline")
    drawn = dict(page.run(PLOTS))
    assert set(drawn) == CHARTS
    assert min(drawn.values()) > 3, drawn
    assert page.run(MARKED) > 5
    assert page.run(CURVES) > 50
    assert page.run("document.querySelectorAll('#reasons .number').length") > 8
    assert page.problems == []
    elsewhere = [url for url in page.requests if not url.startswith((address, "data:"))]
    assert address.startswith("http://127.0.0.1:")
    assert elsewhere == []


def test_a_key_on_a_slider_changes_all_and_best_goes_back(page: Page, address: str) -> None:
    show(page, address)
    first = facts(page)
    move(page, "tensor", "ArrowRight")
    moved = facts(page)
    assert all(moved[name] != first[name] for name in first)
    assert "tensor 8" in moved["answer"]
    assert "mesh.tensor=8" in moved["address"]
    page.run("document.querySelector('form .strong').focus()")
    page.press("Enter")
    page.wait("document.querySelector('.headline').innerText.includes('tensor 4 ')")
    back = facts(page)
    assert {**back, "address": ""} == {**first, "address": ""}
    assert page.run("document.activeElement.innerText") == "Best"
    assert page.problems == []


def test_a_link_is_a_plan(chromium: Browser, page: Page, address: str) -> None:
    show(page, address + SMALL)
    move(page, "tensor", "ArrowRight", "ArrowRight")
    move(page, "batch", "ArrowRight")
    move(page, "hbm_bandwidth", "ArrowLeft")
    page.wait("document.body.dataset.curves")
    there = facts(page)
    other = chromium.page()
    other.size(1280, 900)
    show(other, address + there["address"])
    same = ("answer", "sliders", "address")
    linked = facts(other)
    assert {name: linked[name] for name in same} == {name: there[name] for name in same}
    other.close()


def test_the_stops_beside_a_focused_slider_are_asked_for_ahead(page: Page, address: str) -> None:
    show(page, address + SMALL)
    before = facts(page)
    frames = "performance.getEntriesByType('resource').filter(e => e.name.endsWith('/api/frame'))"
    n_frames = page.run(f"{frames}.length")
    page.run("document.getElementById('slider-flops').focus()")
    page.wait(f"{frames}.length >= {n_frames + 2}")  # one stop to each side, perhaps one on its way
    move(page, "flops", "ArrowRight")
    ahead = facts(page)
    assert ahead["answer"] != before["answer"]
    show(page, address + ahead["address"])  # asked anew
    assert facts(page)["answer"] == ahead["answer"]
    assert page.problems == []


def test_two_sliders_moved_at_once_both_count(page: Page, address: str) -> None:
    show(page, address + SMALL)
    for slider in ("flops", "hbm_bandwidth"):
        page.run(f"document.getElementById('slider-{slider}').focus()")
        page.press("ArrowRight")
    page.wait("location.hash.includes('flops=1.5') && location.hash.includes('bandwidth=1.5')")
    assert page.problems == []


def test_training_and_serving(page: Page, address: str) -> None:
    show(page, address + SMALL)
    trained = text(page, ".headline")
    click(page, "serving")
    page.wait("Boolean(document.querySelector('[name=prompt]'))")
    page.wait("document.querySelector('[aria-pressed=true]').innerText === 'serving'")
    assert text(page, ".headline") != trained
    assert "TPOT" in text(page, "#reasons")
    assert "prefill" in text(page, "#reasons").lower()
    click(page, "training")
    page.wait("Boolean(document.querySelector('[name=tokens]'))")
    assert "One step" in text(page, ".headline")
    assert page.problems == []


def test_the_address_of_the_first_view_gives_the_same_view(
    chromium: Browser, page: Page, address: str
) -> None:
    entries = page.run("history.length")
    show(page, address)
    first = facts(page)
    assert "model=llama3-70b&hardware=v5p:16x20x28&kind=train&batch=1120" in first["address"]
    assert page.run("history.length") == entries + 1  # of the page itself
    other = chromium.page()
    other.size(1280, 900)
    show(other, address + first["address"])
    assert facts(other) == first
    assert text(other, "#reasons") == text(page, "#reasons")
    other.close()


def test_back_leads_to_the_first_view(page: Page, address: str) -> None:
    show(page, address + SMALL)
    first = facts(page)
    write(page, "model", "llama3.2-3b")
    page.wait("document.querySelector('h1').innerText.startsWith('llama3.2-3b')")
    page.run("history.back()")
    page.wait("document.querySelector('h1').innerText.startsWith('llama3.2-1b')")
    assert facts(page) == first


def test_back_undoes_moves_in_a_row_at_once(page: Page, address: str) -> None:
    show(page, address + SMALL)
    first = facts(page)
    entries = page.run("history.length")
    move(page, "tensor", "ArrowRight", "ArrowRight")
    assert page.run("history.length") == entries + 1
    page.run("history.back()")
    page.wait(f"location.hash === {json.dumps(first['address'])}")
    page.wait("document.querySelector('.busy').hidden")
    assert facts(page) == first
    assert page.problems == []


def test_a_link_opens_the_tab_that_it_was_taken_in(
    chromium: Browser, page: Page, address: str
) -> None:
    show(page, address + SMALL)
    plan = page.run("location.hash")
    click(page, "Compare")
    link = page.run("location.hash")
    assert link == f"{plan}&view=compare"
    other = chromium.page()
    other.go(address + link)
    other.wait("Boolean(document.querySelector('#compare'))")
    click(other, "Plan")
    other.wait("document.querySelectorAll('#reasons .number').length > 0")
    assert other.run("location.hash") == plan
    other.close()
    page.go(f"{address}#view=live")
    page.wait("Boolean(document.querySelector('#live'))")
    assert page.problems == []


def test_a_mesh_of_one_chip_is_a_link(page: Page, address: str) -> None:
    page.go(f"{address}#model=llama3.2-1b&hardware=h100:1&batch=1&seq=512&mesh.tensor=1")
    page.wait("document.querySelectorAll('#reasons .number').length > 0")
    assert page.run("location.hash").endswith("mesh.tensor=1")


def test_a_wrong_name_is_told_and_the_last_answer_stays(page: Page, address: str) -> None:
    show(page, address + SMALL)
    before, curves = facts(page), page.run(CURVES)
    write(page, "model", "llama9")
    page.wait("Boolean(document.querySelector('[role=alert]'))")
    assert 'unknown model "llama9"' in text(page, "[role=alert]")
    assert text(page, "h1") == "The last answer is still shown: llama3.2-1b on v5e:2x4"
    assert facts(page) == before
    assert page.run(CURVES) == curves > 20
    assert page.run("document.querySelector('[name=model]').value") == "llama9"
    write(page, "model", "llama3.2-3b")
    page.wait("!document.querySelector('[role=alert]')")
    page.wait("document.querySelector('h1').innerText.startsWith('llama3.2-3b')")


NO_PLAN = "!document.querySelector('.headline')?.innerText.includes('chips') && "
NO_PLAN += "!document.querySelector('.facts, #mesh, #charts, #reasons, .slider')"


@pytest.mark.parametrize(
    ("link", "refusal"),
    [
        ("model=llama9&hardware=v5e:2x4&batch=16", 'unknown model "llama9"'),
        ("model=llama3.2-1b&hardware=v5e:2x4&batch=lots", "batch must be a whole number."),
        ("model=llama3.2-1b&hardware=v5e:2x4&kind=serve&batch=x", "batch must be a whole number."),
        ("model=llama3.2-1b&hardware=v5e:2x4&batch=16&peak=yes", "peak must be 1 or 0."),
        (
            "model=llama3.2-1b&hardware=v5e:2x4&batch=16&sequence=9",
            "a question has no sequence. It has model,",
        ),
        ("model=llama3.2-1b&hardware=v5e:2x4&batch=16&mesh.tensor=7", "7"),
        ("model=llama3.2-1b&hardware=v5e:2x4&batch=16&x.nothing=2", '"nothing"'),
    ],
)
def test_a_wrong_link_has_no_plan_but_inputs_to_mend_it(
    page: Page, address: str, link: str, refusal: str
) -> None:
    page.go(f"{address}#{link}")
    page.wait("Boolean(document.querySelector('[role=alert]') && document.querySelector('form'))")
    assert refusal in text(page, "[role=alert]")
    assert page.run(NO_PLAN)
    assert page.run("document.querySelector('[name=batch]').value") in link
    write(page, "batch", "16")
    write(page, "model", "llama3.2-1b")
    page.wait("!document.querySelector('[role=alert]')")
    assert text(page, "h1") == "llama3.2-1b on v5e:2x4"


def test_a_wrong_link_in_an_open_page_removes_its_plan(page: Page, address: str) -> None:
    show(page, address + SMALL)
    first = text(page, "ul.facts")
    page.run("location.hash = 'model=llama9&hardware=v5e:2x4&batch=16'")
    page.wait("Boolean(document.querySelector('[role=alert]'))")
    assert page.run(NO_PLAN)
    page.run("history.back()")
    page.wait("!document.querySelector('[role=alert]')")
    assert text(page, "ul.facts") == first


def test_a_link_that_names_nothing_has_no_title_of_nothing(page: Page, address: str) -> None:
    page.go(f"{address}#kind=dance")
    page.wait("Boolean(document.querySelector('[role=alert]') && document.querySelector('form'))")
    assert text(page, "[role=alert]") == 'kind is "dance"; it must be train or serve.'
    assert text(page, "h1") == "Shardwise"


def test_what_a_refused_link_has_no_field_for_is_named(page: Page, address: str) -> None:
    page.go(f"{address}#model=llama9&hardware=v5e:2x4&batch=16&optimizer=muon&mesh.tensor=2")
    page.wait("Boolean(document.querySelector('[role=alert]'))")
    assert "without the rest of the link: optimizer=muon, tensor=2." in text(page, "#inputs")


def test_a_command_line_without_an_answer(page: Page) -> None:
    with server("llama3.1-405b", "v5e:2x2", "--batch", "8x512") as url:
        page.go(url)
        page.wait("Boolean(document.querySelector('[role=alert]'))")
        assert text(page, "h1") == "llama3.1-405b on v5e:2x2"
        assert page.run(NO_PLAN)
        assert "model=llama3.1-405b&hardware=v5e:2x2" in page.run("location.hash")
