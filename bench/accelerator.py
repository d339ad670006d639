"""Everything that only a real GPU or TPU can show, as one command that can be resumed.

    python bench/accelerator.py [STAGE ...] [--out FILE] [--tiny]

Stages: measure, kernels, parity, train-1b, train-8b, decode-8b, serve, layouts, families, torch.
Without any, those that have no result yet for this kind of device. Each runs in a process of its
own, takes less than 8 minutes, and leaves the others if it fails; of one that takes longer, the
rows are kept that it has. Results are kept in
`bench/accelerator.json`, or FILE, from which docs/accelerator.md is written. `measure` also writes
the chip with measured rates beside the JSON; `layouts` and `decode-8b` read it.

With --tiny all shapes are small: the stages run on a CPU, too. These results are kept in
`bench/accelerator-tiny.json`, or FILE, and never on the page.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from accelerator_device import Device, Found, Skipped, found_device
from accelerator_page import Kept, page

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "accelerator.md"
LIMIT_S = 480.0  # of a stage
# Stage -> its module, its function, and what that takes before the device.
STAGES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "measure": ("accelerator_measure", "measure", ()),
    "kernels": ("accelerator_kernels", "kernels", ()),
    "parity": ("accelerator_parity", "parity", ()),
    "train-1b": ("accelerator_train", "train", ("1b",)),
    "train-8b": ("accelerator_train", "train", ("8b",)),
    "decode-8b": ("accelerator_decode", "decode", ()),
    "serve": ("accelerator_serve", "serve", ()),
    "layouts": ("accelerator_layouts", "layouts", ()),
    "families": ("accelerator_families", "families", ()),
    "torch": ("accelerator_torch", "beside", ()),
}
# Without these, JAX takes three quarters of a GPU's memory.
ENVIRONMENT = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.92"}
# Half of the time of tiny stages is the compiler's.
# Of what is compared, not timed. XLA tries tens of kernels for each product in fp32: minutes.
UNTUNED = {"XLA_FLAGS": "--xla_gpu_autotune_level=0"}
CPU_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
}


def run(stage: str, device: Device) -> Found:
    """The result of a stage in this process, or why there is none, in one line."""
    module, function, arguments = STAGES[stage]
    start = time.perf_counter()
    try:
        found: Found = getattr(importlib.import_module(module), function)(*arguments, device)
    except Skipped as reason:
        found = {"skipped": str(reason)}
    except Exception as error:  # whatever a driver or a compiler says
        found = {"error": one_line(f"{type(error).__name__}: {error}")}
    return {**found, "seconds": round(time.perf_counter() - start, 1)}


def one_line(text: str) -> str:
    """The first line that says something, not too long."""
    return next((line for line in text.splitlines() if line.strip()), "no message")[:300]


def device_of(about: Found) -> Device:
    """A device that came through JSON."""
    return Device(**{**about, "shape": tuple(about["shape"])})


def worker(words: Sequence[str]) -> Found:
    """What a process of this script does: look which device is there, or run a stage on it."""
    about = json.loads(words[1])
    if words[0] == "device":
        return asdict(found_device(**about))
    return run(words[0], device_of(about))


def in_process(what: str, about: Found) -> Found:
    """The answer of `worker` in a process of its own."""
    command = [sys.executable, __file__, "--worker", what, json.dumps(about)]
    environment = {**ENVIRONMENT, **os.environ}
    if about.get("platform") == "cpu":
        environment |= CPU_ENVIRONMENT
    elif about.get("platform") == "gpu" and what == "parity":
        environment |= UNTUNED
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            text=True,
            timeout=LIMIT_S,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        partial = (late.stdout or b"{}").decode().splitlines()[-1]
        return json.loads(partial) | {"error": f"took more than {LIMIT_S:.0f} s"}
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return {"error": f"the process ended with {done.returncode}; see its messages"}
    answer: Found = json.loads(lines[-1])
    return answer


def has_result(found: Found | None) -> bool:
    """Whether a stage need not run again."""
    return found is not None and "error" not in found and "skipped" not in found


def keep(out: Path, device: Device, stage: str, found: Found) -> Kept:
    """Add a result to the JSON, and return all that it holds. A failure replaces no result."""
    from importlib.metadata import version

    kept: Kept = json.loads(out.read_text()) if out.exists() else {}
    one = kept.setdefault(device.kind, {"stages": {}})
    one |= {"platform": device.platform, "devices": device.count}
    about = {"date": f"{datetime.date.today().isoformat()}", "jax": version("jax")}
    if has_result(found) or not has_result(one["stages"].get(stage)):
        one["stages"][stage] = about | found
    out.write_text(json.dumps(kept, indent=1) + "\n")
    return kept


def main(words: list[str]) -> int:
    if words[:1] == ["--worker"]:
        print(json.dumps(worker(words[1:])))
        return 0
    options = parsed(words)
    about = in_process("device", {"tiny": options.tiny, "out": str(options.out)})
    if "error" in about:
        raise SystemExit(f"JAX finds no device: {about['error']}")
    device = device_of(about)
    if device.platform == "cpu" and not options.tiny:
        raise SystemExit("JAX finds no GPU or TPU here. With --tiny all stages run on this CPU.")
    kept: Kept = json.loads(options.out.read_text()) if options.out.exists() else {}
    results = kept.get(device.kind, {"stages": {}})["stages"]
    chosen = options.stages or [s for s in STAGES if not has_result(results.get(s))]
    failed = False
    for stage in chosen:
        found = in_process(stage, asdict(device))
        failed |= "error" in found
        kept = keep(options.out, device, stage, found)
        if not device.tiny:
            PAGE.write_text(page(kept))
        said = found.get("error") or found.get("skipped") or "measured"
        print(f"{stage}: {said} ({found.get('seconds', LIMIT_S)} s)", flush=True)
    print(f"{len(chosen)} stages run; results in {options.out}")
    return int(failed)


def parsed(words: list[str]) -> argparse.Namespace:
    """Stages, --tiny and --out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=", ".join(STAGES))
    parser.add_argument("--tiny", action="store_true", help="small shapes, also on a CPU")
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON of results")
    options = parser.parse_args(words)
    for stage in options.stages:
        if stage not in STAGES:
            parser.error(f'no stage "{stage}". One of: {", ".join(STAGES)}')
    if options.out is None:
        name = "accelerator-tiny.json" if options.tiny else "accelerator.json"
        options.out = ROOT / "bench" / name
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
