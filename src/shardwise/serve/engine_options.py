"""What is chosen about an engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardwise.estimate.serving.overhead import OURS
from shardwise.serve.model_files import ServedModel

if TYPE_CHECKING:
    from shardwise.serve.remote_prefill import PrefillServer

CONTEXT = 2048  # longest sequence, if neither the model nor an option says less
SEQUENCES = 16  # that run at the same time, unless an option says otherwise
PASS_TOKENS = OURS.max_tokens  # of a pass, in each pool


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What is chosen about an engine; None for what the plan or the machine says.

    Args:
        context: the most tokens of prompt and output together.
        sequences: the most sequences that run at the same time.
        pass_tokens: the most tokens of a pass.
        weights, kv: dtypes of the weights and of the cache.
        host_bytes: host memory of this process for blocks of the prefix cache.
        drafted: tokens drafted for each sequence in a pass; 0 for no drafts.
        draft_model: a small model that drafts them; None to draft from a sequence's own text.
        prefill: whether the engine computes prompts for other servers.
        prefill_from: the server that computes prompts for this one; None to compute them here.
    """

    context: int | None = None
    sequences: int | None = None
    pass_tokens: int | None = None
    weights: str | None = None
    kv: str | None = None
    host_bytes: float = 0
    drafted: int = 0
    draft_model: ServedModel | None = None
    prefill: bool = False
    prefill_from: PrefillServer | None = None
