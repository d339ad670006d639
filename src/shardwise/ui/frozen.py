"""The page frozen into one file: the same page with its answer inside, and no server."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from shardwise.errors import BadFile, file_error
from shardwise.plan.schema.json_io import AnyPlan, decode, load
from shardwise.ui.comparison import comparison_view, is_comparison
from shardwise.ui.frame import frame_of_plan, question_of
from shardwise.ui.live import METRICS, find_metrics, whole_run
from shardwise.ui.sliders import curve, sliders

RUN_PLAN = "plan.json"  # beside the records of a run


def frozen_page(path: str) -> str:
    """The page of a saved plan, of a saved comparison, or of a training run's folder.

    Raises:
        BadFile: the file is none of these.
    """
    if Path(path).is_dir() or path.endswith(f"{METRICS}") or path.endswith(".jsonl"):
        return page_of(_run_content(find_metrics(path)))
    document = _json(path)
    if isinstance(document, dict) and is_comparison(document):
        return page_of({"comparison": comparison_view(document, path)})
    return page_of(plan_content(load(path)))


def report(subject: AnyPlan | str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Write a plan, a saved comparison or a training run as one HTML file.

    Args:
        subject: a plan; or the path of a saved one, of the JSON of `shardwise compare`, or of a
            run's folder.
        path: the file to write, which opens from disk without a network.

    Raises:
        BadFile: the subject cannot be read, or the file cannot be written.
    """
    if isinstance(subject, str | os.PathLike):
        page = frozen_page(os.fspath(subject))
    else:
        page = page_of(plan_content(subject))
    try:
        Path(path).write_text(page, encoding="utf-8")
    except OSError as error:
        raise file_error(path, error, "Nothing was saved.") from None


def plan_content(plan: AnyPlan) -> dict[str, Any]:
    """The frame of a plan, and the curve of each of its sliders."""
    frame, question, local = frame_of_plan(plan)
    inputs = question_of(plan)[1]
    curves = {
        slider.name: curve(question, slider, local) for slider in sliders(question, inputs, plan)
    }
    return {"frame": frame, "curves": curves}


def _run_content(metrics: Path) -> dict[str, Any]:
    content: dict[str, Any] = {"run": whole_run(metrics)}
    beside = metrics.parent / RUN_PLAN
    if beside.is_file():
        plan = decode(beside.read_bytes(), str(beside), metrics.parent)
        content |= plan_content(plan)
    return content


def page_of(content: dict[str, Any]) -> str:
    """One HTML file with everything in it. Its policy allows its own script, and no request."""
    static = files("shardwise.ui").joinpath("static")
    script = static.joinpath("page.js").read_text("utf-8")
    style = static.joinpath("page.css").read_text("utf-8")
    index = static.joinpath("index.html").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    # "<" is written as an escape, so that no text in the data can end its element.
    data = msgspec.json.encode({"curves": {}, "frame": None, **content}).decode()
    data = data.replace("<", "\\u003c")
    head = f'<meta http-equiv="content-security-policy" content="{policy}">'
    replaced = {
        '<meta charset="utf-8">': f'<meta charset="utf-8">\n{head}',
        '<link rel="stylesheet" href="page.css">': f"<style>{style}</style>",
        '<script src="page.js"></script>': (
            f'<script id="frozen" type="application/json">{data}</script>\n'
            f"<script>{script}</script>"
        ),
    }
    for tag, content_of_tag in replaced.items():
        index = index.replace(tag, content_of_tag)
    return index


def _json(path: str) -> Any:
    """A JSON document of a file.

    Raises:
        BadFile: the file cannot be read, or is not JSON.
    """
    try:
        return json.loads(Path(path).read_bytes())
    except OSError as error:
        raise file_error(path, error) from None
    except (ValueError, RecursionError):
        raise BadFile(
            f"{path} is not JSON. A report is made of a plan.json, of the saved output of "
            "shardwise compare --json, or of the folder of a run."
        ) from None
