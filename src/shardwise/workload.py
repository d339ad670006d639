"""Workloads: `Train` is a training step, `Serve` the requests of a serving engine."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardwise import units, vocabulary
from shardwise.errors import BadInput, UnknownName, raise_all

# Kinds of parameters that optimizers treat differently: "matrix" for the matrices of layers,
# "embedding" for embedding, unembedding and learned positions, "vector" for all others.
PARAMETER_KINDS = ("matrix", "embedding", "vector")

# Optimizer -> number of moments that it stores for each parameter of a layer's matrix.
# Adafactor stores n + m second moments for an n x m matrix and no first moment. They count as 0:
# for 4,096 x 4,096 they are 0.05 % of one moment per parameter. arXiv 1804.04235, algorithm 4.
OPTIMIZER_MOMENTS = {"adamw": 2.0, "sgd": 0.0, "momentum": 1.0, "adafactor": 0.0, "muon": 1.0}
# (optimizer, kind) -> moments per parameter, where they differ from those of a matrix. Adafactor
# stores a second moment for each element of a vector (algorithm 5). Under Muon, AdamW updates
# embedding, unembedding and norms. arXiv 2502.16982, section 2.
_MOMENTS_BY_KIND = {
    ("adafactor", "vector"): 1.0,
    ("muon", "embedding"): 2.0,
    ("muon", "vector"): 2.0,
}
# Word of --precision -> dtypes of what training holds of each parameter, in bytes with AdamW:
# "fp32-master"  18: Megatron-LM with --bf16, whose gradients are accumulated in fp32
#                (docs/source/api-guide/dist_optimizer.md, "bf16 param, fp32 grads").
# "fp32"         16: the same table's "fp32 param, fp32 grads"; torchtitan's FSDP2 with
#                mixed_precision_param bfloat16 and mixed_precision_reduce float32; MaxText's
#                default weight_dtype float32 beside dtype bfloat16.
# "bf16"         8: torchtitan with training.dtype bfloat16, which puts parameters, gradients and
#                optimizer states in bf16, without another copy.
PRECISIONS: dict[str, dict[str, str | None]] = {
    "fp32-master": {"weights": "bf16", "gradients": "fp32", "moments": "fp32", "master": "fp32"},
    "fp32": {"weights": "fp32", "gradients": "fp32", "moments": "fp32", "master": None},
    "bf16": {"weights": "bf16", "gradients": "bf16", "moments": "bf16", "master": None},
}
# Gradients summed in int8 share one scale per group: size of the group, and bytes of the scale.
GRADIENTS_PER_SCALE = 256
SCALE_BYTES = 4.0
ERROR_FEEDBACK_DTYPE = "bf16"  # rounds to a relative 1/512 itself
MAX_MTP_LAYERS = 16  # published models have 1 to 3
LARGEST_BATCH = 2**31  # sequences or tokens; a larger number is taken for a typing mistake
MOST_USERS = 10**8  # at the same time; the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """One training step.

    Args:
        batch: sequences in the global batch.
        seq: tokens of one sequence.
        tokens: tokens of the whole run; None if only a single step is planned.
        weights, compute, gradients, moments: dtypes. Gradients of microbatches are accumulated in
            `gradients`.
        master: dtype of the master copy of the weights, which the optimizer updates; None for no
            copy. Without a copy, 16-bit weights round most updates away. `auto` means an fp32 copy
            if the weights are narrower than fp32.
        optimizer: `adamw`, `momentum`, `sgd`, `adafactor` or `muon`.
        remat: the arrays that are saved for the backward pass. `none` saves every array that it
            reads, `norms` all but the gathered inputs of blocks, `dots` only the results of
            matmuls, `mlp` only the results of matmuls in attention, `full` only the inputs of
            layers. `auto` chooses the fastest policy that fits.
        overlap: communication to overlap with compute, from `OPTIONAL_OVERLAPS`.
        reduce: dtype in which gradients are summed over chips; None for the dtype of `gradients`.
            With `int8`, only sums over replicas of matrices are in int8.
        offload: arrays to keep in host memory, from `OPTIONAL_OFFLOADS`.
        framework: the software that will run the step, from `FRAMEWORKS`, whose rates and kernels
            the expected time takes; "" for that of most published runs on TPUs, and for the mean of
            all on GPUs.
        kernels: settings of the framework's kernels, from `KERNELS`; () for the usual ones of its
            published runs (`estimate.training.usual_kernels`), ("none",) for none.
        mtp_layers: layers of multi-token prediction (MTP), see `models.token_prediction`.

    Raises:
        BadInput: a size is out of range.
        UnknownName: unknown dtype, optimizer, remat policy or other word.
    """

    batch: int
    seq: int
    tokens: float | None = None
    weights: str = "bf16"
    compute: str = "bf16"
    gradients: str = "fp32"
    moments: str = "fp32"
    master: str | None = "auto"
    optimizer: str = "adamw"
    remat: str = "auto"
    reduce: str | None = None
    overlap: tuple[str, ...] = ()
    offload: tuple[str, ...] = ()
    framework: str = ""
    kernels: tuple[str, ...] = ()
    mtp_layers: int = 0

    def __post_init__(self) -> None:
        problems = [*_bad_size("batch", self.batch), *_bad_size("sequence length", self.seq)]
        if self.tokens is not None and not 1 <= self.tokens <= 1e18:
            problems.append(f"tokens {self.tokens:g} is not between 1 and 1e18.")
        if self.mtp_layers not in range(MAX_MTP_LAYERS + 1):
            problems.append(f"mtp {self.mtp_layers} is no whole number from 0 to {MAX_MTP_LAYERS}.")
        raise_all(BadInput, problems)
        units.bytes_per_element(self.weights)
        object.__setattr__(self, "master", _master_dtype(self.weights, self.master))
        for dtype in (self.compute, self.gradients, self.moments, self.master, self.reduce):
            if dtype is not None:
                units.bytes_per_element(dtype)
        if self.optimizer not in OPTIMIZER_MOMENTS:
            raise UnknownName("optimizer", self.optimizer, OPTIMIZER_MOMENTS)
        if self.remat not in vocabulary.REMAT_WORDS:
            raise UnknownName("remat policy", self.remat, vocabulary.REMAT_WORDS)
        object.__setattr__(self, "framework", self.framework.lower())
        if self.framework and self.framework not in vocabulary.FRAMEWORKS:
            raise UnknownName("framework", self.framework, vocabulary.FRAMEWORKS)
        for option, words, legal_words in (
            ("overlap", self.overlap, vocabulary.OPTIONAL_OVERLAPS),
            ("offload", self.offload, vocabulary.OPTIONAL_OFFLOADS),
            ("setting of kernels", self.kernels, (*vocabulary.KERNELS, vocabulary.NO_KERNELS)),
        ):
            for word in words:
                if word not in legal_words:
                    raise UnknownName(option, word, legal_words)

    @property
    def tokens_per_step(self) -> int:
        return self.batch * self.seq

    @property
    def weight_bytes(self) -> float:
        """Bytes per parameter of the weights that the step computes with."""
        return units.bytes_per_element(self.weights)

    @property
    def optimizer_bytes(self) -> float:
        """Bytes of moments and master copy per parameter: 12 for Adam in fp32 with an fp32 copy.

        The number holds for matrices of layers, which are nearly all parameters of a large model.
        `adafactor` and `muon` need more for other kinds: see `optimizer_bytes_of`.
        """
        return self.optimizer_bytes_of("matrix")

    def optimizer_bytes_of(self, kind: str) -> float:
        """Bytes of moments and master copy per parameter of one kind.

        >>> [Train(batch=1, seq=1, optimizer="muon").optimizer_bytes_of(k) for k in PARAMETER_KINDS]
        [8.0, 12.0, 12.0]

        Args:
            kind: one of `PARAMETER_KINDS` (see `estimate.training.optimizer.parameter_kind`).

        Raises:
            UnknownName: `kind` is not in `PARAMETER_KINDS`.
        """
        if kind not in PARAMETER_KINDS:
            raise UnknownName("kind of parameter", kind, PARAMETER_KINDS)
        moments = OPTIMIZER_MOMENTS[self.optimizer]
        moments = _MOMENTS_BY_KIND.get((self.optimizer, kind), moments)
        n_bytes = moments * units.bytes_per_element(self.moments)
        if self.master:
            n_bytes += units.bytes_per_element(self.master)
        return n_bytes

    @property
    def sums_in_int8(self) -> bool:
        """Whether gradients of replicated matrices are summed over chips in int8, with scales."""
        return self.reduce == "int8"

    @property
    def reduce_bytes(self) -> float:
        """Bytes per gradient that a sum over chips sends, for all sums that are not in int8."""
        dtype = self.reduce or self.gradients
        if self.sums_in_int8:
            dtype = self.gradients
        return units.bytes_per_element(dtype)

    @property
    def int8_gradient_bytes(self) -> float:
        """Bytes per gradient that a sum in int8 sends, including its share of a scale."""
        return units.bytes_per_element("int8") + SCALE_BYTES / GRADIENTS_PER_SCALE

    @property
    def error_feedback_bytes(self) -> float:
        """Bytes per gradient of the stored error feedback; 0 if no sum is in int8."""
        if not self.sums_in_int8:
            return 0.0
        return units.bytes_per_element(ERROR_FEEDBACK_DTYPE)

    @property
    def activation_bytes(self) -> float:
        """Bytes per element of activations: 4 when computing in fp32, else 2 (also under fp8)."""
        return max(2.0, units.bytes_per_element(self.compute))

    @property
    def precision(self) -> str | None:
        """The word of `PRECISIONS` for the dtypes of this job; None if no word means them."""
        for word in PRECISIONS:
            dtypes = state_dtypes(word, self.compute, check=False)
            if all(getattr(self, name) == dtype for name, dtype in dtypes.items()):
                return word
        return None

    @property
    def loses_updates(self) -> bool:
        """Whether nothing holds the weights in more than 16 bits, so that most updates are lost."""
        return max(units.bytes_per_element(d) for d in (self.weights, self.master) if d) < 4

    @property
    def state_bytes(self) -> float:
        """Bytes per parameter of weights, gradients and optimizer state."""
        gradients = units.bytes_per_element(self.gradients)
        return self.weight_bytes + gradients + self.optimizer_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Serve:
    """The requests of a serving engine: it prefills a prompt, then decodes token by token.

    Args:
        context: tokens of a sequence in the KV cache; `prompt` + `output` if these are set.
        prompt, output: tokens of a prompt and of its answer; None if only `context` matters.
        batch: sequences that decode at the same time; None for the best number that fits.
        weights, kv, compute: dtypes of the weights, of the KV cache, and of matmuls.
        rate: requests that arrive per second; None for as many as the engines can serve.
        users: instead of a rate, the number of users in a closed loop: each sends the next request
            when the previous one has ended.
        ttft_s, tpot_s: upper bounds on the time to the first token (TTFT) and on the time per
            output token (TPOT), seconds.
        cached: share of a prompt's tokens that hit the prefix cache.
        drafted: draft tokens per pass in speculative decoding; 0 without it.
        acceptance: probability that a draft token is accepted.
        draft_cost: time of a pass of the draft model over the time of a pass of the model.
        engine: the serving software, one of `estimate.serving.overhead.ENGINES`.

    Raises:
        BadInput: a size or share is out of range.
        UnknownName: unknown dtype.
    """

    context: int = 0
    prompt: int | None = None
    output: int | None = None
    batch: int | None = None
    weights: str = "bf16"
    kv: str = "bf16"
    compute: str = "bf16"
    rate: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    cached: float = 0.0
    drafted: int = 0
    acceptance: float = 0.7
    draft_cost: float = 0.05
    engine: str = "unknown"
    users: int | None = None

    def __post_init__(self) -> None:
        problems: list[str] = []
        if (self.prompt is None) != (self.output is None):
            problems.append("prompt and output belong together: give both, or context alone.")
        for name in ("prompt", "output", "batch", "users"):
            if (value := getattr(self, name)) is not None:
                problems += _bad_size(name, value, MOST_USERS if name == "users" else LARGEST_BATCH)
        if self.prompt is not None and self.output is not None and not problems:
            if self.context not in (0, self.prompt + self.output):
                problems.append(
                    f"context {self.context:,} is not prompt {self.prompt:,} + output "
                    f"{self.output:,}. Leave context out."
                )
            object.__setattr__(self, "context", self.prompt + self.output)
        if not problems:
            problems += _bad_size("context", self.context)
        if self.rate is not None and self.users is not None:
            problems.append("a rate has times of arrival, users send after each answer: give one.")
        problems += [*_bad_bounds(self), *_bad_shares(self)]
        raise_all(BadInput, problems)
        for dtype in (self.weights, self.kv, self.compute):
            units.bytes_per_element(dtype)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of a prompt; `context` if `prompt` is not set."""
        if self.prompt is None:
            return self.context
        return self.prompt

    @property
    def mean_context(self) -> float:
        """Mean number of keys that a decoded token attends to: prompt and half of the answer."""
        return self.context - (self.output or 0) / 2

    @property
    def fresh_tokens(self) -> float:
        """Tokens of a prompt that miss the prefix cache and are computed; at least one."""
        return max(1.0, self.prompt_tokens * (1 - self.cached))

    @property
    def states_load(self) -> bool:
        """Whether the job says how many requests there are: by a rate, or by users."""
        return bool(self.rate or self.users)

    def without_load(self) -> Serve:
        """The job without a rate, users and bounds on latency."""
        return replace(self, rate=None, users=None, ttft_s=None, tpot_s=None)


def _bad_bounds(job: Serve) -> list[str]:
    problems = []
    for name, value in (("rate", job.rate), ("ttft", job.ttft_s), ("tpot", job.tpot_s)):
        if value is not None and not value > 0:
            problems.append(f"{name} {value:g} is not above 0.")
    return problems


def _bad_shares(job: Serve) -> list[str]:
    problems = []
    for name in ("cached", "acceptance"):
        if not 0 <= (share := getattr(job, name)) <= 1:
            problems.append(f"{name} {share:g} is not a share between 0 and 1.")
    if not 0 <= job.drafted <= 64:
        problems.append(f"drafted {job.drafted} is not between 0 and 64 tokens.")
    if not 0 <= job.draft_cost <= 1:
        problems.append(f"draft_cost {job.draft_cost:g} is not a share between 0 and 1.")
    return problems


def _bad_size(name: str, value: int, most: int = LARGEST_BATCH) -> list[str]:
    if not isinstance(value, int) or isinstance(value, bool):
        return [f"{name} {value!r} is not a whole number."]
    if not 1 <= value <= most:
        return [f"{name} {value:,} is not between 1 and {most:,}."]
    return []


def _master_dtype(weights: str, master: str | None) -> str | None:
    """The dtype of the master copy; None if the weights already have that dtype."""
    if master == "auto" and units.bytes_per_element(weights) < 4:
        return "fp32"
    if master in ("auto", weights):
        return None
    return master


def cache_dtype_for(weights: str, *, on_cpu: bool = False) -> str:
    """The default dtype of a KV cache beside weights: the same, but no format of weights alone.

    On CPUs it has at least 16 bits: they do not multiply narrower numbers faster.

    >>> cache_dtype_for("fp8"), cache_dtype_for("mxfp4"), cache_dtype_for("int8", on_cpu=True)
    ('fp8', 'bf16', 'bf16')
    """
    if on_cpu:
        return "fp32" if weights == "fp32" else "bf16"
    return "bf16" if weights == "mxfp4" else weights


def weight_dtype_for(dtype: str) -> str:
    """The default dtype of weights for matmuls in `dtype`: the same, but at least 16 bits.

    >>> weight_dtype_for("fp8"), weight_dtype_for("fp32")
    ('bf16', 'fp32')
    """
    if units.bytes_per_element(dtype) >= 2:
        return dtype
    return "bf16"


def state_dtypes(precision: str, compute: str, *, check: bool = True) -> dict[str, str | None]:
    """The dtypes of `Train` that a word of `PRECISIONS` means; an empty word is the default.

    The default is "fp32-master", or "fp32" for matmuls in fp32. 16 bits are fp16 if matmuls are.

    >>> state_dtypes("bf16", "bf16")["moments"], state_dtypes("", "fp32")["weights"]
    ('bf16', 'fp32')

    Args:
        precision: the word.
        compute: dtype of the matmuls.
        check: whether to refuse a word that does not go together with `compute`.

    Raises:
        UnknownName: `precision` is not a word.
        BadInput: the matmuls are in fp32, and the weights would be narrower.
    """
    is_wide = units.bytes_per_element(compute) >= 4
    word = precision or ("fp32" if is_wide else "fp32-master")
    if word not in PRECISIONS:
        raise UnknownName("precision", word, PRECISIONS)
    if check and is_wide and word != "fp32":
        raise BadInput(
            f"precision {word} holds weights in 16 bits, and matmuls in {compute} need 32. "
            f"Compute in bf16 (--dtype bf16), or hold fp32 (--precision fp32)."
        )
    half = weight_dtype_for(compute)
    return {
        name: half if dtype == "bf16" and not is_wide else dtype
        for name, dtype in PRECISIONS[word].items()
    }
