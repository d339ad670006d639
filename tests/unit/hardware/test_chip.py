"""A chip answers with a number or says which figure is missing."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import shardwise as sw
from shardwise.errors import UnknownFigure, UnknownName
from shardwise.hardware import Figure, catalog_chip, diff, show_value
from shardwise.hardware.chip import with_values
from shardwise.hardware.figure import FIELDS, unit_of

V5E, V5P, H100 = catalog_chip("v5e"), catalog_chip("v5p"), catalog_chip("h100")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("hbm.bandwidth", 8.19e11),
        ("hbm_bytes_per_s", 8.19e11),
        ("ici.link", 4.5e10),
        ("ici.link_bytes_per_s_one_way", 4.5e10),
        ("ici.hop_s", 1e-6),
        ("peak.int8", 3.94e14),
        ("dcn.bandwidth", 3.125e9),
        ("price.chip_hour", 1.2),
        ("core.count", 1.0),
    ],
)
def test_need(path: str, value: float) -> None:
    assert V5E.need(path) == value


def test_need_says_what_is_missing_and_what_is_known() -> None:
    with pytest.raises(UnknownFigure) as error:
        H100.need("ici.link")
    told = str(error.value)
    assert told.startswith("h100 has no figure for ici.link: no public source gives it.")
    assert "node.egress" in told
    assert "TOML" in told


@pytest.mark.parametrize(
    ("name", "figure"),
    [
        ("mi300x", "scale_out.egress"),
        ("wse3", "hbm.capacity"),
        ("m1-max", "dcn.bandwidth"),
        ("v5e", "l2.capacity"),
    ],
)
def test_need_proposes_what_the_command_line_takes(name: str, figure: str) -> None:
    with pytest.raises(UnknownFigure) as error:
        catalog_chip(name).need(figure)
    (example,) = re.findall(rf"as ({name}:\S+), or", str(error.value))
    assert sw.hardware(example).chip.need(figure) > 0


def test_need_proposes_nothing_that_the_command_line_refuses() -> None:
    with pytest.raises(UnknownFigure, match=r"Give your own in a TOML file"):
        catalog_chip("wse3").need("node.egress")


def test_need_of_a_chip_without_figures() -> None:
    with pytest.raises(
        UnknownFigure, match=r"cpu has no figure for hbm\.bandwidth: this machine was not measured"
    ):
        catalog_chip("cpu").need("hbm_bytes_per_s")


def test_need_of_a_figure_that_does_not_exist() -> None:
    with pytest.raises(UnknownName, match=r'unknown figure "hbm\.bandwith".*hbm\.bandwidth'):
        V5E.need("hbm.bandwith")


@pytest.mark.parametrize(("dtype", "same"), [("s8", "int8"), ("bfloat16", "bf16")])
def test_spellings_of_a_dtype(dtype: str, same: str) -> None:
    assert V5E.peak(dtype) == V5E.peak(same)


def test_a_peak_is_never_borrowed() -> None:
    with pytest.raises(UnknownFigure) as error:
        V5E.peak("fp8")
    told = "v5e has no figure for the dense peak at fp8. Known: bf16 197 TFLOP/s, int8 394 TFLOP/s"
    assert str(error.value).startswith(told)
    with pytest.raises(UnknownFigure, match="fp16"):
        V5E.need("peak.fp16")


def test_a_replaced_number_is_the_users() -> None:
    chip = replace(V5E, hbm_bytes_per_s=8.1e11)
    assert chip.need("hbm.bandwidth") == 8.1e11
    figure = chip.figures["hbm.bandwidth"]
    assert (figure.value, figure.source) == (8.1e11, "given by the user")
    assert figure.also == ((8.19e11, V5E.figures["hbm.bandwidth"].source),)
    assert chip.figures["hbm.capacity"] == V5E.figures["hbm.capacity"]
    assert chip != V5E


def test_a_number_that_was_taken_away_is_gone() -> None:
    chip = with_values(V5E, {"hbm.usable": None})
    assert "hbm.usable" not in chip.figures
    assert chip.hbm_bytes == V5E.hbm_bytes


def test_values_reach_the_inner_parts() -> None:
    chip = with_values(H100, {"node.egress": 3.7e11, "peak.bf16": 9e14, "scale_out.egress": 1e11})
    assert (chip.need("node.egress"), chip.peak("bf16")) == (3.7e11, 9e14)
    assert chip.need("scale_out.egress") == 1e11
    assert H100.need("node.egress") == 4.5e11
    added = with_values(catalog_chip("mi300x"), {"scale_out.egress": 5e10})
    assert added.figures["scale_out.egress"].source == "given by the user"


@pytest.mark.parametrize("path", FIELDS)
def test_every_field_has_a_place_in_a_chip(path: str) -> None:
    chip = with_values(catalog_chip("v5e"), {}) if not path.startswith("node") else H100
    if path.startswith("scale_out"):
        chip = H100
    assert with_values(chip, {path: None}) is not None
    assert unit_of(path) == FIELDS[path].unit


def test_diff() -> None:
    rows = {row.figure: row for row in diff(V5P, H100)}
    assert rows["hbm.bandwidth"].ratio == 3.35e12 / 2.765e12
    assert (rows["ici.link"].a, rows["ici.link"].b, rows["ici.link"].ratio) == (9e10, None, None)
    assert rows["ici.wrap"].ratio is None
    assert rows["peak.tf32"].a is None
    assert rows["peak.bf16"].unit == "FLOP/s"
    # The same on both, so not a difference.
    assert "core.devices" not in {row.figure for row in diff(V5P, V5E)}


def test_diff_of_a_chip_with_itself_is_empty() -> None:
    assert diff(V5P, V5P) == []


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (2.765e12, "B/s", "2.765 TB/s"),
        (4.59e14, "FLOP/s", "459 TFLOP/s"),
        (96e9, "B", "96 GB"),
        (134217728.0, "B", "128 MiB"),
        (95.74 * 2**30, "B", "95.74 GiB"),
        (1e-6, "s", "1 us"),
        (1.75e9, "Hz", "1.75 GHz"),
        (700.0, "W", "700 W"),
        (4.2, "USD/h", "$4.20/h"),
        (900000, "count", "900,000"),
        ((16, 20, 28), "shape", "16x20x28"),
        (((1, 1), (2, 2)), "shapes", "1x1 2x2"),
        ("cubes_of_4", "word", "cubes_of_4"),
        (True, "yes/no", "yes"),
        (False, "yes/no", "no"),
    ],
)
def test_show(value: object, unit: str, text: str) -> None:
    assert show_value(value, unit) == text  # type: ignore[arg-type]


def test_a_figure_shows_itself() -> None:
    assert str(Figure(value=1.2, unit="USD/h", source="a list", as_of="2025-02")) == "$1.20/h"
