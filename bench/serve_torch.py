"""The side of `bench/serve.py` that is transformers on PyTorch, with all cores."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import transformers
from serve_worker import Generated, Served
from transformers import AutoModelForCausalLM, StaticCache

LONGEST = 512  # tokens of a sequence


class Side:
    """A causal language model with a static cache, which is faster than a growing one."""

    version = f"transformers {transformers.__version__}, torch {torch.__version__}"

    def __init__(self, dtype: str, model: Path, folder: Path) -> None:
        torch.set_num_threads(os.cpu_count() or 1)
        transformers.logging.set_verbosity_error()
        loaded = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
        self.model = loaded.eval()

    @torch.inference_mode()
    def generate(self, prompts: list[list[int]], output: int) -> Generated:
        """See `serve_worker.Side`."""
        cache = StaticCache(config=self.model.config, max_cache_len=LONGEST)
        start = time.perf_counter()
        drawn = [self._next(torch.tensor(prompts), cache, 0)]
        first = time.perf_counter()
        for position in range(len(prompts[0]), len(prompts[0]) + output - 1):
            drawn.append(self._next(drawn[-1], cache, position))
        end = time.perf_counter()
        tokens = torch.cat(drawn, dim=1).tolist()
        return Generated(tokens, first - start, len(prompts) * (output - 1), end - first)

    def serve(self, prompts: list[list[int]], output: int, every_s: float) -> Served:
        """See `serve_worker.Side`; one request at a time."""
        start, ttft_s = time.perf_counter(), []
        for i, prompt in enumerate(prompts):
            arrival = start + i * every_s
            time.sleep(max(0.0, arrival - time.perf_counter()))
            begin = time.perf_counter()
            ttft_s.append(begin - arrival + self.generate([prompt], output).first_s)
        return Served(ttft_s, time.perf_counter() - start)

    def _next(self, tokens: torch.Tensor, cache: StaticCache, past: int) -> torch.Tensor:
        """The tokens [B,1] of the highest logits."""
        positions = torch.arange(past, past + tokens.shape[1])
        found = self.model(
            tokens,
            past_key_values=cache,
            use_cache=True,
            cache_position=positions,
            position_ids=positions[None],
            logits_to_keep=1,
        )
        return found.logits[:, -1:].argmax(-1)
