"""Code a model wrote: limited, without network, and gone when its time is up."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from podium.rewards import sandbox
from podium.rewards.sandbox import SandboxLimits, run_python

QUICK = SandboxLimits(wall_s=120, cpu_s=30, memory_mb=256, processes=16)


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of the sandboxes of this test: beside it, others may run code too."""
    made: list[str] = []

    def mkdtemp(**words: str) -> str:
        made.append(tempfile.mkdtemp(**words))
        return made[-1]

    monkeypatch.setattr(sandbox, "tempfile", SimpleNamespace(mkdtemp=mkdtemp))
    return made


def left(folders: list[str], within_s: float = 120.0) -> list[str]:
    """Processes of these sandboxes that stay; a killed one takes a moment to go."""
    deadline = time.monotonic() + within_s
    while found := [
        name
        for name in os.listdir("/proc")
        if name.isdigit() and any(folder.encode() in _read(Path("/proc", name, "cmdline")) for folder in folders)
    ]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return found


def test_a_program_reads_its_input_and_writes_its_output():
    result = run_python("print(int(input()) * 2)", "21\n", limits=QUICK)
    assert result.ok and result.stdout == "42\n" and result.stderr == ""


def test_a_failing_program_says_why():
    result = run_python("1/0", limits=QUICK)
    assert not result.ok and "ZeroDivisionError" in result.stderr


def test_ten_gigabytes_are_refused():
    result = run_python("x = bytearray(10 * 2**30); print('got it')", limits=QUICK)
    assert not result.ok and "MemoryError" in result.stderr and "got it" not in result.stdout


def test_a_fork_bomb_ends_and_leaves_nothing_behind(folders):
    bomb = "import os, time\nn = 0\nwhile n < 500:\n    if os.fork() == 0:\n        n += 1\n        time.sleep(0)\n"
    result = run_python(bomb, limits=SandboxLimits(wall_s=2, cpu_s=2, memory_mb=256, processes=16))
    assert not result.ok
    if "user" in result.walls:
        assert "BlockingIOError" in result.stderr or result.timed_out
    assert folders and left(folders) == []


def test_a_process_that_leaves_its_session_dies_too(folders):
    code = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(3600)\nelse:\n    time.sleep(3600)\n"
    result = run_python(code, limits=SandboxLimits(wall_s=1))
    assert result.timed_out
    if "processes" in result.walls:
        assert folders and left(folders) == []


def test_there_is_no_network():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket\ns = socket.create_connection(('127.0.0.1', {port}), timeout=2)\nprint('connected')"
        result = run_python(code, limits=QUICK)
    assert not result.ok and "connected" not in result.stdout


def test_an_endless_loop_stops_at_the_wall_clock():
    result = run_python("import time\nwhile True: time.sleep(1)", limits=SandboxLimits(wall_s=1))
    assert result.timed_out


def test_output_has_a_limit():
    result = run_python("while True: print('x' * 10000)", limits=SandboxLimits(wall_s=5, file_mb=1))
    assert not result.ok and len(result.stdout) <= 1 << 20


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_as_root_the_code_is_nobody_and_cannot_read_what_is_private(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("key")
    secret.chmod(0o600)
    result = run_python(f"import os\nprint(os.getuid())\nopen({str(secret)!r}).read()", limits=QUICK)
    assert int(result.stdout) >= 210_000 and "PermissionError" in result.stderr


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
