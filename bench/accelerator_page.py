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
    "layouts": (
        "Steps planned at the rates of `measure`, with nothing else tuned, beside measured ones."
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
        if word in found:
            return f"{head}: {NOT_YET} ({verb}: {found[word]})\n"
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


def of_layouts(found: Found) -> str:
    """One row a configuration, then the median error."""
    rows = []
    for one in found["rows"]:
        if "error" in one:
            rows.append([one["name"], "-", one["error"], "-"])
            continue
        times = [milliseconds(one[key]) for key in ("planned_s", "step_s")]
        rows.append([one["name"], *times, f"{one['ratio']:.2f}"])
    text = table(["configuration", "planned", "step", "ratio"], rows)
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
    "parity": of_parity,
    "train-1b": of_train,
    "train-8b": of_train,
    "decode-8b": of_decode,
    "layouts": of_layouts,
    "torch": of_torch,
}
