"""Conversion of vTrain's validation tables to the common schema of records.

The tables (VIA-Research/vTrain, MICRO 2024) have step times of GPT models on A100, each with the
step time that Calculon (calculon-ai/calculon) predicts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwise import units
from shardwise.validate.records.fields import JsonReader

_VOCAB = 50257  # vocabulary of GPT-2, the default of vTrain's configuration
_VOCAB_MULTIPLE = 128  # Megatron-LM pads the vocabulary to this many times the tensor degree

ASSUMED = {
    "vocab": "GPT-2's, padded as Megatron-LM pads it",
    "precision": "fp16, the default of Megatron-LM",
    "zero_stage": "0, no distributed optimizer",
}


def is_vtrain(data: Mapping[str, Any]) -> bool:
    """Whether a record is a row of vTrain's tables, whose schema has no nested objects."""
    return "measured_step_ms" in data


def as_record(data: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a row of vTrain's tables to the common schema; assume what the tables do not say."""
    row = JsonReader(data)
    source = row.text("source", "")
    assumed = dict(ASSUMED)
    multi_node = source.endswith("multi.csv")
    if multi_node:
        table = f"multi|{row.text('size', 'GPT')}"
    else:
        table = f"single|d{row.integer('d_model')}|L{row.integer('n_layers')}"
        assumed["chip"] = "the 80 GB part; the table says A100"
    chip = row.text("chip")
    step_ms = row.optional_number("measured_step_ms")
    calculon_ms = row.optional_number("calculon_step_ms")
    return {
        "id": row.text("id"),
        "source": {"repo": "VIA-Research/vTrain", "file": source.split(" ")[-1]},
        "date": "2024-11",
        "task": "pretrain",
        "group": f"vtrain|{table}",
        "tier": "core" if multi_node else "extra",
        "quality": "A" if multi_node else "B",
        "model": _gpt(row),
        "hardware": {
            "family": "A100-80" if chip.startswith("A100") else chip,
            "count": row.integer("n_gpus"),
            "chips_per_node": 8,
            "interconnect": chip,
        },
        "precision": "fp16",
        "seq_len": row.integer("seq_len"),
        "global_batch_seqs": row.integer("global_batch_seqs"),
        "micro_batch": row.integer("micro_batch"),
        "parallelism": {
            "dp": row.integer("dp"),
            "tp": row.integer("tp"),
            "pp": row.integer("pp"),
            "cp": 1,
            "zero_stage": 0,
        },
        "recompute": {"policy": row.text("recompute", "full")},
        "measured": {"step_time_s": step_ms and step_ms * units.MS},
        "peers": {"calculon": calculon_ms * units.MS} if calculon_ms else {},
        "assumed": assumed,
    }


def _gpt(row: JsonReader) -> dict[str, Any]:
    """Return the `model` object of a GPT model, with D its width and L its number of layers."""
    D = row.integer("d_model")
    L = row.integer("n_layers")
    multiple = _VOCAB_MULTIPLE * row.integer("tp")
    return {
        "name": f"GPT {L}x{D}",
        "layers": L,
        "d_model": D,
        "n_heads": row.integer("n_heads"),
        "d_ff": 4 * D,
        "mlp_matrices": 2,
        "vocab": -(-_VOCAB // multiple) * multiple,
        "tied_embeddings": True,
        "attention": "mha",
        "learned_positions": True,
    }
