"""Read files as MaxText's trainer does: over its base.yml and the model's file, into its types.

The machine is said as for MaxText's own compile without one: so many devices in so many slices.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest  # noqa: F401  # MaxText then raises what is wrong, and joins no cluster
import stand_ins

stand_ins.allow("flax", "pathwaysutils")  # layers, a launcher

from maxtext.configs import pyconfig  # noqa: E402

logging.disable(logging.WARNING)


def parse(request: dict[str, Any]) -> dict[str, Any]:
    """The fields of MaxTextConfig, those that it derives included."""
    config = pyconfig.initialize_pydantic(
        ["", request["file"]],
        internal_compile=True,
        internal_compile_num_devices=request["devices"],
        num_slices=request["slices"],
        base_output_directory=request["folder"],
        log_config=False,
    )
    values = config.model_dump()
    names = [name for name in values if name.endswith("_parallelism")]
    names += [
        "mesh_axes", "per_device_batch_size", "gradient_accumulation_steps", "max_target_length",
        "global_batch_size_to_train_on", "micro_batch_size_to_train_on", "num_slices",
        "num_pipeline_microbatches", "num_pipeline_repeats", "num_layers_per_pipeline_stage",
        "base_emb_dim", "base_num_decoder_layers", "shard_optimizer_over_data", "opt_type",
        "context_parallel_strategy", "remat_policy", "dtype", "weight_dtype",
    ]  # fmt: skip
    return {name: values[name] for name in names}


if __name__ == "__main__":
    stand_ins.answer(parse)
