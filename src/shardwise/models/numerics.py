"""The arithmetic of a model besides its matmuls: norms, positions, activations, routing.

Parameters and FLOPs do not depend on it; the runtime needs it to reproduce a published model. The
defaults are those of a Llama without scaled positions.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.errors import BadShape

NORM_KINDS = ("rms", "layer")

SCORES = ("softmax", "sigmoid")

# Name of an activation function in a config.json -> its name in this package.
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "quick_gelu": "gelu_quick",
    "relu": "relu",
    "relu2": "relu2",
}

# Kinds of scaled rotary frequencies whose formulas are known, as in a config.json.
ROPE_SCALINGS = ("linear", "dynamic", "llama3", "yarn", "longrope")


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """The norms of a model: those of width D, and those of queries and keys if it has them.

    Args:
        kind: "rms" divides by the root mean square, "layer" subtracts the mean first.
        eps: Epsilon that is added to the mean square or variance under the root.
        plus_one: Whether checkpoints store scale - 1 instead of the scale.
    """

    kind: str = "rms"
    eps: float = 1e-6
    plus_one: bool = False

    def __post_init__(self) -> None:
        if self.kind not in NORM_KINDS:
            raise BadShape(f'norm "{self.kind}" is not one of {", ".join(NORM_KINDS)}.')


PLAIN_NORM = Norm()


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Scaling of rotary frequencies for sequences longer than those of the original training.

    Args:
        kind: one of `ROPE_SCALINGS`, or another word of a config.json.
        factor: Ratio of the new to the original sequence length.
        original: Sequence length of the original training, in tokens.
        low_freq, high_freq: Frequencies between which "llama3" blends scaled and unscaled ones, in
            rotations over `original` tokens.
        beta_fast, beta_slow: The same for "yarn".
        truncate: Whether "yarn" rounds these bounds outwards to whole dims.
        attention_factor: Factor of cosines and sines.
        short, long: Divisors of each frequency under "longrope", for sequences up to `original`
            tokens and for longer ones.
    """

    kind: str
    factor: float = 1.0
    original: int | None = None
    low_freq: float = 1.0
    high_freq: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    short: tuple[float, ...] = ()
    long: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary positions: pairs of dims are rotated by position x theta^(-2i/dims).

    Source: Su et al., arXiv 2104.09864, section 3.2.2.

    Args:
        theta: Base of the frequencies.
        dims: Number of leading dims of a head that are rotated; None for all (d_rope under MLA).
        interleaved: Whether a pair is dims 2i and 2i + 1; otherwise it is i and i + dims/2.
        scaling: Scaling for longer sequences; None without.
    """

    theta: float = 10_000.0
    dims: int | None = None
    interleaved: bool = False
    scaling: RopeScaling | None = None


PLAIN_ROPE = Rope()


@dataclass(frozen=True, slots=True, kw_only=True)
class Temperature:
    """Factor of queries that grows with their position, in layers without rotary positions.

    It is 1 + scale ln(1 + floor((t + 1) / `floor`)) at position t, counted from 0. Source: Llama 4,
    after arXiv 2501.19399.
    """

    floor: float
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClampedGlu:
    """Gated activation of gpt-oss: g sigmoid(alpha g) (u + 1) of gate g and up projection u.

    Before that, g is clamped to at most `limit` and u to [-limit, limit].
    """

    alpha: float
    limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How a token's k experts and their weights are chosen from the router's logits.

    Args:
        score: "softmax" over all experts, or "sigmoid" of each logit.
        normalized: Whether the weights of the chosen experts are divided by their sum. With softmax
            this equals a softmax over the chosen experts alone (Mixtral, gpt-oss).
        correction: Whether a bias per expert, not trained by gradients, is added to the scores to
            choose experts, but not to their weights (DeepSeek-V3, arXiv 2412.19437, section 2.1.2).
        n_groups: Number of groups of equal size into which experts are divided.
        top_groups: Number of groups from which a token's experts are chosen.
        group_best: Number of best scores in a group whose sum is the score of the group.
        scale: Factor of the weights.
        on_input: Whether weights multiply an expert's input instead of its output (Llama 4).
        aux_loss: Coefficient of the load-balancing loss in training.
    """

    score: str = "softmax"
    normalized: bool = True
    correction: bool = False
    n_groups: int = 1
    top_groups: int = 1
    group_best: int = 1
    scale: float = 1.0
    on_input: bool = False
    aux_loss: float = 0.0

    def __post_init__(self) -> None:
        if self.score not in SCORES:
            raise BadShape(f'score "{self.score}" is not one of {", ".join(SCORES)}.')


PLAIN_ROUTING = Routing()
