"""Stage `torch` of `bench/accelerator.py`: the model of `train-1b` in PyTorch, on the same device.

As one writes it there to be fast: torch.compile, scaled_dot_product_attention (flash), products in
bf16 by autocast, the fused AdamW. Layers and microbatches are those of the plan of `train-1b`; a
microbatch that does not fit is halved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accelerator_device import Device, Found, Skipped
from accelerator_train import SIZES, fitting_plan, planned_flops, size_of, timed_steps

from shardwise.formulas.flops import mfu

CUDA = "PyTorch has no CUDA here"


def beside(device: Device) -> Found:
    """MFU of PyTorch's step, counted as that of `train-1b`."""
    try:
        import torch
    except ImportError:
        raise Skipped("PyTorch is not installed") from None
    if not torch.cuda.is_available():
        raise Skipped(CUDA)
    size = size_of("1b", device)
    system = device.machine(measured=False)
    plan, n_layers = fitting_plan(size, system)
    job = plan.workload
    micro_batch = plan.strategy.micro_batch
    while True:
        about = {**SIZES[size], "n_layers": n_layers, "seq": job.seq, "eps": 1e-6, "theta": 1e4}
        try:
            found = timed(about, job.batch, micro_batch, "cuda", compiled=True)
            break
        except torch.OutOfMemoryError:
            if micro_batch == 1:
                raise
            micro_batch //= 2
        torch.cuda.empty_cache()
    peak = system.chip.peak_flops_per_s["bf16"]
    return {
        "version": torch.__version__,
        "n_layers": n_layers,
        "micro_batch": micro_batch,
        "mfu": mfu(planned_flops(plan), found["step_s"], 1, peak),
        "tokens_per_s": job.tokens_per_step / found["step_s"],
        **found,
    }


def timed(
    about: dict[str, Any], batch: int, micro_batch: int, where: str, *, compiled: bool
) -> Found:
    """As `accelerator_train.timed_steps`, of PyTorch's step."""
    step, wait = stepper(about, batch, micro_batch, where, compiled=compiled)
    return timed_steps(step, wait=wait)


def stepper(
    about: dict[str, Any], batch: int, micro_batch: int, where: str, *, compiled: bool
) -> tuple[Callable[[], float], Callable[[], None]]:
    """A function that runs a step on random tokens and returns its loss, and one that waits for the
    device."""
    import torch
    from torch import nn
    from train_torch import BETAS, CLIP, DECAY, Llama

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    model = Llama(about).to(where)
    for weight in model.parameters():
        if weight.ndim > 1:
            nn.init.normal_(weight, std=0.02)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": vectors}]
    optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=BETAS, weight_decay=0.0, fused=True)
    loss_of: Any = torch.compile(model) if compiled else model
    text = torch.randint(0, about["vocab"], (batch, about["seq"] + 1), device=where)
    parts = list(zip(text[:, :-1].split(micro_batch), text[:, 1:].split(micro_batch), strict=True))

    def step() -> float:
        total = 0.0
        for tokens, targets in parts:
            with torch.autocast(where, torch.bfloat16):
                loss = loss_of(tokens, targets) / len(parts)
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        return float(total)

    def wait() -> None:
        if where == "cuda":
            torch.cuda.synchronize()

    return step, wait
