"""What a model computes beyond its widths: norms, positions, activations, routing.

No count depends on these; a runtime needs them to give the numbers of the published model.
Defaults are the commonest case, a Llama without scaled positions.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.errors import BadShape

NORM_KINDS = ("rms", "layer")

SCORES = ("softmax", "sigmoid")

# What each name of a config.json computes. Names that are not here are kept as they are.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """Every norm of width D, and of queries and keys where the family has them.

    Args:
        kind: "rms" divides by the root of the mean square, "layer" takes the mean away before.
        eps: Added to the mean square or variance under the root.
        plus_one: The scale is stored as its difference from 1.
    """

    kind: str = "rms"
    eps: float = 1e-6
    plus_one: bool = False

    def __post_init__(self) -> None:
        if self.kind not in NORM_KINDS:
            raise BadShape(f'norm "{self.kind}" is none of {", ".join(NORM_KINDS)}.')


PLAIN_NORM = Norm()


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How rotary frequencies are changed for sequences longer than those first trained on.

    Args:
        kind: "linear", "dynamic", "llama3", "yarn" or "longrope", as in a config.json.
        factor: How much longer sequences become.
        original: Positions of the first training.
        low_freq, high_freq: Bounds between which "llama3" blends, in turns over `original`.
        beta_fast, beta_slow: Bounds between which "yarn" blends, in turns over `original`.
        truncate: "yarn" rounds its bounds outwards to whole dims.
        attention_factor: What cosines and sines are multiplied with.
        short, long: Divisors of each frequency under "longrope", up to `original` and beyond.
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
    """Rotary positions: pairs of dims are turned by position x theta^(-2i/dims).

    Source: Su et al., arXiv 2104.09864, section 3.2.2.

    Args:
        theta: Base of the frequencies.
        dims: Dims of a head that are turned, the first of it; None for all (d_rope under MLA).
        interleaved: A pair is dims 2i and 2i + 1; otherwise i and i + dims/2.
        scaling: What is done for longer sequences.
    """

    theta: float = 10_000.0
    dims: int | None = None
    interleaved: bool = False
    scaling: RopeScaling | None = None


PLAIN_ROPE = Rope()


@dataclass(frozen=True, slots=True, kw_only=True)
class Temperature:
    """Queries at position t (from 0) are multiplied with 1 + scale ln(1 + floor((t + 1) / floor)).

    Source: Llama 4, layers without rotary positions; after arXiv 2501.19399.
    """

    floor: float
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClampedGlu:
    """A gate of gpt-oss: g sigmoid(alpha g) (u + 1), g at most `limit`, u within +-`limit`."""

    alpha: float
    limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """From router logits to the k experts of a token and their weights.

    Softmax over all experts and then normalised over the chosen ones is the same as softmax over
    the chosen ones alone (Mixtral, gpt-oss).

    Args:
        score: "softmax" over all experts, or "sigmoid" of each.
        normalized: Weights of the chosen experts are divided by their sum.
        correction: A bias per expert, not trained by gradients, is added to choose but not to
            weigh (DeepSeek-V3, arXiv 2412.19437, section 2.1.2).
        n_groups: Experts stand in so many groups of equal size.
        top_groups: Groups that experts are chosen from.
        group_best: A group is worth the sum of so many of its best scores.
        scale: The weights are multiplied with this.
        on_input: Weights multiply what an expert reads, not what it writes (Llama 4).
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
            raise BadShape(f'score "{self.score}" is none of {", ".join(SCORES)}.')


PLAIN_ROUTING = Routing()
