"""Records of vTrain's validation tables -> the schema of the other records.

Source: VIA-Research/vTrain (MICRO 2024), step times of GPT models on A100, each beside what
Calculon (calculon-ai/calculon) predicts for the row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwise import units
from shardwise.validate.records.fields import Fields

_VOCAB = 50257  # of GPT-2, the default of vTrain's configuration
_VOCAB_MULTIPLE = 128  # Megatron-LM pads the vocabulary to this many times the tensor degree

ASSUMED = {
    "vocab": "GPT-2's, padded as Megatron-LM pads it",
    "precision": "fp16, what Megatron-LM trains in when nothing else is asked for",
    "zero_stage": "0, no distributed optimizer",
}


def is_vtrain(data: Mapping[str, Any]) -> bool:
    """Whether a record has the flat schema of these tables."""
    return "measured_step_ms" in data


def as_record(data: Mapping[str, Any]) -> dict[str, Any]:
    """The record in the common schema; what the tables leave open is in `assumed`."""
    row = Fields(data)
    multi = row.text("source", "").endswith("multi.csv")
    D, L, tp = row.whole("d_model"), row.whole("n_layers"), row.whole("tp")
    table = f"multi|{row.text('size', 'GPT')}" if multi else f"single|d{D}|L{L}"
    assumed = dict(ASSUMED)
    if not multi:
        assumed["chip"] = "the 80 GB part; the table says A100"
    milliseconds = row.maybe_number("measured_step_ms")
    calculon = row.maybe_number("calculon_step_ms")
    return {
        "id": row.text("id"),
        "source": {"repo": "VIA-Research/vTrain", "file": row.text("source", "").split(" ")[-1]},
        "date": "2024-11",
        "task": "pretrain",
        "group": f"vtrain|{table}",
        "tier": "core" if multi else "extra",
        "quality": "A" if multi else "B",
        "model": _gpt(row),
        "hardware": {
            "family": "A100-80" if row.text("chip").startswith("A100") else row.text("chip"),
            "count": row.whole("n_gpus"),
            "chips_per_node": 8,
            "interconnect": row.text("chip", ""),
        },
        "precision": "fp16",
        "seq_len": row.whole("seq_len"),
        "global_batch_seqs": row.whole("global_batch_seqs"),
        "micro_batch": row.whole("micro_batch"),
        "parallelism": {
            "dp": row.whole("dp"),
            "tp": tp,
            "pp": row.whole("pp"),
            "cp": 1,
            "zero_stage": 0,
        },
        "recompute": {"policy": row.text("recompute", "full")},
        "measured": {"step_time_s": milliseconds and milliseconds * units.MS},
        "peers": {"calculon": calculon * units.MS} if calculon else {},
        "assumed": assumed,
    }


def _gpt(row: Fields) -> dict[str, Any]:
    D, L, multiple = row.whole("d_model"), row.whole("n_layers"), _VOCAB_MULTIPLE * row.whole("tp")
    return {
        "name": f"GPT {L}x{D}",
        "layers": L,
        "d_model": D,
        "n_heads": row.whole("n_heads"),
        "d_ff": 4 * D,
        "mlp_matrices": 2,
        "vocab": -(-_VOCAB // multiple) * multiple,
        "tied_embeddings": True,
        "attention": "mha",
        "learned_positions": True,
    }
