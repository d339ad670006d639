"""The table of letters in docs/notation.md says what the code says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import shardwise as sw
from shardwise.models.weights import layer_weights, outer_weights
from shardwise.strategy.mesh import INSIDE_OUT, Mesh

ROW = re.compile(r"\| `(\w)` \| `(\w+)` \| [^|]+ \| `(\w+)` \|")


def rows(root: Path) -> list[tuple[str, str, str]]:
    return ROW.findall((root / "docs/notation.md").read_text())


def test_every_field_is_one_of_the_model(root: Path) -> None:
    config = sw.model("mixtral-8x7b")
    assert len(rows(root)) == 9
    assert [f for _, f, _ in rows(root) if not isinstance(getattr(config, f, None), int)] == []


def test_letters_have_the_sizes_of_their_fields(root: Path) -> None:
    config = sw.model("mixtral-8x7b")
    weights = [*layer_weights(config, config.main_layer), *outer_weights(config)]
    sizes = {d: n for w in weights for d, n in zip(w.dims, w.shape, strict=True)}
    told = {letter: getattr(config, field) for letter, field, _ in rows(root)}
    assert {d: sizes[d] for d in told if d in sizes} == {
        d: n for d, n in told.items() if d in sizes
    }
    assert set("DFNKHVE") <= set(sizes)


def test_keys_are_those_of_a_config(root: Path) -> None:
    presets = root / "src/shardwise/models/presets"
    text = (presets / "mixtral-8x7b.json").read_text()
    raw = json.loads(text)
    keys = set(raw) | set(raw.get("config", {}))
    missing = [key for _, _, key in rows(root) if key not in keys]
    assert missing in ([], ["head_dim"])  # Mixtral leaves it to hidden_size / heads


def test_roles_are_those_of_a_mesh(root: Path) -> None:
    page = (root / "docs/notation.md").read_text()
    assert set(INSIDE_OUT) == set(Mesh().sizes)
    assert ", ".join(f"`{r}`" for r in INSIDE_OUT) in page.replace("\n", " ")
