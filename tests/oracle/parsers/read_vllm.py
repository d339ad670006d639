"""Read files as `vllm serve --config` does: its parser, its EngineArgs, its configuration of both
parallelism and scheduler. The model's configuration needs compiled code, and is not made."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import stand_ins

os.environ["VLLM_TARGET_DEVICE"] = "cpu"  # it looks for GPUs and TPUs otherwise
stand_ins.allow(
    "fastapi", "aiohttp", "zmq",  # the server and its processes
    "openai_harmony", "partial_json_parser", "xgrammar",  # the text of answers
    "PIL", "cachetools", "cbor2", "pybase64",  # inputs and their caches
)  # fmt: skip

from vllm.config import ParallelConfig, SchedulerConfig  # noqa: E402
from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: E402
from vllm.entrypoints.common.cli_args import (  # noqa: E402
    make_arg_parser,
    validate_parsed_serve_args,
)
from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: E402

PARSER = FlexibleArgumentParser()
make_arg_parser(PARSER.add_subparsers(dest="subparser").add_parser("serve"))


def parse(request: dict[str, Any]) -> dict[str, Any]:
    """The fields of EngineArgs, after checks across them."""
    args = PARSER.parse_args(["serve", "--config", request["file"]])
    validate_parsed_serve_args(args)
    engine = AsyncEngineArgs.from_cli_args(args)
    shared = {
        field.name: getattr(engine, field.name)
        for field in dataclasses.fields(ParallelConfig)
        if field.init and field.name.endswith("parallel_size")
    }
    ParallelConfig(
        **shared,
        enable_expert_parallel=engine.enable_expert_parallel,
        is_moe_model=request["is_moe"],
        distributed_executor_backend="mp",
    )
    SchedulerConfig(
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_num_seqs=engine.max_num_seqs,
        max_model_len=engine.max_model_len,
        enable_chunked_prefill=engine.enable_chunked_prefill,
        is_encoder_decoder=False,
    ).verify_max_model_len(engine.max_model_len)
    names = (
        "model", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
        "prefill_context_parallel_size", "decode_context_parallel_size", "enable_expert_parallel",
        "kv_cache_dtype", "max_model_len", "max_num_seqs", "max_num_batched_tokens",
        "enable_prefix_caching", "enable_chunked_prefill", "quantization",
    )  # fmt: skip
    transfer = engine.kv_transfer_config
    role = {"kv_role": transfer.kv_role if transfer else None}
    return {name: getattr(engine, name) for name in names} | role


if __name__ == "__main__":
    stand_ins.answer(parse)
