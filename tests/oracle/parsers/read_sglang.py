"""Read files as `python -m sglang.launch_server --config` does, into its ServerArgs.

What ServerArgs resolves later depends on the model's code and on the GPU, and is not done.
"""

from __future__ import annotations

from typing import Any

import stand_ins

stand_ins.allow(
    "triton",  # kernels
    "aiohttp", "zmq", "orjson",  # the server and its processes
    "PIL", "pybase64", "IPython",  # inputs, notebooks
)  # fmt: skip

from sglang.srt.server_args import prepare_server_args  # noqa: E402


def parse(request: dict[str, Any]) -> dict[str, Any]:
    """The fields of ServerArgs that an exported file sets, or leaves alone."""
    args = prepare_server_args(["--config", request["file"]])
    names = (
        "model_path", "tp_size", "pp_size", "dp_size", "attn_dp_size", "ep_size", "attn_cp_size",
        "enable_prefill_cp", "cp_strategy", "dcp_size", "kv_cache_dtype", "context_length",
        "max_running_requests", "chunked_prefill_size", "quantization", "disable_radix_cache",
        "disaggregation_mode", "nnodes",
    )  # fmt: skip
    return {name: getattr(args, name) for name in names}


if __name__ == "__main__":
    stand_ins.answer(parse)
