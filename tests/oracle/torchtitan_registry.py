"""What torchtitan's named configurations set, read from the source of its registries.

`python -m tests.oracle.torchtitan_registry` prints the rows of torchtitan_configs.json. The
registries themselves import a package that is not published.
"""

from __future__ import annotations

import ast
import importlib.util
import json
from pathlib import Path
from typing import Any

MODULES = ("llama3", "deepseek_v3", "qwen3", "gpt_oss", "kimi_k2_7")
SECTIONS = {"training": "TrainingConfig", "parallelism": "ParallelismConfig"}
FIELDS = ("local_batch_size", "global_batch_size", "seq_len", "dtype")
MODES = {"FullAC": "full", "SelectiveAC": "selective", "NoAC": "none"}


def configurations() -> dict[str, dict[str, Any]]:
    """Name of a configuration -> path of a field -> its value, where a registry sets it."""
    spec = importlib.util.find_spec("torchtitan")
    assert spec is not None
    assert spec.submodule_search_locations
    models = Path(spec.submodule_search_locations[0]) / "models"
    settings: dict[str, dict[str, Any]] = {}
    for module in MODULES:
        for node in ast.parse((models / module / "config_registry.py").read_text()).body:
            if isinstance(node, ast.FunctionDef) and "debug" not in node.name:
                fields = _fields(node)
                if fields:
                    settings[node.name] = fields
    return dict(sorted(settings.items()))


def _fields(function: ast.FunctionDef) -> dict[str, Any]:
    """The fields of the configuration that a function returns as a literal, or none."""
    returned = function.body[-1]
    if not isinstance(returned, ast.Return) or not isinstance(returned.value, ast.Call):
        return {}
    fields: dict[str, Any] = {}
    for section in returned.value.keywords:
        value = section.value
        if not isinstance(value, ast.Call):
            continue
        title = ast.unparse(value.func).split(".")[0]
        if section.arg == "activation_checkpoint":
            fields["activation_checkpoint.mode"] = MODES[title]
        if SECTIONS.get(str(section.arg)) == title:
            fields |= {
                f"{section.arg}.{word.arg}": ast.literal_eval(word.value)
                for word in value.keywords
                if word.arg in FIELDS or "parallel" in str(word.arg)
            }
    return fields


if __name__ == "__main__":
    rows = (f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in configurations().items())
    print(",\n".join(rows))
