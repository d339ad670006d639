"""Formulas of the Ultra-Scale Playbook (nanotron, Hugging Face, 2025-02) and its cheat sheet.

Letters are the playbook's: h model width, n heads, s sequence length, b sequences of a microbatch,
L layers, P parameters, N data-parallel replicas, t tensor-parallel degree, p pipeline stages, m
microbatches, v stages per GPU of an interleaved pipeline, C FLOP/s of a GPU, W bytes/s of its
network, e bytes per element; gbs global batch in sequences, mbs microbatch, dp, tp and pp degrees.
Activations are bf16.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.arrays import Num
from shardwise.errors import UnknownName
from shardwise.workload import Train


def gpt_parameters(d_model: int, vocab: int, n_layers: int) -> int:
    """Parameters of a GPT with biases and tied embeddings: h vocab + L (12 h^2 + 13 h) + 2 h.

    >>> gpt_parameters(4096, 32000, 32)
    6575235072
    """
    return d_model * vocab + n_layers * (12 * d_model**2 + 13 * d_model) + 2 * d_model


def state_bytes(params: Num, *, fp32_gradients: bool = False) -> Num:
    """Bytes of weights, gradients, master copy and Adam moments: 16 P.

    Weights and gradients are bf16, everything else fp32, as in `Train.state_bytes`. An fp32 copy of
    the gradients makes it 20 P.
    """
    job = Train(batch=1, seq=1, gradients="bf16", master="fp32")
    gradient_copy_bytes = 4.0 if fp32_gradients else 0.0
    return params * (job.state_bytes + gradient_copy_bytes)


def activation_bytes(
    n_layers: Num,
    seq: Num,
    sequences: Num,
    d_model: Num,
    n_heads: Num = 0,
    *,
    recompute: str = "none",
    tensor: Num = 1,
    sequence_parallel: bool = False,
) -> Num:
    """Bytes of saved activations of GPT layers: L s b h (10 + 24/t + 5 n s / (h t)).

    Dropout masks are included.

    Args:
        n_layers, seq, sequences, d_model, n_heads: L, s, b, h, n.
        recompute: "none"; "selective" recomputes attention scores, the last term; "full" saves only
            the inputs of the layers, 2 L s b h.
        tensor: t.
        sequence_parallel: Whether all activations are sharded t ways, not only those inside
            attention and MLP.

    Raises:
        UnknownName: The recompute policy is unknown.
    """
    per_token = n_layers * seq * sequences * d_model
    if recompute == "full":
        return 2 * per_token / (tensor if sequence_parallel else 1)
    if recompute not in ("none", "selective"):
        raise UnknownName("recompute policy", recompute, ("none", "selective", "full"))
    scores = 5 * n_heads * seq / d_model if recompute == "none" else 0
    outside = 10 / tensor if sequence_parallel else 10
    return per_token * (outside + (24 + scores) / tensor)


def selective_saving(n_heads: Num, seq: Num, d_model: Num) -> Num:
    """Share of activation bytes that selective recompute saves: (5 n s / h) / (34 + 5 n s / h)."""
    scores = 5 * n_heads * seq / d_model
    return scores / (34 + scores)


def zero_bytes(params: Num, replicas: Num, stage: int, k: Num = 12) -> Num:
    """Bytes of training state per GPU under ZeRO.

    Weights take 2P bytes, gradients 2P and the optimizer kP; what the stage shards is divided by N.

    Args:
        params: P.
        replicas: N.
        stage: 0 shards nothing, 1 the optimizer, 2 gradients too, 3 weights too.
        k: Optimizer bytes per parameter; 12 for Adam with an fp32 master copy.

    Raises:
        UnknownName: The stage is not 0, 1, 2 or 3.
    """
    if stage not in (0, 1, 2, 3):
        raise UnknownName("ZeRO stage", str(stage), ("0", "1", "2", "3"))
    total: Num = 0
    for bytes_per_parameter, sharded_from_stage in ((2, 3), (2, 2), (k, 1)):
        n_shards = replicas if stage >= sharded_from_stage else 1
        total = total + params * bytes_per_parameter / n_shards
    return total


def zero_traffic(stage: int) -> int:
    """Elements that collectives move per parameter and step: 3 under ZeRO-3, otherwise 2.

    ZeRO-3 gathers the weights twice, for the forward and the backward pass, and reduce-scatters the
    gradients. The other stages reduce-scatter gradients and gather the result once.
    """
    return 3 if stage == 3 else 2


def accumulation_steps(samples: Num, microbatch: Num, replicas: Num) -> Num:
    """gbs / (mbs dp): microbatches that each replica accumulates per step."""
    return samples / (microbatch * replicas)


def bubble(stages: Num, microbatches: Num = 1, interleaved: Num = 1) -> Num:
    """Idle time of a pipeline divided by its compute time: (p - 1) / (v m), for GPipe and 1F1B.

    >>> bubble(8, 32)
    0.21875
    """
    return (stages - 1) / (interleaved * microbatches)


def data_parallel_overlap(
    tokens: Num, replicas: Num, flops_per_s: Num, bytes_per_s: Num, element_bytes: Num = 2.0
) -> Num:
    """Seconds of the gradient AllReduce divided by seconds of the backward pass.

    e / (2 tokens) (N-1)/N C/W, with the tokens of one GPU. Up to a ratio of 1 the AllReduce can be
    hidden. The weight gathers of ZeRO-3 have the same ratio to the forward pass. The playbook
    itself divides elements by bytes per second: its numbers need `element_bytes` 1.
    """
    return element_bytes / (2 * tokens) * (replicas - 1) / replicas * flops_per_s / bytes_per_s


def tensor_parallel_overlap(
    tensor: Num, d_model: Num, flops_per_s: Num, bytes_per_s: Num, element_bytes: Num = 2.0
) -> Num:
    """Seconds of communication divided by seconds of compute in a matmul under tensor parallelism.

    e (t-1)/(2h) C/W.
    """
    return element_bytes * (tensor - 1) / (2 * d_model) * flops_per_s / bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One row of the playbook's benchmark: the parallel layout and the batch."""

    data: int
    tensor: int
    pipe: int
    accumulation: int
    microbatch: int
    zero: int = 0

    @property
    def n_gpus(self) -> int:
        """dp tp pp: all GPUs."""
        return self.data * self.tensor * self.pipe

    @property
    def samples(self) -> int:
        """gbs = dp mbs accumulation: sequences of the global batch."""
        return self.data * self.microbatch * self.accumulation


def recommended_technique(
    params: float = 0.0, *, n_gpus: int = 8, long_sequences: bool = False, moe: bool = False
) -> str:
    """The technique that the playbook's cheat sheet recommends first.

    Args:
        params: Parameters of the model; it matters below 512 GPUs only.
        n_gpus: Available GPUs.
        long_sequences: Whether sequences are too long for one GPU.
        moe: Whether the model is a mixture of experts.
    """
    if long_sequences:
        return "add CP"
    if moe:
        return "add EP"
    if n_gpus >= 1024:
        return "TP=8 + DP (ZeRO-2) + PP"
    if n_gpus >= 512:
        return "mix DP with TP or PP"
    if params < 10e9:
        return "one technique (TP or ZeRO-3/DP) on 8 GPUs"
    return "TP=8 + PP | TP=8 + ZeRO-3 | ZeRO-3 only"
