"""Make the kept programs: `python -m tests.unit.check.hlo.make [NAME ...]`.

Each is a tiny program compiled for a slice or a node that this machine does not have; needs
`shardwise[check]` for TPUs and `shardwise[check-gpu]` for GPUs. Beside the text stands what the
compiler says about memory.

Dims: B batch, T length, D model, F feed-forward, N heads, H head, E experts, V words, L layers.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent / "programs"
B, T, D, F, N, H, V, L, E = 16, 1024, 512, 2048, 4, 128, 4096, 3, 4
GPU = """
platform_name: "CUDA"
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 85017493504 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 } registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
device_description_str: "H100"
"""
# name: (what, platform, topology, options of the topology, mesh)
MESH = {"fsdp": 2, "tensor": 2}
PROGRAMS = {
    "train_v5e": ("train", "tpu", "v5e:2x2", {}, MESH),
    "train_v5p": ("train", "tpu", "v5p:2x2x1", {}, MESH),
    "train_v6e": ("train", "tpu", "v6e:2x2", {}, MESH),
    "train_tpu7x": ("train", "tpu", "tpu7x:2x2x1", {}, {"fsdp": 4, "tensor": 2}),
    "train_gpu": ("train", "cuda", "1x1x8", {}, {"fsdp": 4, "tensor": 2}),
    "train_cpu": ("train", "cpu", "8", {}, {"fsdp": 4, "tensor": 2}),
    "keep_v5e": ("keep", "tpu", "v5e:2x2", {}, MESH),
    "accumulate_v5e": ("accumulate", "tpu", "v5e:2x2", {}, MESH),
    "jit_v5e": ("jit", "tpu", "v5e:2x2", {}, MESH),
    "slices_v5e": ("train", "tpu", "v5e:2x2", {"num_slices": 2}, {"data": 2, **MESH}),
    "moe_v5e": ("moe", "tpu", "v5e:2x2", {}, {"expert": 4}),
    "moe_v6e": ("moe", "tpu", "v6e:2x2", {}, {"expert": 4}),
    "moe_gpu": ("moe", "cuda", "1x1x4", {}, {"expert": 4}),
    "ring_v5e": ("ring", "tpu", "v5e:2x2", {}, {"context": 4}),
    "ring_cpu": ("ring", "cpu", "4", {}, {"context": 4}),
    "pallas_v5e": ("pallas", "tpu", "v5e:2x2", {}, {"data": 4}),
    "decode_v5e": ("decode", "tpu", "v5e:2x2", {}, {"tensor": 4}),
}


def devices(platform, topology, options):
    """Devices of a slice, a node, or this machine's CPU, ordered by slice and coordinates."""
    import jax
    from jax.experimental import topologies

    if platform == "cpu":
        return jax.devices()[: int(topology)]
    if platform == "cuda":
        wanted = {"target_config": GPU, "topology": topology}
        return list(topologies.get_topology_desc("", "cuda", **wanted).devices)
    found = topologies.get_topology_desc(topology, "tpu", **options).devices
    return sorted(found, key=lambda d: (getattr(d, "slice_index", 0), d.coords, d.core_on_chip))


def weights(mesh):
    """Name -> (dims, axes of each dim); matrices of the layers are stacked over L."""
    return {
        "attn.q": ((L, D, N * H), (None, "fsdp", "tensor")),
        "attn.out": ((L, N * H, D), (None, "tensor", "fsdp")),
        "mlp.up": ((L, D, F), (None, "fsdp", "tensor")),
        "mlp.down": ((L, F, D), (None, "tensor", "fsdp")),
        "unembed": ((D, V), ("fsdp", "tensor")),
    }


def train(mesh, keep=(), n_microbatches=1):
    """A step of a scanned model whose collectives are all written out."""
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.ad_checkpoint import checkpoint_name
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    batch = tuple(a for a in ("data", "fsdp") if a in mesh.shape)
    table = weights(mesh)
    specs = {name: P(*axes) for name, (_, axes) in table.items()}

    def product(name, x, w, dim):
        with jax.named_scope(name):
            return x @ lax.all_gather(w, "fsdp", axis=dim, tiled=True)

    def layer(x_BTD, w):
        whole = lax.all_gather(x_BTD, "tensor", axis=1, tiled=True)
        q = product("attn.q", whole, w["attn.q"], 0).reshape(*whole.shape[:2], -1, H)
        with jax.named_scope("attn.scores"):
            scores = jnp.einsum("BSNH,BTNH->BNST", q, q, preferred_element_type=jnp.float32)
        with jax.named_scope("attn.values"):
            a = jnp.einsum("BNST,BTNH->BSNH", jax.nn.softmax(scores).astype(q.dtype), q)
        a = checkpoint_name(a.reshape(*whole.shape[:2], -1), "attended")
        out = product("attn.out", a, w["attn.out"], 1)
        x_BTD = x_BTD + lax.psum_scatter(out, "tensor", scatter_dimension=1, tiled=True)
        whole = lax.all_gather(x_BTD, "tensor", axis=1, tiled=True)
        up = checkpoint_name(product("mlp.up", whole, w["mlp.up"], 0), "up")
        out = product("mlp.down", jax.nn.relu(up), w["mlp.down"], 1)
        return x_BTD + lax.psum_scatter(out, "tensor", scatter_dimension=1, tiled=True)

    def loss(w, x_BTD):
        policy = jax.checkpoint_policies.save_only_these_names(*keep)
        body = jax.checkpoint(lambda x, w: (layer(x, w), None), policy=policy)
        stacked = {name: w[name] for name in table if name != "unembed"}
        x_BTD, _ = lax.scan(body, x_BTD, stacked)
        whole = lax.all_gather(x_BTD, "tensor", axis=1, tiled=True)
        logits = product("unembed", whole, w["unembed"], 0).astype(jnp.float32)
        total = lax.psum(jnp.exp(logits).sum(-1), "tensor")
        return jnp.log(total).sum()

    def step(w, m, x_BTD):
        if n_microbatches == 1:
            value, grads = jax.value_and_grad(loss)(w, x_BTD)
        else:
            parts = x_BTD.reshape(n_microbatches, -1, *x_BTD.shape[1:])
            start = (jnp.zeros(()), {name: jnp.zeros_like(w[name]) for name in w})
            value, grads = lax.scan(
                lambda sums, x: (
                    jax.tree.map(jnp.add, sums, jax.value_and_grad(loss)(w, x)),
                    None,
                ),
                start,
                parts,
            )[0]
        if "data" in mesh.shape:
            grads = {name: lax.psum(g, "data") for name, g in grads.items()}
        with jax.named_scope("optimizer"):
            m = {name: 0.9 * m[name] + g.astype(jnp.float32) for name, g in grads.items()}
            w = {name: w[name] - (1e-3 * m[name]).astype(w[name].dtype) for name in w}
        return w, m, lax.psum(value, batch)

    x = P(batch, "tensor", None)
    fn = jax.shard_map(
        step,
        mesh=mesh,
        in_specs=(specs, specs, x),
        out_specs=(specs, specs, P()),
        check_vma=False,
    )
    arrays = [
        {
            name: jax.ShapeDtypeStruct(dims, dtype, sharding=NamedSharding(mesh, specs[name]))
            for name, (dims, _) in table.items()
        }
        for dtype in (jnp.bfloat16, jnp.float32)
    ]
    shape = (B * n_microbatches, T, D)
    given = jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, x))
    return fn, (*arrays, given), (0, 1)


def keep(mesh):
    """The same step when the backward pass keeps two arrays of each layer."""
    return train(mesh, ("attended", "up"))


def accumulate(mesh):
    """That step for each of two microbatches, their gradients summed."""
    return train(mesh, ("attended", "up"), 2)


def jit(mesh):
    """Two products whose collectives the partitioner inserts."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    def step(w, x_BD):
        def loss(w):
            hidden = jax.nn.relu(jnp.einsum("BD,DF->BF", x_BD, w["up"]))
            return (jnp.einsum("BF,FD->BD", hidden, w["down"]).astype(jnp.float32) ** 2).sum()

        grads = jax.grad(loss)(w)
        return {name: w[name] - 1e-3 * grads[name] for name in w}

    def array(dims, *axes):
        return jax.ShapeDtypeStruct(dims, jnp.bfloat16, sharding=NamedSharding(mesh, P(*axes)))

    w = {"up": array((D, F), "fsdp", "tensor"), "down": array((F, D), "tensor", "fsdp")}
    return step, (w, array((B * T, D), "fsdp", None)), (0,)


def moe(mesh):
    """Tokens go to experts on other chips and back."""
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    def step(w_EDF, v_EFD, x_ETD):
        there = lax.all_to_all(x_ETD, "expert", 0, 1, tiled=True)
        with jax.named_scope("moe.up"):
            hidden = jnp.einsum("ETD,EDF->ETF", there, w_EDF)
        with jax.named_scope("moe.down"):
            back = jnp.einsum("ETF,EFD->ETD", hidden, v_EFD)
        return lax.all_to_all(back, "expert", 1, 0, tiled=True)

    spec = P("expert", None, None)
    place = {"mesh": mesh, "in_specs": (spec, spec, P(None, "expert", None))}
    fn = jax.shard_map(step, out_specs=P(None, "expert", None), check_vma=False, **place)

    def array(dims, spec):
        return jax.ShapeDtypeStruct(dims, jnp.bfloat16, sharding=NamedSharding(mesh, spec))

    x = array((E, B * T, D), P(None, "expert", None))
    return fn, (array((E, D, F), spec), array((E, F, D), spec), x), ()


def ring(mesh):
    """Blocks go round a ring while each is multiplied."""
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    n = mesh.shape["context"]

    def step(x_TD, w_DF):
        def turn(_, carry):
            block, total = carry
            total = total + block @ w_DF
            there = [(i, (i + 1) % n) for i in range(n)]
            return lax.ppermute(block, "context", there), total

        start = jnp.zeros((x_TD.shape[0], w_DF.shape[1]), jnp.float32)
        return lax.fori_loop(0, n, turn, (x_TD, start))[1]

    spec = P("context", None)
    fn = jax.shard_map(
        step, mesh=mesh, in_specs=(spec, P(None, None)), out_specs=spec, check_vma=False
    )

    def array(dims, spec):
        return jax.ShapeDtypeStruct(dims, jnp.float32, sharding=NamedSharding(mesh, spec))

    return fn, (array((B * T, D), spec), array((D, F), P(None, None))), ()


def pallas(mesh):
    """A kernel that states its costs."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    def kernel(x_ref, w_ref, o_ref):
        o_ref[...] = jnp.dot(x_ref[...], w_ref[...], preferred_element_type=jnp.float32)

    def step(x_TD, w_DF):
        rows = x_TD.shape[0]
        cost = pl.CostEstimate(
            flops=2 * rows * D * F, bytes_accessed=2 * (rows * D + D * F), transcendentals=0
        )
        return pl.pallas_call(
            kernel,
            grid=(rows // 128,),
            in_specs=[
                pl.BlockSpec((128, D), lambda i: (i, 0)),
                pl.BlockSpec((D, F), lambda i: (0, 0)),
            ],
            out_specs=pl.BlockSpec((128, F), lambda i: (i, 0)),
            out_shape=jax.ShapeDtypeStruct((rows, F), jnp.float32),
            cost_estimate=cost,
        )(x_TD, w_DF)

    spec = P("data", None)
    fn = jax.shard_map(
        step, mesh=mesh, in_specs=(spec, P(None, None)), out_specs=spec, check_vma=False
    )

    def array(dims, spec):
        return jax.ShapeDtypeStruct(dims, jnp.bfloat16, sharding=NamedSharding(mesh, spec))

    return fn, (array((B * T, D), spec), array((D, F), P(None, None))), ()


def decode(mesh):
    """One token for each sequence: a cache in the carry, one position of it written a layer."""
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    def step(w_LDD, cache_LBTD, x_BD, at):
        def layer(carry, w):
            x_BD, cache = carry
            i, w_DD = w
            with jax.named_scope("attn.k"):
                k = x_BD @ w_DD
            cache = lax.dynamic_update_slice(cache, k[None, :, None], (i, 0, at, 0))
            with jax.named_scope("attn.scores"):
                mine = lax.dynamic_index_in_dim(cache, i, 0, keepdims=False)
                weights = jax.nn.softmax(jnp.einsum("BD,BTD->BT", k, mine))
            out = lax.psum(jnp.einsum("BT,BTD->BD", weights, mine), "tensor")
            return (x_BD + jnp.tile(out, (1, D // out.shape[1])), cache), None

        layers = (jnp.arange(L), w_LDD)
        (x_BD, cache_LBTD), _ = lax.scan(layer, (x_BD, cache_LBTD), layers)
        return x_BD, cache_LBTD

    w, cache = P(None, None, "tensor"), P(None, None, None, "tensor")
    fn = jax.shard_map(
        step,
        mesh=mesh,
        in_specs=(w, cache, P(), P()),
        out_specs=(P(), cache),
        check_vma=False,
    )

    def array(dims, spec, dtype=jnp.bfloat16):
        return jax.ShapeDtypeStruct(dims, dtype, sharding=NamedSharding(mesh, spec))

    long = 4 * T
    given = (array((L, D, D), w), array((L, B, long, D), cache), array((B, D), P()))
    return fn, (*given, array((), P(), jnp.int32)), (1,)


def kept(text):
    """The program without tables of source files and without the code of kernels."""
    head, _, rest = text.partition("\nFileNames\n")
    if rest:
        text = head + "\n" + rest[re.search(r"^(?:ENTRY )?%", rest, re.M).start() :]
    return re.sub(r'"body":"[^"]*"', '"body":""', text)


def make(name):
    """Compile one and keep it."""
    import jax
    import numpy as np

    what, platform, topology, options, sizes = PROGRAMS[name]
    found = np.array(devices(platform, topology, options)).reshape(tuple(sizes.values()))
    fn, args, donated = globals()[what](jax.sharding.Mesh(found, tuple(sizes)))
    compiled = jax.jit(fn, donate_argnums=donated).lower(*args).compile()
    told = compiled.memory_analysis()
    keys = ("argument_size", "output_size", "temp_size", "alias_size", "peak_memory")
    memory = {key: getattr(told, f"{key}_in_bytes", None) for key in keys}
    HERE.mkdir(exist_ok=True)
    text = kept(compiled.as_text())
    data = gzip.compress(text.encode(), mtime=0)
    (HERE / f"{name}.hlo.gz").write_bytes(data)
    (HERE / f"{name}.json").write_text(json.dumps({"mesh": sizes, "memory": memory}) + "\n")
    print(name, len(text), len(data), memory)


def main(names):
    for name in names or PROGRAMS:
        env = dict(os.environ, JAX_PLATFORMS="cpu", ALLOW_MULTIPLE_LIBTPU_LOAD="1")
        env["TPU_SKIP_MDS_QUERY"] = "1"
        env["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
        code = f"from tests.unit.check.hlo.make import make; make({name!r})"
        subprocess.run([sys.executable, "-c", code], env=env, check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
