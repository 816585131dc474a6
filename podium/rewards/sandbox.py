"""Running code a model wrote: in a process of its own, with limits, and gone when the time is up.

Limits: CPU seconds, address space, size of files, number of processes, open files, wall clock. Where the kernel allows
it (root, or unprivileged user namespaces) the code has no network and its own process table, so that nothing it starts
outlives it; as root it also runs as a user of its own. `SandboxResult.walls` says which of these really stood. Without
a network namespace only Python's own sockets are refused, which honest code respects and hostile code can get around.
What it is not: a wall around the file system. The code can read what every user of the machine can read. It has the
standard library and no other package.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

BOOT = Path(__file__).with_name("sandbox_boot.py")
FIRST_UID, NUM_UIDS = 210_000, 50_000
_warned = threading.Event()


@dataclass(frozen=True)
class SandboxLimits:
    wall_s: float = 10.0
    cpu_s: int = 10
    memory_mb: int = 1024
    file_mb: int = 16
    """The largest file, and the most output."""
    processes: int = 32
    open_files: int = 64

    def rlimits(self) -> dict[str, int]:
        mb = 1 << 20
        return {
            "CPU": self.cpu_s,
            "AS": self.memory_mb * mb,
            "FSIZE": self.file_mb * mb,
            "NPROC": self.processes,
            "NOFILE": self.open_files,
            "CORE": 0,
        }


@dataclass(frozen=True)
class SandboxResult:
    exit_code: int
    """128 + n when signal n ended it."""
    stdout: str
    stderr: str
    timed_out: bool
    walls: tuple[str, ...]
    """Of network, processes, user."""

    @property
    def ok(self) -> bool:
        return self.exit_code == 0 and not self.timed_out


def run_python(code: str, stdin: str = "", limits: SandboxLimits | None = None) -> SandboxResult:
    """Run a Python program; whatever it does, this returns within its wall clock and a little."""
    limits = limits or SandboxLimits()
    folder = Path(tempfile.mkdtemp(prefix="podium-sandbox-"))
    try:
        return _run(code, stdin, limits, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(code: str, stdin: str, limits: SandboxLimits, folder: Path) -> SandboxResult:
    uid = FIRST_UID + int.from_bytes(os.urandom(4), "little") % NUM_UIDS
    work = folder / "work"
    work.mkdir()
    (work / "main.py").write_text(code, encoding="utf-8", errors="replace")
    (folder / "in").write_text(stdin, encoding="utf-8", errors="replace")
    if os.geteuid() == 0:
        os.chmod(folder, 0o711)
        os.chown(work, uid, uid)
    order = {"limits": limits.rlimits(), "uid": uid, "file": str(work / "main.py"), "python": str(folder / "python")}
    with (folder / "in").open("rb") as given, (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        child = subprocess.Popen(
            [sys.executable, "-I", str(BOOT), json.dumps(order)],
            stdin=given,
            stdout=out,
            stderr=err,
            cwd=work,
            env={"PATH": "/usr/bin:/bin", "HOME": str(work), "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        timed_out = False
        try:
            exit_code = child.wait(limits.wall_s)
        except subprocess.TimeoutExpired:
            timed_out, exit_code = True, 128 + signal.SIGKILL
        finally:
            _kill_group(child)
    walls, stderr = _read_walls(_read(folder / "err", limits))
    if "network" not in walls and not _warned.is_set():
        _warned.set()
        logger.warning("the sandbox has no network namespace here: only Python's own sockets are refused")
    return SandboxResult(_shell_code(exit_code), _read(folder / "out", limits), stderr, timed_out, walls)


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    """The boot process and the code are one process group; with a process namespace nothing outlives its first."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _read(path: Path, limits: SandboxLimits) -> str:
    with path.open("rb") as file:
        return file.read(limits.file_mb << 20).decode(errors="replace")


def _read_walls(stderr: str) -> tuple[tuple[str, ...], str]:
    first, _, rest = stderr.partition("\n")
    try:
        return tuple(json.loads(first)), rest
    except ValueError:
        return (), stderr


def _shell_code(code: int) -> int:
    return 128 - code if code < 0 else code
