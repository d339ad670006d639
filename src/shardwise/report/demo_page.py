"""The page of a demo: one HTML file of what every stage printed; it opens from disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

PAGE = "report.html"

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; }
td, th { text-align: left; vertical-align: top; padding: .2rem 1rem .2rem 0; }
td.seconds { text-align: right; white-space: nowrap; }
pre { overflow-x: auto; padding: .8rem; border: 1px solid #8886; border-radius: .4rem; }
pre, code { font: 14px/1.35 ui-monospace, monospace; }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A stage on the page.

    Args:
        screens: its commands, each with what it printed.
        charts: names of pages beside this one, which draw what the stage made.
    """

    title: str
    status: str
    answer: str
    seconds: float
    screens: Sequence[tuple[str, str]]
    charts: Sequence[str] = ()


def page(sections: Sequence[Section]) -> str:
    """The whole page: a table of the answers, then every command with its screen."""
    rows = "\n".join(_row(number, section) for number, section in enumerate(sections, 1))
    details = "\n".join(_details(number, section) for number, section in enumerate(sections, 1))
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Shardwise: plan, prove, run, explain</title>
<style>{STYLE}</style>
<h1>Plan, prove, run, explain</h1>
<table>
<thead><tr><th>stage</th><th>answer</th><th>seconds</th></tr></thead>
<tbody>
{rows}
</tbody>
</table>
{details}
</html>
"""


def _row(number: int, section: Section) -> str:
    answer = section.answer if section.status == "done" else f"{section.status}: {section.answer}"
    return (
        f'<tr><td><a href="#stage-{number}">{escape(section.title)}</a></td>'
        f'<td>{escape(answer)}</td><td class="seconds">{section.seconds:.1f}</td></tr>'
    )


def _details(number: int, section: Section) -> str:
    screens = "\n".join(
        f"<p><code>$ {escape(command)}</code></p>\n<pre>{escape(output)}</pre>"
        for command, output in section.screens
    )
    charts = "".join(
        f'<p><a href="{escape(name)}">charts and formulas: {escape(name)}</a></p>\n'
        for name in section.charts
    )
    return f'<h2 id="stage-{number}">{escape(section.title)}</h2>\n{charts}{screens}'
