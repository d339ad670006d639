"""Read files as Megatron Bridge and Megatron Core do, into their configuration classes.

A YAML file overrides the fields of a recipe, here a bare one of the model's sizes, and the whole is
validated for a number of ranks. Of a script's flags, those are read that Megatron-LM makes of the
fields of Megatron Core's classes: its `arguments.py` is in no wheel.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import warnings
from pathlib import Path
from typing import Any

import stand_ins

warnings.simplefilter("ignore")  # fused kernels are not installed

# Megatron Core looks which of its kernels there are, and has to see none.
import megatron.core.models.gpt  # noqa: E402, F401
import torch  # noqa: E402

stand_ins.allow("transformer_engine", "triton", "datasets", "six", "hydra")

from megatron.bridge.models import GPTModelProvider  # noqa: E402
from megatron.bridge.training import config as bridge  # noqa: E402
from megatron.bridge.training.utils.omegaconf_utils import (  # noqa: E402
    process_config_with_overrides,
)
from megatron.core.distributed import DistributedDataParallelConfig  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402

MESH = (
    "tensor_model_parallel_size", "context_parallel_size", "pipeline_model_parallel_size",
    "expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel",
    "virtual_pipeline_model_parallel_size", "num_moe_experts",
)  # fmt: skip
DDP = ("use_distributed_optimizer", "use_megatron_fsdp", "data_parallel_sharding_strategy")


def recipe(request: dict[str, Any]) -> Any:
    """A configuration in which nothing that a plan decides is set."""
    return bridge.ConfigContainer(
        model=GPTModelProvider(**request["model"], vocab_size=32000, add_bias_linear=False),
        train=bridge.TrainingConfig(train_iters=1),
        optimizer=bridge.OptimizerConfig(lr=1e-4, min_lr=0.0, use_distributed_optimizer=True),
        scheduler=bridge.SchedulerConfig(lr_decay_iters=1, lr_warmup_iters=0),
        dataset=bridge.GPTDatasetConfig(
            random_seed=1,
            reset_attention_mask=False,
            reset_position_ids=False,
            eod_mask_loss=False,
            sequence_length=1,
        ),
        logger=bridge.LoggerConfig(),
        tokenizer=bridge.TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=32000),
        checkpoint=bridge.CheckpointConfig(save=request["folder"]),
    )


def parse_yaml(request: dict[str, Any]) -> dict[str, Any]:
    """What a recipe is after a file's overrides and Megatron Bridge's validation."""
    os.environ["WORLD_SIZE"] = str(request["ranks"])
    config = process_config_with_overrides(recipe(request), request["file"])
    config.validate()
    return {
        **{name: getattr(config.model, name) for name in MESH},
        **{name: getattr(config.ddp, name) for name in DDP},
        "data_parallel_size": config.data_parallel_size,
        "micro_batch_size": config.train.micro_batch_size,
        "global_batch_size": config.train.global_batch_size,
        "sequence_length": config.dataset.sequence_length,
    }


def parse_script(request: dict[str, Any]) -> dict[str, Any]:
    """Megatron Core's two classes from the flags of a script that are its fields."""
    text = Path(request["file"]).read_text()
    words = shlex.split(text[text.index("torchrun --") :].replace("\\\n", " "))
    flags = _flags(words[words.index("pretrain_gpt.py") + 1 :])
    values = _fields(TransformerConfig, flags) | {
        "add_bias_linear": "disable_bias_linear" not in flags
    }
    if "bf16" in flags:  # Megatron-LM sends activations between stages in the dtype of the weights
        values |= {"bf16": True, "params_dtype": torch.bfloat16, "pipeline_dtype": torch.bfloat16}
    model = TransformerConfig(**values)
    ddp = DistributedDataParallelConfig(**_fields(DistributedDataParallelConfig, flags))
    return {
        **{name: getattr(model, name) for name in MESH},
        **{name: getattr(ddp, name) for name in DDP},
        "num_layers": model.num_layers,
        "num_query_groups": model.num_query_groups,
        "moe_router_topk": model.moe_router_topk,
    }


def _flags(words: list[str]) -> dict[str, list[str]]:
    flags: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            name = word[2:].replace("-", "_")
            flags[{"num_experts": "num_moe_experts"}.get(name, name)] = []
        else:
            flags[next(reversed(flags))].append(word)
    return flags


def _fields(kind: type, flags: dict[str, list[str]]) -> dict[str, Any]:
    """Values of the fields of a dataclass among the flags."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if field.name not in flags:
            continue
        words = flags[field.name]
        if field.name == "recompute_modules":
            values[field.name] = words
        elif not words:
            values[field.name] = True
        else:
            word = words[0]
            values[field.name] = int(word) if word.isdecimal() else word
    return values


def parse(request: dict[str, Any]) -> dict[str, Any]:
    """A YAML file or a script."""
    return parse_yaml(request) if request["file"].endswith(".yaml") else parse_script(request)


if __name__ == "__main__":
    stand_ins.answer(parse)
