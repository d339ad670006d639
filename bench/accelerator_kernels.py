"""Stage `kernels` of `bench/accelerator.py`: the kernels of the platform, held against plain JAX.

Each case is a layer of a model that people run, in bf16. The plain form computes in fp32 at the
highest precision, over shorter sequences: its products are slow. A kernel whose results are wrong
fails the stage.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from accelerator_device import Device, Found, report, seconds_of

from shardwise.models import Attention, Mla
from shardwise.runtime.devices import local_devices
from shardwise.runtime.kernels import attention
from shardwise.runtime.kernels.grouped_matmul import grouped_matmul
from shardwise.runtime.layout.mesh import role_mesh
from shardwise.runtime.serving import kv_cache, paged_cache
from shardwise.runtime.serving.kv_layout import KvLayout
from shardwise.runtime.serving.paged_cache import NewTokens
from shardwise.runtime.weights.quantized import Scaled
from shardwise.strategy.mesh import Mesh

# XLA tries tens of kernels for each product in fp32: minutes.
PLAIN_OPTIONS = {"xla_gpu_autotune_level": 0}
MOST = 2e-2  # a few times the rounding of bf16, 2^-9 = 0.002


class Sizes(NamedTuple):
    """How much a case computes.

    Args:
        tokens: of a sequence in training.
        decoding: sequences, and tokens of each in the cache.
        chunk: sequences, and new tokens of each.
        rows: of a grouped matmul.
        widths: divisor of the widths of experts.
    """

    tokens: int
    decoding: tuple[int, int]
    chunk: tuple[int, int]
    rows: int
    widths: int = 1


TIMED = Sizes(4096, (64, 2048), (2, 1024), 32768)
COMPARED = Sizes(2048, (8, 2048), (2, 256), 1024, 4)
TINY = Sizes(128, (3, 64), (2, 16), 64, 64)
SLOTS = 16  # of a page
WHOLE = KvLayout(heads=(), copy_axes=(), split="copied", n_copies=1)
LLAMA = Attention(n_heads=32, n_kv_heads=8, d_head=128)
GEMMA = Attention(n_heads=8, n_kv_heads=4, d_head=256)
GEMMA_WINDOW = Attention(n_heads=8, n_kv_heads=4, d_head=256, window=1024)
GPT_OSS = Attention(n_heads=64, n_kv_heads=8, d_head=64, sinks=True)
GPT_OSS_WINDOW = Attention(n_heads=64, n_kv_heads=8, d_head=64, sinks=True, window=128)
DEEPSEEK = Attention(n_heads=16, n_kv_heads=16, d_head=192)  # after its latents are expanded
LATENTS = Attention(
    n_heads=16,
    n_kv_heads=16,
    d_head=192,
    mla=Mla(kv_lora_rank=512, d_nope=128, d_rope=64, d_v=128),
)
TRAINED = {
    "llama": LLAMA,
    "gemma3": GEMMA,
    "gemma3, window": GEMMA_WINDOW,
    "gpt-oss": GPT_OSS,
    "gpt-oss, window": GPT_OSS_WINDOW,
    "deepseek": DEEPSEEK,
}
SERVED = {
    "llama": LLAMA,
    "gemma3, window": GEMMA_WINDOW,
    "gpt-oss": GPT_OSS,
    "gpt-oss, window": GPT_OSS_WINDOW,
    "deepseek": LATENTS,
}
EXPERTS = {  # experts, width in and out
    "mixtral": (8, 4096, 14336),
    "qwen3": (128, 2048, 768),
    "gpt-oss": (32, 2880, 2880),
}
VALUE_WIDTH = {"deepseek": 128}


class Case(NamedTuple):
    """A kernel and its plain form on the same arrays.

    Args:
        name: of the kernel, the layer and the dtype.
        arrays: in the dtypes of the kernel.
        kernel, plain: take the arrays.
        flops, n_bytes: of the kernel.
    """

    name: str
    arrays: tuple[Any, ...]
    kernel: Callable[..., Any]
    plain: Callable[..., Any]
    flops: float
    n_bytes: float


def kernels(device: Device) -> Found:
    """Every case: how far it is from plain JAX, its seconds, and its share of the roofline."""
    roofs = None
    if device.platform != "cpu" and device.in_catalog:
        chip = device.machine(measured=False).chip
        roofs = (chip.peak_flops_per_s["bf16"], chip.hbm_bytes_per_s or 0.0)
    compared = list(cases(TINY if device.tiny else COMPARED))
    timed = compared if device.tiny else list(cases(TIMED))
    options = PLAIN_OPTIONS if device.platform == "gpu" else {}
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2)) as threads:
        programs = list(threads.map(partial(compiled, options), compared, timed))
    found: Found = {"rows": [], "most": MOST}
    for one in zip(compared, timed, programs, strict=True):
        found["rows"].append(row(*one, device, roofs))
        report(found, f"kernels: {one[0].name}")
    wrong = [one for one in found["rows"] if "apart" in one and not one["apart"] <= MOST]
    if wrong:
        names = "; ".join(f"{one['name']}: {one['apart']:.2g}" for one in wrong)
        found["error"] = f"apart from plain JAX: {names}"
    return found


def compiled(plain_options: dict[str, Any], compared: Case, timed: Case) -> list[Any]:
    """Programs of a case: plain and by the kernel, and that which is timed; of one, why it failed.

    They are compiled by several threads at once.
    """
    programs: list[Any] = []
    for case, is_plain in ((compared, True), (compared, False), (timed, False)):
        function = case.plain if is_plain else case.kernel
        options = plain_options if is_plain else {}
        try:
            with jax.default_matmul_precision("highest" if is_plain else None):
                lowered = jax.jit(function).lower(*case.arrays)
                programs.append(lowered.compile(compiler_options=options))
        except Exception as error:  # whatever a compiler says
            programs.append(error)
    return programs


def row(
    compared: Case,
    timed: Case,
    programs: list[Any],
    device: Device,
    roofs: tuple[float, float] | None,
) -> Found:
    """The row of a case; of one that the platform cannot compile or run, why."""
    try:
        for program in programs:
            if isinstance(program, Exception):
                raise program
        plain, kernel, kernel_timed = programs
        exact, results = plain(*compared.arrays), kernel(*compared.arrays)
        apart = max(map(distance, jax.tree.leaves(results), jax.tree.leaves(exact)))
        seconds = seconds_of(lambda: kernel_timed(*timed.arrays), tiny=device.tiny, most=50)
    except Exception as error:  # whatever a driver says
        return {"name": timed.name, "failed": f"{type(error).__name__}: {error}"[:300]}
    found: Found = {"name": timed.name, "apart": apart, "seconds": seconds}
    if roofs:
        peak, bandwidth = roofs
        roof_s = max(timed.flops / peak, timed.n_bytes / bandwidth)
        found |= {"flops": timed.flops, "bytes": timed.n_bytes, "of_roofline": roof_s / seconds}
    return found


def distance(x: Any, exact: Any) -> float:
    """The largest difference, over the largest number."""
    difference = jnp.abs(x.astype(jnp.float32) - exact.astype(jnp.float32)).max()
    return float(difference / jnp.abs(exact.astype(jnp.float32)).max())


def cases(sizes: Sizes) -> Iterator[Case]:
    """All cases."""
    platform = role_mesh(Mesh().sizes, np.array(local_devices()[:1])).platform
    for name, a in TRAINED.items():
        yield from trained(name, a, platform, sizes.tokens)
    for name, a in SERVED.items():
        for dtype in ("bf16", "int8", "fp8") if name == "llama" else ("bf16",):
            yield served(name, a, platform, dtype, sizes.decoding, 1)
            sequences, new = sizes.chunk
            yield served(name, a, platform, dtype, (sequences, 2 * new), new)
    for name, shape in EXPERTS.items():
        yield from experts(name, shape, platform, sizes)


def trained(name: str, a: Attention, platform: str, n_tokens: int) -> Iterator[Case]:
    """Causal attention over a sequence, forward and with its gradients."""
    width = VALUE_WIDTH.get(name, a.d_head)
    shapes = [(a.n_heads, a.d_head), (a.n_kv_heads, a.d_head), (a.n_kv_heads, width)]
    arrays = tuple(in_bf16(i, 1, n_tokens, *shape) for i, shape in enumerate(shapes))
    sinks_N = normal(3, a.n_heads) if a.sinks else None
    do_BTNH = in_bf16(4, 1, n_tokens, a.n_heads, width)

    def forward(on: str, *x: Any) -> Any:
        return attention.attend(*x, a, on, a.d_head**-0.5, sinks_N=sinks_N)

    window = min(a.window or n_tokens, n_tokens)
    pairs = n_tokens * window - window * (window - 1) / 2
    flops = 2 * a.n_heads * pairs * (a.d_head + width)
    n_bytes = 2 * n_tokens * (a.n_heads + a.n_kv_heads) * (a.d_head + width)
    work = {"flops": flops, "n_bytes": n_bytes}
    yield from passes(f"attention, {name}", forward, platform, arrays, do_BTNH, work, 3.5)


def passes(
    name: str,
    forward: Callable[..., Any],
    platform: str,
    arrays: tuple[Any, ...],
    dy: Any,
    work: dict[str, float],
    times: float,
) -> Iterator[Case]:
    """A kernel forward, and forward and backward.

    Args:
        forward: takes a platform and the arrays.
        dy: the cotangent of its result.
        work: FLOPs and bytes of the forward pass.
        times: those of both passes in relation to it.
    """

    def in_fp32(function: Callable[..., Any], *x: Any) -> Any:
        return function(*(y.astype(jnp.float32) for y in x))

    def both(on: str, dy: Any, *x: Any) -> Any:
        y, pull_back = jax.vjp(partial(forward, on), *x)
        return y, pull_back(dy.astype(y.dtype))

    for words, function, taken, factor in (
        ("forward", forward, arrays, 1.0),
        ("forward and backward", both, (dy, *arrays), times),
    ):
        yield Case(
            name=f"{name}, {words}",
            arrays=taken,
            kernel=partial(function, platform),
            plain=partial(in_fp32, partial(function, "plain")),
            **{key: factor * amount for key, amount in work.items()},
        )


def served(
    name: str, a: Attention, platform: str, dtype: str, sizes: tuple[int, int], new: int
) -> Case:
    """Attention of `new` tokens of each sequence to its pages, which hold them too."""
    sequences, context = sizes
    per_sequence = context // SLOTS
    random = np.random.default_rng(0)
    tables_BM = random.permutation(sequences * per_sequence).reshape(sequences, per_sequence)
    tokens = NewTokens(
        past_B=jnp.full(sequences, context - new, jnp.int32),
        new_B=jnp.full(sequences, new, jnp.int32),
        tables_BM=jnp.array(tables_BM, jnp.int32),
        n_tokens=new,
        block_tokens=SLOTS,
        kv_layout=WHOLE,
    )
    widths = kv_cache.cached_widths(a)
    n_heads = 1 if a.mla else a.n_kv_heads
    shape = (sequences * per_sequence, n_heads, SLOTS)
    stored = {"bf16": jnp.bfloat16, "int8": jnp.int8, "fp8": jnp.float8_e4m3fn}[dtype]
    cache = {
        part: kv_cache.to_cache(normal(i, *shape, width), stored)
        for i, (part, width) in enumerate(widths.items())
    }
    sinks_N = normal(3, a.n_heads) if a.sinks else None

    def run(on: str, q_BTNH: Any, pages: Any) -> Any:
        first = jnp.zeros((), jnp.int32)
        return paged_cache.attend(q_BTNH, pages, tokens, first, a, on, sinks_N=sinks_N)

    def plain(q_BTNH: Any, pages: Any) -> Any:
        numbers = {name: in_fp32(x) for name, x in pages.items()}
        return run("plain", q_BTNH.astype(jnp.float32), numbers)

    read = min(context, (a.window or context) + new - 1)
    kept = sum(widths.values())  # of a token and head; latents are keys and values
    n_keys = min(a.window or context, context - (new - 1) / 2)
    both = kept + a.mla.kv_lora_rank if a.mla else kept
    return Case(
        name=f"paged attention, {name}, {'decode' if new == 1 else 'chunk'}, {dtype}",
        arrays=(in_bf16(2, sequences, new, a.n_heads, widths["k"]), cache),
        kernel=partial(run, platform),
        plain=plain,
        flops=2 * sequences * new * a.n_heads * n_keys * both,
        n_bytes=sequences * read * n_heads * kept * jnp.dtype(stored).itemsize,
    )


def in_fp32(x: Any) -> Any:
    """Keys or values without scales."""
    if not isinstance(x, Scaled):
        return x.astype(jnp.float32)
    return x.values.astype(jnp.float32) * x.scale.astype(jnp.float32)[..., None]


def experts(name: str, shape: tuple[int, int, int], platform: str, sizes: Sizes) -> Iterator[Case]:
    """Rows of unequal groups by the matrices of their experts, forward and with gradients."""
    n_experts, n_rows = shape[0], sizes.rows
    inputs, outputs = (16 * max(1, width // (16 * sizes.widths)) for width in shape[1:])
    shares = np.random.default_rng(0).dirichlet(np.full(n_experts, 4.0))
    ends = np.round(np.cumsum(shares) * n_rows).astype(np.int32)
    sizes_E = jnp.array(np.diff(ends, prepend=0), jnp.int32)
    w_EIJ = in_bf16(1, n_experts, inputs, outputs) * inputs**-0.5
    arrays = (in_bf16(0, n_rows, inputs), w_EIJ.astype(jnp.bfloat16))
    dy_RJ = in_bf16(2, n_rows, outputs)

    def forward(on: str, x_RI: Any, w_EIJ: Any) -> Any:
        return grouped_matmul(on, x_RI, w_EIJ, sizes_E)

    flops = 2 * n_rows * inputs * outputs
    n_bytes = 2 * (n_rows * (inputs + outputs) + n_experts * inputs * outputs)
    work = {"flops": flops, "n_bytes": n_bytes}
    yield from passes(f"grouped matmul, {name}", forward, platform, arrays, dy_RJ, work, 3)


def normal(seed: int, *shape: int) -> jax.Array:
    """Random numbers in fp32."""
    return jax.random.normal(jax.random.key(seed), shape, jnp.float32)


def in_bf16(seed: int, *shape: int) -> jax.Array:
    """The same in bf16."""
    return normal(seed, *shape).astype(jnp.bfloat16)
