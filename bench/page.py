"""Time from a slider's move to its paint, in a real Chromium: `python bench/page.py`.

Each case opens the page at its address, waits until it is calm, and presses arrow keys on every
slider, one stop after the other:

- steps: half a second apart, as a hand presses them;
- drags: without a pause along a slider, each slider once the page is calm, with all curves;
- rush: without any pause, from slider to slider, faster than a hand.

The time is that of the page itself: from the input event to the first frame of the browser after
the answer is drawn. Prints a Markdown table. With --most MS it exits with 4 if a 95th percentile of
steps or drags is above.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.browser import Page, browser
from tests.page_server import server

CASES = {
    "LLaMA-3-70B, v5p:16x20x28": "model=llama3-70b&hardware=v5p:16x20x28&batch=1120&seq=4096",
    "LLaMA-3.1-405B, h100:16384": "model=llama3.1-405b&hardware=h100:16384&batch=2048&seq=8192",
    "DeepSeek-V3, h800:2048": "model=deepseek-v3&hardware=h800:2048&batch=15360&dtype=fp8",
    "LLaMA-3-70B served, v5e:4x4": "model=llama3-70b&hardware=v5e:4x4&kind=serve&dtype=int8",
}
WARM_UP = 3  # moves that are not counted
STEPS, DRAGS, RUSH = WAYS = ("steps", "drags", "rush")
PAUSE_S = 0.5  # before each of the steps
CALM = "document.body.dataset.ahead"
FAILED = 4
SIZE = (1280, 900)


def moves_ms(page: Page, address: str, stops: int, way: str) -> list[float]:
    """Milliseconds of each move: `stops` to the right or left on every slider of the page."""
    page.go("about:blank")
    page.go(address)
    page.wait("document.querySelectorAll('.slider input').length > 5")
    page.wait(CALM, 120)
    sliders = page.run("[...document.querySelectorAll('.slider input')].map(e => e.id)")
    page.run("shardwiseMoves.length = 0")
    for slider in sliders:
        there = f"document.getElementById('{slider}')"
        if not page.run(f"Boolean({there})"):
            continue  # a choice that the present strategy does not have
        if way == DRAGS:
            page.wait(CALM, 120)
        page.run(f"{there}.focus()")
        key = "ArrowRight" if page.run(f"+{there}.value < +{there}.max / 2") else "ArrowLeft"
        for _ in range(stops):
            time.sleep(PAUSE_S if way == STEPS else 0)
            before = page.run("[shardwiseMoves.length, +(document.body.dataset.answers || 0)]")
            value = page.run(f"{there} ? {there}.value : ''")
            page.press(key)
            if page.run(f"!{there} || {there}.value === '{value}'"):
                break
            page.wait(f"+document.body.dataset.answers > {before[1]}")
            if page.run("Boolean(document.querySelector('[role=alert]'))"):
                break  # no plan at this stop
            page.wait(f"shardwiseMoves.length > {before[0]}")
    return [float(ms) for ms in page.run("shardwiseMoves")]


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of `values` lie."""
    return statistics.quantiles(values, n=100, method="inclusive")[round(100 * share) - 1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--most", type=float, default=0.0, metavar="MS")
    parser.add_argument("--stops", type=int, default=3, help="moves on each slider")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    options = parser.parse_args()
    print("| case | moved by | moves | median | 95th percentile | longest |\n" + 6 * "|---" + "|")
    worst = 0.0
    with browser() as opened:
        for name, question in CASES.items():
            for way in options.ways:
                with server() as url:  # a fresh one, without answers
                    page = opened.page()
                    page.size(*SIZE)
                    times = moves_ms(page, f"{url}#{question}", options.stops, way)[WARM_UP:]
                    page.close()
                at_95 = percentile(times, 0.95)
                if way != RUSH:
                    worst = max(worst, at_95)
                shown = (percentile(times, 0.5), at_95, max(times))
                cells = [way, f"{len(times)}", *(f"{ms:.0f} ms" for ms in shown)]
                print(f"| {name} | {' | '.join(cells)} |", flush=True)
    return FAILED if options.most and worst > options.most else 0


if __name__ == "__main__":
    raise SystemExit(main())
