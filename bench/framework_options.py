"""The options that frameworks have, read from their sources: names and types, into JSON.

    python bench/framework_options.py SOURCES

SOURCES is a folder with unpacked wheels or checkouts, named as in `READERS`. The files are those
that exported files are held against, and that name misspelled options of imported ones;
TensorRT-LLM's is kept by hand, since its package brings no sources. Nothing is imported: the
classes are read as text.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

OUT = Path(__file__).parents[1] / "src/shardwise/frameworks/options"
AS_OF = "2026-11"
Options = dict[str, str]


def fields(path: Path, *names: str, prefix: str = "") -> Options:
    """Annotated fields of the classes `names` of a file, of all classes without names."""
    found: Options = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef) and (not names or node.name in names):
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    for name in (item.target.id, *_aliases(item.value)):
                        found[prefix + name] = _type(item.annotation)
    return dict(sorted(found.items()))


def _aliases(value: ast.expr | None) -> list[str]:
    """Other names of a field, as `Field(..., alias="stage3_max_live_parameters")` gives them."""
    if not isinstance(value, ast.Call):
        return []
    return [str(ast.literal_eval(word.value)) for word in value.keywords if word.arg == "alias"]


def arguments(path: Path, name: str, prefix: str) -> Options:
    """Annotated parameters of the constructor of a class."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef) and node.name == name:
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                    rest = [arg for arg in item.args.args if arg.arg != "self"]
                    return {
                        prefix + arg.arg: _type(arg.annotation) if arg.annotation else "Any"
                        for arg in rest
                    }
    raise SystemExit(f"{path} has no class {name}")


def _type(annotation: ast.expr) -> str:
    text = ast.unparse(annotation)
    if text.startswith(("A[", "Annotated[")):
        text = re.split(r"[\[,]", text, maxsplit=2)[1]
    return text if len(text) < 60 else text[:57] + "..."


def flags(paths: Iterable[Path]) -> Options:
    """Flags in the calls of `add_argument`, without types."""
    found = set()
    for path in paths:
        found |= set(re.findall(r"""["'](--[a-z0-9][\w-]*)["']""", path.read_text()))
    return dict.fromkeys(sorted(found), "flag")


def maxtext(root: Path) -> Options:
    return fields(root / "types.py")


def torchtitan(root: Path) -> Options:
    config = root / "torchtitan/config/configs.py"
    return {
        **fields(config, "TrainingConfig", prefix="training."),
        **fields(config, "ParallelismConfig", prefix="parallelism."),
        **fields(config, "CompileConfig", prefix="compile."),
    }


def _core(root: Path) -> Options:
    core = root.parent / "megatron_core/megatron/core"
    return {
        **fields(core / "model_parallel_config.py", "ModelParallelConfig"),
        **fields(core / "transformer/transformer_config.py", "TransformerConfig"),
    }


def _ddp(root: Path, prefix: str = "") -> Options:
    core = root.parent / "megatron_core/megatron/core"
    file = core / "distributed/distributed_data_parallel_config.py"
    return fields(file, "DistributedDataParallelConfig", prefix=prefix)


def megatron(root: Path) -> Options:
    """Flags of arguments.py, and those that it makes of the fields of configuration classes."""
    made = [*_core(root), *_ddp(root), *fields(root / "training_config.py")]
    texts = {f"--{name.replace('_', '-')}": "field" for name in made}
    core = root.parent / "megatron_core/megatron/core"  # some of its fields name their flags
    configs = ("transformer/transformer_config.py", "model_parallel_config.py")
    return {**texts, **flags([root / "arguments.py", *(core / name for name in configs)])}


def megatron_bridge(root: Path) -> Options:
    config = root / "megatron/bridge/training/config.py"
    core = root.parent / "megatron_core/megatron/core"
    return {
        **{f"model.{name}": kind for name, kind in _core(root).items()},
        **fields(core / "models/gpt/gpt_model.py", "none"),
        "model.seq_length": "int",  # of GPTModelProvider
        **fields(config, "TrainingConfig", prefix="train."),
        **fields(config, "CheckpointConfig", prefix="checkpoint."),
        **_ddp(root, "ddp."),
        **fields(
            core / "datasets/blended_megatron_dataset_config.py",
            "BlendedMegatronDatasetConfig",
            prefix="dataset.",
        ),
        "mixed_precision": "MixedPrecisionConfig | str",
    }


def nemo(root: Path) -> Options:
    strategy = root / "nemo/lightning/pytorch/strategies/megatron_strategy.py"
    data = root / "nemo/collections/llm/gpt/data/pre_training.py"
    plugins = root / "nemo/lightning/pytorch/plugins/mixed_precision.py"
    return {
        "trainer.num_nodes": "int",  # of Lightning
        "trainer.devices": "int",
        **arguments(strategy, "MegatronStrategy", "trainer.strategy."),
        **_ddp(root, "trainer.strategy.ddp."),
        **arguments(data, "PreTrainingDataModule", "data."),
        **arguments(plugins, "MegatronMixedPrecision", "trainer.plugins."),
        **{f"model.config.{name}": kind for name, kind in _core(root).items()},
    }


def deepspeed(root: Path) -> Options:
    runtime = root / "deepspeed/runtime"
    constants = (runtime / "constants.py").read_text() + (runtime / "config.py").read_text()
    top = set(re.findall(r"""^[A-Z_]+ *= *["']([a-z][a-z_0-9]+)["']""", constants, re.M))
    top |= set(re.findall(r'(?:get\(|in |config\[)"([a-z_]+)"', constants))
    checkpointing = (runtime / "activation_checkpointing/config.py").read_text()
    return {
        **dict.fromkeys(sorted(top), "key"),
        **fields(runtime / "zero/config.py", "DeepSpeedZeroConfig", prefix="zero_optimization."),
        **fields(
            runtime / "tensor_parallel/config.py", "TPTrainingConfig", prefix="tensor_parallel."
        ),
        "data_types.grad_accum_dtype": "key",
        **{
            f"expert_parallel.{name}": "key"
            for name in re.findall(
                r'param_dict\.get\("(\w+)"',
                (root / "deepspeed/module_inject/auto_ep_config.py").read_text(),
            )
        },
        **{
            f"activation_checkpointing.{name}": "bool"
            for name in re.findall(r"^ACT_CHKPT_[A-Z_]+ = '(\w+)'", checkpointing, re.M)
        },
        **fields(runtime / "precision_config.py", "DeepSpeedFP16Config", prefix="fp16."),
        **fields(runtime / "precision_config.py", "DeepSpeedBF16Config", prefix="bf16."),
        "pipeline.stages": "int | str",
        "optimizer.type": "str",
    }


def vllm(root: Path) -> Options:
    found = flags([root / "vllm/engine/arg_utils.py"])
    return {name.removeprefix("--"): kind for name, kind in found.items()}


def sglang(root: Path) -> Options:
    found: Options = {}
    for path in sorted((root / "sglang/srt/arg_groups/fields").glob("*.py")):
        found |= fields(path)
    return {name.replace("_", "-"): kind for name, kind in sorted(found.items())}


READERS: dict[str, tuple[Callable[[Path], Options], str, str]] = {
    "maxtext": (maxtext, "main of 2026-08-22", "src/maxtext/configs/types.py"),
    "torchtitan": (torchtitan, "0.3.0", "torchtitan/config/configs.py"),
    "megatron": (megatron, "Megatron-LM main of 2026-08-22", "megatron/training/arguments.py"),
    "megatron_bridge": (megatron_bridge, "0.3.1", "megatron/bridge/training/config.py"),
    "nemo": (nemo, "2.5.0", "nemo/lightning/pytorch/strategies/megatron_strategy.py"),
    "deepspeed": (deepspeed, "0.19.8", "deepspeed/runtime/config.py"),
    "vllm": (vllm, "0.33.0", "vllm/engine/arg_utils.py"),
    "sglang": (sglang, "0.5.23", "sglang/srt/arg_groups/fields"),
}


def main(sources: Path) -> None:
    for name, (reader, version, source) in READERS.items():
        options = reader(sources / name)
        document = {"version": version, "as_of": AS_OF, "source": source, "options": options}
        file = OUT / f"{name.replace('_', '-')}.json"
        file.write_text(json.dumps(document, indent=0) + "\n")
        print(f"{file.name}: {len(options)} options of {version}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
