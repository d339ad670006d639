"""docs/accelerator.md, written from the results of `bench/accelerator.py` on GPUs and TPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accelerator_device import Found
from kept import cells

NOT_YET = "not measured yet"
DECODE_CATEGORIES = ("matmul", "attention", "elementwise")
HEAD = """# On an accelerator

What only a real GPU or TPU can show. On a machine that has one, install this package with the JAX
of its platform, `pip install -e '.[run]' 'jax[cuda13]'` (on a TPU `'jax[tpu]'`), then:

    python bench/accelerator.py               # all stages that have no result yet
    python bench/accelerator.py measure       # some of them
    python bench/accelerator.py --tiny        # small shapes, in a minute on a CPU

A stage takes less than 8 minutes. Results are kept in `bench/accelerator.json`, and this page is
written from them; those of a CPU and of `--tiny` are not shown. `measure` also writes the chip with
its measured rates as a file, which is a name of hardware: `shardwise plan MODEL ./FILE.toml:1`.
"""
ABOUT = {
    "measure": "Rates of one device. Matmuls: the median of the large ones.",
    "kernels": (
        "The kernels of the platform on layers of published models, in bf16. Apart: the largest\n"
        "difference from plain JAX in fp32 over the largest number. The roofline is the catalog's."
    ),
    "parity": (
        "A small model in fp32 for some steps, here and on the CPU of the same machine: losses\n"
        "have to be within 1e-4 of the CPU's, norms of gradients within 1e-3."
    ),
    "train-1b": (
        "A Llama of 1.3B parameters in bf16 under a plan for one device, on random tokens. MFU is\n"
        "the plan's FLOPs over the time at the catalog's peak. Layers are cut to fit."
    ),
    "train-8b": "A Llama with the sizes of 8B parameters, likewise.",
    "decode-8b": (
        "Decode steps of that model in bf16 by the engine's programs: the time in which HBM reads\n"
        "weights and KV cache, over the time of a step."
    ),
    "serve": (
        "The engine of `shardwise serve` with that model: requests of one length that arrive\n"
        "together. Same as alone: the first tokens of a request that its own run repeats."
    ),
    "layouts": (
        "Steps planned at the rates of `measure`, with nothing else tuned, beside measured ones."
    ),
    "families": (
        "Some layers of published models with a vocabulary of 16k, one device, bf16: 8 sequences\n"
        "of 4,096 tokens in training, 64 of 2,048 in decode; planned at the catalog's rates."
    ),
    "torch": (
        "The model of `train-1b` in PyTorch: torch.compile, flash attention, autocast to bf16,\n"
        "the fused AdamW."
    ),
}
Kept = dict[str, Found]  # kind of device -> its `platform` and `stages`


def page(kept: Kept) -> str:
    """The whole page."""
    shown = {kind: one["stages"] for kind, one in kept.items() if one["platform"] != "cpu"}
    parts = [HEAD]
    for stage, about in ABOUT.items():
        parts.append(f"## {stage}\n\n{about}\n")
        results = {kind: stages[stage] for kind, stages in shown.items() if stage in stages}
        parts += [told(stage, kind, found) for kind, found in results.items()] or [NOT_YET + "\n"]
    return "\n".join(parts)


def told(stage: str, kind: str, found: Found) -> str:
    """A result under the kind of its device."""
    head = f"{kind}, JAX {found['jax']}, {found['date']}"
    for word, verb in (("error", "failed"), ("skipped", "skipped")):
        if word in found and not found.get("rows"):
            return f"{head}: {NOT_YET} ({verb}: {found[word]})\n"
    if "error" in found:
        head += f" (the stage failed: {found['error']})"
    text = f"{head}:\n\n{TABLES[stage](found)}\n"
    return f"{text}\n{found['note']}\n" if "note" in found else text


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table whose first column is words, and all others are numbers."""
    return "\n".join([cells(head), f"|---{'|--:' * (len(head) - 1)}|", *map(cells, rows)])


def of_measure(found: Found) -> str:
    """Matmuls, memory, copies, latency."""
    rows = [
        [f"matmul {k}", f"{rate / 1e12:,.1f} TFLOP/s"] for k, rate in found["flops_per_s"].items()
    ]
    for size, rates in found["memory"].items():
        rows += [[f"memory, {size}, {k}", giga(rate)] for k, rate in rates.items()]
    rows += [[f"copy {way}", giga(rate)] for way, rate in found["copies"].items()]
    rows += [[f"dispatch, {k}", f"{1e6 * s:.1f} us"] for k, s in found["latency_s"].items()]
    return table(["what", "rate"], rows)


def giga(bytes_per_s: float) -> str:
    """`3,350 GB/s`."""
    return f"{bytes_per_s / 1e9:,.4g} GB/s"


def of_parity(found: Found) -> str:
    """How far both sides are apart."""
    rows = [[k, f"{apart:.1e}", f"{found['most'][k]:g}"] for k, apart in found["apart"].items()]
    return table([f"over {found['steps']} steps", "apart", "allowed"], rows)


def of_train(found: Found) -> str:
    """One step."""
    head = ["layers", "batch", "remat", "planned", "step", "tokens/s", "MFU"]
    row = [
        f"{found['n_layers']} of {found['of_layers']}",
        f"{found['batch']}x{found['seq']} / {found['n_microbatches']}",
        found["remat"],
        milliseconds(found["planned_s"]),
        milliseconds(found["step_s"]),
        f"{found['tokens_per_s']:,.0f}",
        f"{found['mfu']:.1%}",
    ]
    return table(head, [row]) + memory(found) + of_account(found.get("account"))


def memory(found: Found) -> str:
    """Planned, compiled and measured memory of the device, as a sentence."""
    keys = ("planned_memory_bytes", "program_bytes", "peak_memory_bytes")
    values = [found.get(key) for key in keys]
    if None in values:
        return ""
    planned, compiled, peak = (f"{n_bytes / 1e9:.1f} GB" for n_bytes in values)
    return f"\n\nMemory: {planned} planned, {compiled} compiled, {peak} at its peak."


def of_account(account: Found | None) -> str:
    """Where the time of a step went, by category, then its longest operations."""
    if not account or "error" in account:
        return ""
    step_s = account["step_s"]
    shares = [f"{k} {s / step_s:.1%}" for k, s in account["categories"].items() if s > step_s / 1e3]
    rows = [
        [one["name"], one["category"], f"{one['count']:.0f}", milliseconds(one["seconds"])]
        for one in account["operations"]
    ]
    text = f"\n\nThe profile of a step of {milliseconds(step_s)}: {', '.join(shares)}.\n\n"
    return text + table(["operation", "category", "times", "time"], rows)


def of_decode(found: Found) -> str:
    """One row a batch."""
    shown = f"{found['n_layers']} of {found['of_layers']} layers, {found['context']:,} tokens"
    head = [shown, "bytes", "planned", "step", "of measured HBM", "of the catalog's"]
    rows = []
    for one in found["rows"]:
        shares = [one["share"].get(name) for name in ("measured", "catalog")]
        rows.append(
            [
                f"batch {one['batch']}",
                f"{one['bytes'] / 1e9:.2f} GB",
                "-" if one.get("planned_s") is None else milliseconds(one["planned_s"]),
                milliseconds(one["step_s"]),
                *("-" if share is None else f"{share:.1%}" for share in shares),
                *(on_device(one.get("account"), name) for name in DECODE_CATEGORIES),
            ]
        )
    return table([*head, *DECODE_CATEGORIES], rows)


def on_device(account: Found | None, category: str) -> str:
    """Time of a category in the profile of a step; those are waited for, one after another."""
    seconds = (account or {}).get("categories", {}).get(category)
    return "-" if seconds is None else milliseconds(seconds)


def of_kernels(found: Found) -> str:
    """One row a kernel and layer."""
    rows = []
    for one in found["rows"]:
        if "failed" in one:
            rows.append([one["name"], "-", one["failed"], "-"])
            continue
        share = one.get("of_roofline")
        rows.append(
            [
                one["name"],
                f"{one['apart']:.1e}" if "apart" in one else "-",
                milliseconds(one["seconds"]),
                "-" if share is None else f"{share:.0%}",
            ]
        )
    return table(["kernel", "apart", "time", "of roofline"], rows)


def of_serve(found: Found) -> str:
    """One row a load."""
    rows = []
    for one in found["rows"]:
        planned_s = one.get("planned_s")
        rows.append(
            [
                f"{one['sequences']} x {one['prompt']} + {one['output']}",
                milliseconds(one["first_s"]),
                "-" if planned_s is None else milliseconds(planned_s),
                milliseconds(one["step_s"]),
                f"{one['decode_tokens_per_s']:,.0f}",
                f"{one['same_as_alone']:.0%}",
            ]
        )
    head = ["requests", "first tokens", "planned step", "step", "tokens/s", "same as alone"]
    return table(head, rows)


def of_families(found: Found) -> str:
    """One row a model and program."""
    return table(["program", "planned", "step", "ratio"], compared(found["rows"]))


def compared(rows: list[Found]) -> list[list[str]]:
    """Planned beside measured steps; of one that did not run, why."""
    lines = []
    for one in rows:
        if "error" in one:
            lines.append([one["name"], "-", one["error"], "-"])
            continue
        times = [milliseconds(one[key]) for key in ("planned_s", "step_s")]
        lines.append([one["name"], *times, f"{one['ratio']:.2f}"])
    return lines


def of_layouts(found: Found) -> str:
    """One row a configuration, then the median error."""
    text = table(["configuration", "planned", "step", "ratio"], compared(found["rows"]))
    text += f"\n\nMedian error {found['median_error']:.1%}."
    if found["left_out"]:
        text += f" Left out for time: {', '.join(found['left_out'])}."
    return text


def of_torch(found: Found) -> str:
    """One step."""
    row = [
        found["version"],
        str(found["n_layers"]),
        milliseconds(found["step_s"]),
        f"{found['tokens_per_s']:,.0f}",
        f"{found['mfu']:.1%}",
    ]
    return table(["PyTorch", "layers", "step", "tokens/s", "MFU"], [row])


def milliseconds(seconds: float) -> str:
    """`12.3 ms`."""
    return f"{1e3 * seconds:,.4g} ms"


TABLES: dict[str, Callable[[Any], str]] = {
    "measure": of_measure,
    "kernels": of_kernels,
    "parity": of_parity,
    "train-1b": of_train,
    "train-8b": of_train,
    "decode-8b": of_decode,
    "serve": of_serve,
    "layouts": of_layouts,
    "families": of_families,
    "torch": of_torch,
}
