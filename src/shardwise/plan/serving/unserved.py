"""What `serve` does not run yet of engines that can be planned.

A search proposes only layouts that it runs (`search.serving.runtime_limits`), unless the user fixed
sizes of the mesh. A plan beyond them says so.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardwise.models import stack
from shardwise.search.serving.candidate import Server
from shardwise.search.serving.runtime_limits import kv_heads

NOT_YET = "the planner supports it, the runtime does not yet"


def unserved(server: Server) -> list[str]:
    """List what no program of the runtime supports of engines, as messages."""
    model = server.config
    names = []
    if any(group.layer.attention is None for group in model.groups):
        names.append(f"layers of {model.name} without attention")
    problems = [f"{name}: {NOT_YET}." for name in [*names, *unserved_layout(server)]]
    per_chip = server.system.chip.n_devices or 1
    if per_chip > 1:
        problems.append(
            f"{server.system.chip.name} has {per_chip} devices a chip; the runtime supports 1."
        )
    return problems


def unserved_layout(server: Server) -> list[str]:
    """Name what the runtime does not support in the layout of engines."""
    sizes = server.layout.sizes
    names = [*_uneven_widths(server), *_pipeline(server)]
    if sizes["context"] > 1 and server.layout.weights == "gathered":
        names.append(f'context {sizes["context"]} with weights "gathered"')
    names += _experts(server)
    head_counts = sorted({kv_heads(a) for a, _ in server.config.attentions})
    tensor = sizes["tensor"]
    is_indivisible = any(n % tensor and tensor % n for n in head_counts)
    if is_indivisible or (len(head_counts) > 1 and tensor > head_counts[0]):
        names.append(f"n_kv_heads {', '.join(map(str, head_counts))} over tensor {tensor}")
    return names


def _experts(server: Server) -> Iterator[str]:
    """Why the chips of `tensor` cannot share the experts as the layout says."""
    layout = server.layout
    tensor, expert_tensor = layout.sizes["tensor"], layout.expert_tensor
    if tensor == 1 or expert_tensor in (None, tensor):
        return
    name = f"expert_tensor {expert_tensor} with tensor {tensor}"
    if expert_tensor != 1:
        yield name
        return
    if layout.weights == "2d":
        yield f'{name} and weights "2d"'
    n_chips = layout.sizes["expert"] * tensor
    for n in sorted({moe.n_experts for moe, _ in server.config.moes}):
        if n % n_chips:
            yield f"{n} experts over {n_chips} chips"


def _pipeline(server: Server) -> Iterator[str]:
    """Why the layers cannot be divided over the stages of a pipeline."""
    pipe, context = server.layout.sizes["pipe"], server.layout.sizes["context"]
    n_runs = len(stack(server.config))
    if pipe > 1 and n_runs > 1:
        yield f"pipe {pipe} of a model with {n_runs} runs of different layers"
    if pipe > 1 and context > 1:
        yield f"context {context} with pipe {pipe}"


def _uneven_widths(server: Server) -> list[str]:
    """The widths of weights and of the residual that the layout does not divide."""
    sizes = server.layout.sizes
    fsdp, tensor = sizes["fsdp"], sizes["tensor"]
    widths = [("d_model", server.config.d_model)]
    for a, _ in server.config.attentions:
        if a.mla:
            widths += [("q_lora_rank", a.mla.q_lora_rank or 0)]
            widths += [("kv_lora_rank", a.mla.kv_lora_rank)]
    names = [
        f"{name} {width:,} over fsdp {fsdp}"
        for name, width in dict.fromkeys(widths)
        if width % fsdp
    ]
    d_model = server.config.d_model
    if server.layout.weights == "2d" and d_model % (fsdp * tensor) and not names:
        names.append(f"d_model {d_model:,} over fsdp {fsdp} x tensor {tensor}")
    return names
