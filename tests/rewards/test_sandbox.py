"""Code a model wrote: limited, without network, and gone when its time is up."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from podium.rewards.sandbox import SandboxLimits, run_python

QUICK = SandboxLimits(wall_s=5, cpu_s=3, memory_mb=256, processes=16)


def test_a_program_reads_its_input_and_writes_its_output():
    result = run_python("print(int(input()) * 2)", "21\n")
    assert result.ok and result.stdout == "42\n" and result.stderr == ""


def test_a_failing_program_says_why():
    result = run_python("1/0")
    assert not result.ok and "ZeroDivisionError" in result.stderr


def test_ten_gigabytes_are_refused():
    result = run_python("x = bytearray(10 * 2**30); print('got it')", limits=QUICK)
    assert not result.ok and "MemoryError" in result.stderr and "got it" not in result.stdout


def test_a_fork_bomb_ends_and_leaves_nothing_behind():
    bomb = "import os, time\nn = 0\nwhile n < 500:\n    if os.fork() == 0:\n        n += 1\n        time.sleep(0)\n"
    start = time.monotonic()
    result = run_python(bomb, limits=SandboxLimits(wall_s=2, cpu_s=2, memory_mb=256, processes=16))
    assert not result.ok and time.monotonic() - start < 60
    if "user" in result.walls:
        assert "BlockingIOError" in result.stderr or result.timed_out
    time.sleep(0.2)
    assert not [p for p in Path("/proc").glob("[0-9]*/cmdline") if b"podium-sandbox-" in _read(p)]


def test_a_process_that_leaves_its_session_dies_too():
    code = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(300)\nelse:\n    time.sleep(300)\n"
    result = run_python(code, limits=SandboxLimits(wall_s=1))
    assert result.timed_out
    if "processes" in result.walls:
        time.sleep(0.2)
        assert not [p for p in Path("/proc").glob("[0-9]*/cmdline") if b"podium-sandbox-" in _read(p)]


def test_there_is_no_network():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket\ns = socket.create_connection(('127.0.0.1', {port}), timeout=2)\nprint('connected')"
        result = run_python(code, limits=QUICK)
    assert not result.ok and "connected" not in result.stdout


def test_an_endless_loop_stops_at_the_wall_clock():
    start = time.monotonic()
    result = run_python("import time\nwhile True: time.sleep(1)", limits=SandboxLimits(wall_s=1))
    assert result.timed_out and time.monotonic() - start < 60


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
