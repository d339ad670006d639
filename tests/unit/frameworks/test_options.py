"""Every option that is written is one of the framework's own, of the right type.

The names stand in the package's `options/`, read from the frameworks' sources by
bench/framework_options.py.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from shardwise.errors import BadInput
from shardwise.frameworks import registry
from shardwise.frameworks.exported import engine, flat, training_run
from shardwise.frameworks.spelling import FOLDER, misspelled
from tests.unit.frameworks import plans

# Frameworks whose files are scripts of this package have no options of others.
OWN = ("jobset", "slurm")
# Of torchrun, of the shell, and of this package's comments.
OTHERS = {
    "$",
    "--module",
    "--config",
    "activation-checkpoint:full",
    "activation-checkpoint:selective",
    "activation-checkpoint:none",
}


def written(framework: str) -> list[dict[str, Any]]:
    """The settings of every plan that the framework runs, path -> value."""
    found = []
    names = plans.TRAINING if framework in registry.names("train") else plans.SERVING
    for name in names:
        if framework in registry.names("train"):
            source: Any = training_run(plans.training(name))
        else:
            source = engine(plans.serving(name), None)
        try:
            found.append(flat(registry.find(framework).write(source).settings))
        except BadInput:
            continue
    return found


def options(framework: str) -> dict[str, str]:
    document = json.loads((FOLDER / f"{framework}.json").read_text())
    assert document["version"]
    assert document["as_of"]
    return dict(document["options"])


def problems(framework: str, settings: dict[str, Any]) -> list[str]:
    """What of the settings is no option of the framework, or has a value of another type."""
    known = options(framework)
    prefix = "--" if framework == "torchtitan" else ""
    found = []
    for path, value in settings.items():
        if path in OTHERS:
            continue
        kind = known.get(path.removeprefix(prefix))
        if kind is None:
            found.append(f"{path} is no option")
        elif kind.split(" |")[0] in ("int", "PositiveInt") and (
            not isinstance(value, int) or isinstance(value, bool)
        ):
            found.append(f"{path} is {kind}, not {value!r}")
        elif kind == "bool" and str(value) not in ("True", "False"):
            found.append(f"{path} is a bool, not {value!r}")
        elif kind == "str" and not isinstance(value, str):
            found.append(f"{path} is a text, not {value!r}")
    return found


@pytest.mark.parametrize("framework", [name for name in registry.names() if name not in OWN])
def test_only_options_of_the_framework_are_written(framework: str) -> None:
    files = written(framework)
    assert len(files) >= 5
    assert not [problem for settings in files for problem in problems(framework, settings)]


def test_a_misspelled_option_is_found() -> None:
    assert problems("maxtext", {"ici_fsdp_parallel": 4}) == ["ici_fsdp_parallel is no option"]
    assert problems("vllm", {"max-model-length": 4}) == ["max-model-length is no option"]
    assert problems("torchtitan", {"--parallelism.tensor_parallel_degree": "8"})
    assert problems("tensorrt-llm", {"enable_attention_dp": 4})


def test_other_names_of_options_are_not_called_misspelled() -> None:
    """Aliases, keys of an option's table, and the negation of a flag."""
    zero = {"stage3_max_live_parameters": 1, "offload_optimizer": {"device": "cpu"}}
    assert misspelled({"zero_optimization": zero}, "deepspeed") == []
    assert misspelled({"--no-enable-prefix-caching": True}, "vllm") == []
    assert misspelled({"zero_optimization": {"reduce_bucket_sise": 1}}, "deepspeed") == [
        "zero_optimization.reduce_bucket_sise; close: zero_optimization.reduce_bucket_size"
    ]
