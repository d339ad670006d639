"""Shardwise: plans how to shard a Transformer, with the numbers and reasons of every choice::

    import shardwise as sw

    plan = sw.plan(
        sw.model("llama3-70b"), sw.hardware("v5p:16x20x28"), sw.Train(batch=1120, seq=4096)
    )

Public names are loaded on first use, so that `import shardwise` is fast.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# public name -> (module, name in the module)
_PUBLIC = {
    "Chip": ("shardwise.hardware", "Chip"),
    "Fit": ("shardwise.search.fit", "Fit"),
    "Mesh": ("shardwise.strategy.mesh", "Mesh"),
    "ModelConfig": ("shardwise.models", "ModelConfig"),
    "Plan": ("shardwise.plan", "Plan"),
    "Serve": ("shardwise.workload", "Serve"),
    "ServingPlan": ("shardwise.plan", "ServingPlan"),
    "ShardwiseError": ("shardwise.errors", "ShardwiseError"),
    "Sweep": ("shardwise.plan.training.sweep", "Sweep"),
    "System": ("shardwise.hardware", "System"),
    "Torus": ("shardwise.hardware", "Torus"),
    "Train": ("shardwise.workload", "Train"),
    "chip": ("shardwise.hardware", "parse_chip"),
    "compare": ("shardwise.compare.api", "compare"),
    "evaluate": ("shardwise.plan", "evaluate"),
    "export": ("shardwise.frameworks.api", "export"),
    "import_plan": ("shardwise.frameworks.api", "import_plan"),
    "check": ("shardwise.check.api", "check"),
    "explain": ("shardwise.plan", "explain"),
    "fit": ("shardwise.search.fit", "fit"),
    "flops": ("shardwise.models.count", "flops"),
    "hardware": ("shardwise.hardware", "parse_system"),
    "kv_bytes_per_token": ("shardwise.models.count", "kv_bytes_per_token"),
    "kv_cache_bytes": ("shardwise.models.count", "kv_cache_bytes"),
    "load": ("shardwise.plan", "load"),
    "model": ("shardwise.models", "load"),
    "operation_roofline": ("shardwise.formulas.chip_roofline", "operation_roofline"),
    "parameters": ("shardwise.models.count", "parameters"),
    "plan": ("shardwise.plan", "plan"),
    "profile": ("shardwise.profile.account", "read_profile"),
    "report": ("shardwise.ui.frozen", "report"),
    "roofline": ("shardwise.formulas.chip_roofline", "roofline"),
    "search": ("shardwise.plan", "search"),
    "sensitivity": ("shardwise.plan.training.explain", "sensitivity"),
    "shard": ("shardwise.formulas.matmul", "shard"),
    "simulate": ("shardwise.plan.serving.traffic", "simulate_plan"),
    "sweep": ("shardwise.plan", "sweep"),
    "train": ("shardwise.train.run", "train"),
}

if TYPE_CHECKING:
    from shardwise.check.api import check
    from shardwise.compare.api import compare
    from shardwise.errors import ShardwiseError
    from shardwise.formulas.chip_roofline import operation_roofline, roofline
    from shardwise.formulas.matmul import shard
    from shardwise.frameworks.api import export, import_plan
    from shardwise.hardware import Chip, System, Torus
    from shardwise.hardware import parse_chip as chip
    from shardwise.hardware import parse_system as hardware
    from shardwise.models import ModelConfig
    from shardwise.models import load as model
    from shardwise.models.count import flops, kv_bytes_per_token, kv_cache_bytes, parameters
    from shardwise.plan import Plan, ServingPlan, evaluate, explain, load, plan, search, sweep
    from shardwise.plan.serving.traffic import simulate_plan as simulate
    from shardwise.plan.training.explain import sensitivity
    from shardwise.plan.training.sweep import Sweep
    from shardwise.profile.account import read_profile as profile
    from shardwise.search.fit import Fit, fit
    from shardwise.strategy.mesh import Mesh
    from shardwise.train.run import train
    from shardwise.ui.frozen import report
    from shardwise.workload import Serve, Train

__all__ = [
    "Chip",
    "Fit",
    "Mesh",
    "ModelConfig",
    "Plan",
    "Serve",
    "ServingPlan",
    "ShardwiseError",
    "Sweep",
    "System",
    "Torus",
    "Train",
    "check",
    "chip",
    "compare",
    "evaluate",
    "explain",
    "export",
    "fit",
    "flops",
    "hardware",
    "import_plan",
    "kv_bytes_per_token",
    "kv_cache_bytes",
    "load",
    "model",
    "operation_roofline",
    "parameters",
    "plan",
    "profile",
    "report",
    "roofline",
    "search",
    "sensitivity",
    "shard",
    "simulate",
    "sweep",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'shardwise' has no attribute {name!r}")
    module, attribute = _PUBLIC[name]
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


class _Facade(ModuleType):
    """Module type that keeps functions such as `sw.plan`, although subpackages have their names.

    Python sets an imported subpackage as an attribute of its parent, which would replace the
    function. `from shardwise.plan import ...` still imports from the subpackage.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _PUBLIC and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Facade
