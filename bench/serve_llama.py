"""The side of `bench/serve.py` that is llama.cpp, with all cores, through llama-cpp-python.

The model is written as a GGUF file without a vocabulary. The side imports nothing of shardwise.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import gguf
import llama_cpp as llama
import numpy as np
from serve_worker import Generated, Served

LONGEST, MOST = 512, 16  # tokens of a sequence, and sequences
TYPES = {
    "F32": gguf.GGMLQuantizationType.F32,
    "F16": gguf.GGMLQuantizationType.F16,
    "BF16": gguf.GGMLQuantizationType.BF16,
    "Q8_0": gguf.GGMLQuantizationType.Q8_0,
}
NAMES = {  # of a layer
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
Numbers = np.ndarray[Any, Any]


class Side:
    """A model and a context for all sequences."""

    version = f"llama-cpp-python {llama.__version__}"

    def __init__(self, dtype: str, model: Path, folder: Path) -> None:
        path = folder / f"{dtype}.gguf"
        write(model, path, TYPES[dtype])
        self.vocab = config_of(model)["vocab_size"]
        llama.llama_backend_init()
        parameters = llama.llama_model_default_params()
        self.model = llama.llama_model_load_from_file(str(path).encode(), parameters)
        settings = llama.llama_context_default_params()
        settings.n_ctx = LONGEST * MOST
        settings.n_batch = LONGEST * MOST
        settings.n_ubatch = LONGEST
        settings.n_seq_max = MOST
        settings.n_threads = settings.n_threads_batch = os.cpu_count() or 1
        self.context = llama.llama_init_from_model(self.model, settings)

    def generate(self, prompts: list[list[int]], output: int) -> Generated:
        """See `serve_worker.Side`."""
        self._clear()
        start = time.perf_counter()
        drawn = [self._next({i: (prompt, 0) for i, prompt in enumerate(prompts)})]
        first = time.perf_counter()
        for past in range(len(prompts[0]), len(prompts[0]) + output - 1):
            drawn.append(self._next({i: ([token], past) for i, token in drawn[-1].items()}))
        end = time.perf_counter()
        tokens = [[step[i] for step in drawn] for i in range(len(prompts))]
        return Generated(tokens, first - start, len(prompts) * (output - 1), end - first)

    def serve(self, prompts: list[list[int]], output: int, every_s: float) -> Served:
        """See `serve_worker.Side`; a step runs the new prompts and all sequences in one batch."""
        self._clear()
        start = time.perf_counter()
        ttft_s: list[float] = []
        outputs: dict[int, list[int]] = {}
        n_arrived = n_ended = 0
        while n_ended < len(prompts):
            batch = {
                i: ([tokens[-1]], len(prompts[i]) + len(tokens) - 1)
                for i, tokens in outputs.items()
                if len(tokens) < output
            }
            now = time.perf_counter() - start
            while n_arrived < len(prompts) and n_arrived * every_s <= now:
                batch[n_arrived] = (prompts[n_arrived], 0)
                n_arrived += 1
            if not batch:
                time.sleep(max(0.0, n_arrived * every_s - now))
                continue
            for i, token in self._next(batch).items():
                outputs.setdefault(i, []).append(token)
                if len(outputs[i]) == 1:
                    ttft_s.append(time.perf_counter() - start - i * every_s)
                n_ended += len(outputs[i]) == output
        return Served(ttft_s, time.perf_counter() - start)

    def _clear(self) -> None:
        llama.llama_memory_clear(llama.llama_get_memory(self.context), True)

    def _next(self, sequences: dict[int, tuple[list[int], int]]) -> dict[int, int]:
        """The tokens of the highest logits of sequences, in one batch.

        Args:
            sequences: id -> (its new tokens, number of its tokens before them).
        """
        batch = llama.llama_batch_init(sum(len(new) for new, _ in sequences.values()), 0, 1)
        i, last = 0, {}
        for sequence, (new, past) in sequences.items():
            for offset, token in enumerate(new):
                batch.token[i] = token
                batch.pos[i] = past + offset
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = sequence
                batch.logits[i] = offset == len(new) - 1
                i += 1
            last[sequence] = i - 1
        batch.n_tokens = i
        failed = llama.llama_decode(self.context, batch)
        llama.llama_batch_free(batch)
        if failed:
            raise RuntimeError(f"llama_decode returns {failed}")
        return {sequence: self._highest(i) for sequence, i in last.items()}

    def _highest(self, i: int) -> int:
        logits = llama.llama_get_logits_ith(self.context, i)
        return int(np.ctypeslib.as_array(logits, (self.vocab,)).argmax())


def config_of(model: Path) -> dict[str, Any]:
    """The configuration of a Llama."""
    config: dict[str, Any] = json.loads((model / "config.json").read_text())
    if config["model_type"] != "llama":
        raise SystemExit(f"{config['model_type']}: only a Llama is compared with llama.cpp")
    return config


def write(model: Path, path: Path, dtype: gguf.GGMLQuantizationType) -> None:
    """Write the model as a GGUF file; vectors stay in fp32."""
    config = config_of(model)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config.get("rope_theta", 10_000.0))
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
    for name, values in tensors(model):
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
        for part, key in heads.items():
            if part in name:
                values = pairs_of_halves(values, config[key])
        kind = dtype if values.ndim > 1 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(gguf_name(name), gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_name(name: str) -> str:
    """What llama.cpp calls a published tensor."""
    stem = name.removesuffix(".weight")
    if stem in OUTER:
        return f"{OUTER[stem]}.weight"
    _, _, layer, inner = stem.split(".", 3)
    return f"blk.{layer}.{NAMES[inner]}.weight"


def pairs_of_halves(values: Numbers, n_heads: int) -> Numbers:
    """Rows of queries or keys, of which llama.cpp turns neighbours and published models halves."""
    split = values.reshape(n_heads, 2, -1, values.shape[1])
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(values.shape)


def tensors(model: Path) -> list[tuple[str, Numbers]]:
    """Names and values, in fp32, of all published tensors."""
    found = []
    for path in sorted(model.glob("*.safetensors")):
        data = np.memmap(path, np.uint8, "r")
        size = int(data[:8].view(np.uint64)[0])
        header = json.loads(bytes(data[8 : 8 + size]))
        header.pop("__metadata__", None)
        for name, about in header.items():
            begin, end = (8 + size + offset for offset in about["data_offsets"])
            found.append((name, widened(data[begin:end], about["dtype"]).reshape(about["shape"])))
    return found


def widened(data: Numbers, dtype: str) -> Numbers:
    """Bytes as fp32 numbers."""
    if dtype == "BF16":
        wide: Numbers = (np.array(data).view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        return wide
    return np.array(data).view({"F32": np.float32, "F16": np.float16}[dtype]).astype(np.float32)
