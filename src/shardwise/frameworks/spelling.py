"""Options that are misspelled, and those that are not read.

Misspelled are options that no framework has, but that are close to one which it has.

The names stand in `options/`, one file for each framework, read from its sources by
bench/framework_options.py. A file may have other options than these, of a recipe or a script of the
user's; they are no business of a layout and are passed over.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from shardwise.frameworks.exported import Settings, flat
from shardwise.frameworks.shell_script import PROGRAM
from shardwise.frameworks.watched import last_name

FOLDER = Path(__file__).parent / "options"
CLOSE = 0.9  # share of equal letters
SHORTEST = 8  # letters; shorter names resemble too many others
SHORT = 4  # letters of flags that are other names of an option
WORD = 5  # letters of a part that a misspelled one may be
# Words of options that may change layout, memory or speed, and of those that do not, beside them.
_MATTERS = {
    "parallel", "parallelism", "size", "degree", "batch", "microbatch", "seq", "sequence",
    "chunk", "chunked", "chunks", "fp8", "fp4", "mxfp8", "mxfp4", "dtype", "precision", "quant",
    "quantization", "recompute", "remat", "checkpointing", "offload", "offloading", "shard",
    "sharded", "sharding", "expert", "experts", "pipeline", "overlap", "cache", "memory",
    "optimizer", "compile", "window", "wgrad", "all2all", "scheduling", "swap",
}  # fmt: skip
_IS_OTHER = {
    "path", "dir", "file", "save", "load", "saver", "ckpt", "checkpoint", "log", "logging",
    "logger", "wandb", "tensorboard", "profile", "profiler", "lr", "warmup", "decay", "eval",
    "valid", "validation", "test", "data", "dataset", "dataloader", "tokenizer", "vocab",
    "seed", "init", "amax", "margin", "interval", "router", "rotary", "rope", "bias", "norm",
    "intermediate", "hidden", "head", "heads", "hf", "hub", "download", "api", "server",
    "transfer", "connector", "metrics", "image", "video", "tokens", "warn", "report", "bucket",
    "group", "scale", "pin", "calib", "cluster", "unused", "block",
}  # fmt: skip
_OF_THIS_PACKAGE = ("jobset", "slurm")  # scripts that start its own trainer
# Options that say what plans have anyway, and values that do.
_AS_PLANNED = {
    "overlap_comm", "overlap_grad_reduce", "overlap_param_gather", "enable_chunked_prefill",
    "mixed_precision", "deepspeed_activation_checkpointing", "disable_radix_cache",
    "num_layers_per_pipeline_stage",
}  # fmt: skip
_VALUES_AS_PLANNED = (None, False, 0, "none", "None", "null", "auto", "bf16", "bfloat16")


def misspelled(settings: Settings, framework: str, asked: Collection[str] = ()) -> list[str]:
    """`OPTION; close: OPTION` for each option of a file that is likely a misspelled one.

    Args:
        asked: last parts of the names of options that are read, also those of older versions.
    """
    names = _names(framework)
    found = []
    for key in _keys(settings):
        plain = _plain(key)
        is_option = plain in names or plain.removeprefix("no_") in names
        is_option = is_option or _is_inside(key, names) or last_name(key) in asked
        if len(plain) < SHORTEST or key.isupper() or is_option:  # variables of scripts are upper
            continue
        close = difflib.get_close_matches(plain, names, 1, CLOSE)
        if close:
            found.append(f"{key}; close: {names[close[0]]}")
    return found


def may_be_option(flag: str, framework: str) -> bool:
    """Whether a flag is one of a framework, or is too short to be in its list, as `--tp`."""
    names, plain = _names(framework), _plain(flag)
    return not names or len(plain) <= SHORT or plain in names or plain.removeprefix("no_") in names


def unknown_options(settings: Settings, framework: str) -> list[str]:
    """Options of a file, without flags and variables of a script, that the framework lacks.

    Those that `misspelled` names are left out.
    """
    names = _names(framework)
    misspellings = {text.partition(";")[0] for text in misspelled(settings, framework)}
    return [
        key
        for key in settings
        if re.fullmatch(r"[a-z]\w*", key)
        and key != "text"
        and _plain(key) not in names
        and key not in misspellings
    ]


def unread(
    settings: Settings, asked: Collection[str], framework: str, typos: Collection[str]
) -> list[str]:
    """Options of a file that nothing asked for, and that may change layout, memory or speed.

    Misspelled options are left out, and those that say what plans have anyway.

    Args:
        asked: last parts of the names of options that are read, as `watched` has them.
        typos: what `misspelled` found.
    """
    passed_over = {text.partition(";")[0] for text in typos}
    is_script, names = PROGRAM in settings, _names(framework)
    found: list[str] = []
    if framework in _OF_THIS_PACKAGE:
        return found
    for path, value in flat(settings).items():
        name = last_name(path)
        is_option = path.startswith("-") or not is_script or _plain(path) in names
        is_read = name in asked or name in _AS_PLANNED or value in _VALUES_AS_PLANNED
        if is_option and not is_read and path not in passed_over and _may_matter(path, name):
            found.append(path)
    return found


def _may_matter(path: str, name: str) -> bool:
    """Whether the words of an option are of layout, memory or speed."""
    words, of_path = (set(re.split(r"[\W_]+", text.lower())) for text in (name, path))
    return bool(words & _MATTERS) and not of_path & _IS_OTHER


def _is_inside(key: str, names: Mapping[str, str]) -> bool:
    """Whether a path leads into the table of an option, whose keys are not in the list."""
    table, _, last = key.rpartition(".")
    return bool(last and "." in table and _plain(table) in names)


def _keys(settings: Settings) -> Iterator[str]:
    """The options of a file: flags and paths, and the tables that paths go through."""
    for path in flat(settings):
        if path not in ("$", "text"):
            yield path
            if "." in path and not path.startswith("-"):
                yield path.partition(".")[0]


@functools.cache
def _names(framework: str) -> dict[str, str]:
    """Spelling by which options are compared -> the option."""
    file = FOLDER / f"{framework}.json"
    if not file.exists():
        return {}
    options = json.loads(file.read_text(encoding="utf-8"))["options"]
    names = {_plain(option): option for option in options}
    return names | {_plain(head): head for option in options if (head := option.split(".")[0])}


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_").lower()
