"""The commands whose whole text is kept, and how a kept file reads.

`python -m tests.golden.transcripts` writes the present text of every command into its file.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from tests.golden.terminal import run

FOLDER = Path(__file__).parent / "kept"

COMMANDS = {
    "help": "--help",
    "plan_help": "plan --help",
    "plan_v5p": "plan llama3-70b v5p:16x20x28 --train --batch 1120x4096 --tokens 15T",
    "plan_v5p_1024": "plan llama3-70b v5p:16x20x28 --train --batch 1024x4096",
    "plan_h100": "plan llama3-70b h100:16384 --train --batch 4096x4096 --tokens 15T",
    "plan_mesh": "plan llama3-8b v5e:16x16 --train --batch 256x8192 --mesh fsdp=256",
    "plan_fix_top": "plan llama3-8b h100:64 --train --batch 64x8192 --fix tensor=2 --top 3",
    "plan_moe": "plan deepseek-v3 h100:2048 --train --batch 2048x4096 --tokens 15T "
    "--fix context=2,pipe=2,micro_batch=1",
    "plan_verbose": "plan llama3-8b v5e:4x4 --train --batch 16x2048 -v",
    "plan_too_large": "plan llama3-70b v5e:2x2 --train --batch 4x4096",
    "plan_serve_help": "plan --serve --help",
    "plan_serve_book": "plan llama3-70b v5e:4x4 --serve --dtype bf16 --kv-dtype bf16 --context "
    "8192 --batch 32 --peak",
    "plan_serve_slice": "plan llama3-405b v5e --serve --dtype int8 --tpot 15ms --peak",
    "plan_serve_rate": "plan deepseek-v3 h200 --serve --dtype fp8 --prompt 4096 --output 1024 "
    "--rate 20/s --ttft 1s --tpot 30ms --peak",
    "plan_serve_apart": "plan deepseek-v3 gb200:72 --serve --dtype fp8 --prompt 4096 --output 1024 "
    "--disaggregate --peak",
    "plan_serve_bursts": "plan llama3-8b h100:8 --serve --prompt 2048 --output 512 --rate 20/s "
    "--ttft 500ms --tpot 30ms --traffic bursty:2 --capacity -v",
    "plan_serve_unmet": "plan llama3-70b v5e:4x4 --serve --tpot 5ms --peak",
    "plan_serve_too_large": "plan llama3-405b v5e:4x4 --serve --dtype bf16 --peak",
    "sweep_serve_help": "sweep --serve --help",
    "sweep_serve": "sweep llama3-70b v5e:4x2 --serve --dtype int8 --context 8192 "
    "--batch 1,8,16,32,41 --peak",
    "sweep_serve_md": "sweep llama3-70b v5e:4x2 --serve --dtype int8 --context 8192 "
    "--batch 1,8,16,32,64 --peak -o md",
    "sweep_serve_machines": "sweep deepseek-v3 h200:8,h200:16,gb200:72 --serve --dtype fp8 "
    "--prompt 4096 --output 1024 --tpot 20ms,50ms --peak",
    "explain_serve": "explain llama3-70b v5e:4x4 --serve --context 8192 --batch 32 --peak",
    "explain_serve_verbose": "explain llama3-70b v5e:4x4 --serve --prompt 8192 --output 512 "
    "--batch 32 --fix tensor=16,kv=batch --peak --what-if 'hbm_bandwidth x2' -v",
    "explain_serve_apart": "explain deepseek-v3 gb200:72 --serve --dtype fp8 --prompt 4096 "
    "--output 1024 --disaggregate --peak",
    "fit_serve": "fit llama3-70b v5e --serve --dtype bf16,int8,int4 --context 8192",
    "fit_train": "fit llama2-7b h100 --train",
    "fit_sized": "fit llama3-70b h100:8 --serve --batch 16",
    "fit_refused": "fit llama3.1-405b v5e:4x4 --serve --dtype bf16,int8",
    "roofline_typed": "roofline 'bf16[B,D] x int8[D,F] -> bf16[B,F]' --on v5e B=1-1024*2 D=8192 "
    "F=32768",
    "roofline_model": "roofline llama3-70b v5e:2x4 --op mlp.up --batch 1-512*2",
    "shard": "shard 'In[B_X,D] . W[D_X,F_Y] -> Out[B_X,F_Y]' --mesh X=4,Y=4 --on v5e:4x4 "
    "B=1024 D=8192 F=32768",
    "shard_grad_padded": "shard 'A[I_X,J] . B[J,K_Y] -> C[I_X,K_Y]' --mesh X=4,Y=2 --on v5e:2x4 "
    "I=1001 J=512 K=512 --grad",
    "collective": "collective all_gather 34MB --on v5e:4x4 --axis X",
    "thresholds": "thresholds llama3-70b v5p:16x20x28 --batch 1120x4096",
    "hw_v5e": "hw v5e",
    "hw_slices": "hw v5e --slices",
    "hw_list": "hw",
    "hw_diff": "hw diff v5p h100",
    "hw_pod": "hw v5p:16x20x28*2",
    "hw_nodes": "hw h100:1024",
    "models_llama": "models llama3-70b",
    "models_deepseek": "models deepseek-v3",
    "models_kv": "models show qwen2.5-7b --kv --seq 3072",
    "models_window": "models gemma3-27b --kv",
    "models_flops": "models mixtral-8x7b --flops --seq 8192",
    "book": "book",
    "book_chapter": "book 9",
    "book_case": "book sharding-q2-1",
    "book_erratum": "book tpus-table-v3",
    "book_all": "book --all",
    "errors": "plan llama3-70x v5p:16x20 --batch 1024 --mesh tenor=8 --remat some --top 0",
}


def transcript(command: str) -> str:
    """The command, what it says, and its exit code."""
    said = run(*shlex.split(command))
    return f"$ shardwise {command}\n{said.out}{said.err}[exit {said.code}]\n"


def kept(name: str) -> str:
    """The text on file."""
    return (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


def main() -> None:
    """Write every file anew; the difference is for the eye."""
    os.environ.update(NO_COLOR="1", COLUMNS="80")
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.txt"):
        path.unlink()
    for name, command in COMMANDS.items():
        (FOLDER / f"{name}.txt").write_text(transcript(command), encoding="utf-8")


if __name__ == "__main__":
    main()
