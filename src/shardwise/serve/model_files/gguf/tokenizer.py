"""The tokenizer in a GGUF file, built with the package `tokenizers`.

Files have the tokens, and merges (model "gpt2", byte-level BPE) or scores (model "llama",
SentencePiece BPE), but the pre-tokenizer by its name alone.

Sources: llama.cpp, src/llama-vocab.cpp (pre-tokenizers, token types, defaults); the converters of
transformers (convert_slow_tokenizer.py) for the form that the package `tokenizers` wants.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardwise.errors import BadFile, MissingExtra
from shardwise.serve.model_files.gguf.file import GgufFile

CONTROL = 3  # token type: not text, such as <|im_start|>
USER_DEFINED = 4  # token type: text that is one token wherever it occurs

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3_PATTERN = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
QWEN2_PATTERN = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}"

# Pre-tokenizers by their names in files, and how they split a text before BPE.
GPT2_NAMES = ("default", "gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais", "granite-docling")
DIGIT_NAMES = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone")
LLAMA3_NAMES = ("llama-bpe", "llama3", "llama-v3", "falcon3")
QWEN2_NAMES = ("qwen2", "deepseek-r1-qwen", "megrez")
SPACE = "▁"  # a space in SentencePiece


def build_tokenizer(file: GgufFile) -> Any:
    """Build the tokenizer of a file, as an object of the package `tokenizers`.

    Raises:
        BadFile: its model or its pre-tokenizer is not known.
        MissingExtra: the package `tokenizers` is not installed.
    """
    try:
        import tokenizers  # noqa: F401
    except ImportError:
        raise MissingExtra(
            f"{file.path} needs the package tokenizers: pip install 'shardwise[serve]'"
        ) from None
    model = file.of_tokenizer("model")
    if model == "gpt2":
        tokenizer = _byte_level(file)
    elif model == "llama":
        tokenizer = _sentencepiece(file)
    else:
        raise BadFile(
            f'{file.path}: tokenizer model "{model}" is not known; "gpt2" and "llama" are.'
        )
    _add_special_tokens(tokenizer, file)
    return tokenizer


def _byte_level(file: GgufFile) -> Any:
    """A tokenizer whose tokens are strings of bytes, each byte written as one character."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    name = file.of_tokenizer("pre", "default")
    merges = [tuple(merge.split(" ", 1)) for merge in file.of_tokenizer("merges")]
    tokenizer = Tokenizer(
        models.BPE(vocab=_vocabulary(file), merges=merges, ignore_merges=name in LLAMA3_NAMES)
    )
    tokenizer.pre_tokenizer = _pre_tokenizer(file, name)
    tokenizer.decoder = decoders.ByteLevel()
    if name in QWEN2_NAMES:
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _pre_tokenizer(file: GgufFile, name: str) -> Any:
    """What splits a text into words before BPE.

    Raises:
        BadFile: the name is not known.
    """
    from tokenizers import Regex, pre_tokenizers

    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name in GPT2_NAMES:
        return whole
    if name in DIGIT_NAMES:
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, whole])
    patterns = dict.fromkeys(LLAMA3_NAMES, LLAMA3_PATTERN)
    patterns |= dict.fromkeys(QWEN2_NAMES, QWEN2_PATTERN)
    if name not in patterns:
        known = ", ".join([*GPT2_NAMES, *DIGIT_NAMES, *patterns])
        raise BadFile(
            f'{file.path}: pre-tokenizer "{name}" is not known; these are: {known}. Serve the '
            "model's Hugging Face folder."
        )
    split = pre_tokenizers.Split(Regex(patterns[name]), behavior="isolated")
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([split, bytes_only])


def _sentencepiece(file: GgufFile) -> Any:
    """A tokenizer whose tokens are texts with `SPACE` for spaces, and bytes for all other texts."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    tokens = file.of_tokenizer("tokens")
    vocab = _vocabulary(file)
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=_merges(vocab, file.of_tokenizer("scores")),
            unk_token=tokens[file.of_tokenizer("unknown_token_id", 0)],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    normalize: list[Any] = [normalizers.Replace(" ", SPACE)]
    decode: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if file.of_tokenizer("add_space_prefix", True):
        normalize.insert(0, normalizers.Prepend(SPACE))
        decode.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(normalize)
    tokenizer.decoder = decoders.Sequence(decode)
    return tokenizer


def _vocabulary(file: GgufFile) -> dict[str, int]:
    return {token: index for index, token in enumerate(file.of_tokenizer("tokens"))}


def _merges(vocab: dict[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every pair of tokens whose text is a token, the one of the highest score first."""
    merges = []
    for token, index in vocab.items():
        pairs = [(token[:i], token[i:]) for i in range(1, len(token))]
        known = [pair for pair in pairs if pair[0] in vocab and pair[1] in vocab]
        known.sort(key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
        merges += [(scores[index], pair) for pair in known]
    merges.sort(key=lambda merge: (merge[0], len(merge[1][0]), len(merge[1][1])), reverse=True)
    return [pair for _, pair in merges]


def _add_special_tokens(tokenizer: Any, file: GgufFile) -> None:
    """Make control tokens and those that users defined one token wherever they occur."""
    from tokenizers import AddedToken

    kinds = file.of_tokenizer("token_type", ())
    for kind, token in zip(kinds, file.of_tokenizer("tokens"), strict=False):
        if kind == CONTROL:
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif kind == USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, special=False, normalized=False)])
