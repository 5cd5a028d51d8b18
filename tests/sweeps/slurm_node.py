"""A SLURM of one node on this machine, for tests: munged, slurmctld and slurmd in a folder of their own.

Debian: `apt-get install slurm-wlm munge`; run as root. As a program, it runs a command with this SLURM:

    python tests/sweeps/slurm_node.py recombine sweep FILE.py --engine slurm
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue")

CONFIG = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=10
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
JobRequeue=1
KillWait=5
OverTimeLimit=0
SchedulerParameters=sched_interval=5,sched_min_interval=100000
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str | None:
    """Why SLURM cannot be started here; None if it can."""
    missing = [name for name in PROGRAMS if find(name) is None]
    if missing:
        return f"there is no {', '.join(missing)}: expected SLURM and munge to be installed"
    return None if os.getuid() == 0 else "slurmd needs to be root"


def find(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


@contextlib.contextmanager
def slurm_node() -> Iterator[str]:
    """Start a SLURM and yield its configuration file, for SLURM_CONF."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    folder.chmod(0o755)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key, config = folder / "munge.key", folder / "slurm.conf"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    ports = [free_port(), free_port()]
    config.write_text(
        CONFIG.format(host=socket.gethostname(), user="root", folder=folder, ports=ports, cores=os.cpu_count())
    )
    environment = {**os.environ, "SLURM_CONF": str(config)}
    munged = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket"]
    munged += [f"--{name}-file={folder}/munged.{name}" for name in ("pid", "log", "seed")]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for command in (munged, ["slurmctld", "-D", "-c"], ["slurmd", "-D"]):
            program = find(command[0])
            assert program is not None
            log = open(folder / f"{command[0]}.out", "wb")  # noqa: SIM115
            started.append(subprocess.Popen([program, *command[1:]], env=environment, stdout=log, stderr=log))
            time.sleep(1)
        wait_for_node(environment, folder)
        yield str(config)
    finally:
        subprocess.run(["scancel", "--user", "root"], env=environment, check=False, timeout=30)
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def wait_for_node(environment: dict[str, str], folder: Path, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while True:
        command = ["sinfo", "--noheader", "--format", "%T"]
        shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if "idle" in shown.stdout:
            return
        if time.monotonic() > end:
            logs = "\n".join(path.read_text()[-2000:] for path in folder.glob("*.log"))
            raise RuntimeError(f"SLURM did not start: {shown.stdout} {shown.stderr}\n{logs}")
        time.sleep(0.5)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


if __name__ == "__main__":
    if reason := why_not():
        sys.exit(reason)
    with slurm_node() as path:
        sys.exit(subprocess.run(sys.argv[1:], env={**os.environ, "SLURM_CONF": path}, check=False).returncode)
