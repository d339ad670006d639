"""Slurm: a batch script in which `srun` starts `shardwise train` on every node.

https://slurm.schedmd.com/sbatch.html
"""

from __future__ import annotations

from shardwise.frameworks import own_command
from shardwise.frameworks.exported import Framework, Settings, TrainingRun, Written
from shardwise.frameworks.launch import TrainingLaunch
from shardwise.hardware import Switched

_SCRIPT = """\
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
{gpus}#SBATCH --exclusive

set -eu
{plan}
COORDINATOR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):8476
export COORDINATOR
srun bash -c 'shardwise train {file} --data DATA --checkpoint CHECKPOINTS \\
  --coordinator "$COORDINATOR" --processes "$SLURM_NTASKS" --process "$SLURM_PROCID"'
"""


def write(run: TrainingRun) -> Written:
    """The script of a plan."""
    gpus = ""
    if isinstance(run.system.topology, Switched):
        gpus = f"#SBATCH --gpus-per-node={run.nodes.chips}\n"
    text = _SCRIPT.format(
        name=run.plan.model.name,
        nodes=run.nodes.count,
        gpus=gpus,
        plan=own_command.command(run),
        file=own_command.PLAN,
    )
    notes = ["DATA and CHECKPOINTS: folders that all nodes see."]
    return Written(settings={}, text=text, notes=notes, command="sbatch FILE")


def read(settings: Settings) -> TrainingLaunch:
    """The layout of a script."""
    return own_command.read(str(settings.get("text", "")), "slurm")


def knows(settings: Settings) -> int:
    """Whether the script starts this package on Slurm."""
    text = str(settings.get("text", ""))
    return 10 * ("#SBATCH" in text and "shardwise plan" in text)


FRAMEWORK = Framework(
    name="slurm",
    title="Slurm",
    work="train",
    suffix=".sh",
    as_of="25.05, 2026-11",
    write=write,
    read=read,
    knows=knows,
    tpus=True,
)
