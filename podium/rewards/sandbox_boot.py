"""Between the sandbox and the code in it: takes away network, privileges and resources, then becomes the code.

A script of its own, started as `python -I sandbox_boot.py <json>`; it imports nothing but the standard library. First
line of standard error: which walls could be put up, as JSON. The code gets the standard library and no other package.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys

CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWIPC = 0x10000000, 0x20000000, 0x40000000, 0x08000000
CLONE_NEWNS, MS_BIND, MS_PRIVATE, MS_REC = 0x00020000, 4096, 1 << 18, 16384
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
libc = ctypes.CDLL(None, use_errno=True)

HOOK = """
import sys
def refuse(event, args):
    if event.startswith(("socket.", "urllib.", "http.", "ftplib.", "smtplib.")) and event != "socket.gethostname":
        raise PermissionError("no network in the sandbox")
sys.addaudithook(refuse)
"""


def unshare() -> list[str]:
    """Leave the machine's network and process tables, where the kernel lets us."""
    walls = CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC
    names = ["network", "processes"]
    if os.geteuid() == 0 and libc.unshare(walls) == 0:
        return names
    if libc.unshare(walls | CLONE_NEWUSER) == 0:
        return names
    return []


def reachable_python(place: str) -> str:
    """The interpreter at a path that every user may walk; one in a private folder is mounted at `place`."""
    program = os.path.realpath(sys.executable)
    folders = [os.path.dirname(program)]
    while folders[-1] != "/":
        folders.append(os.path.dirname(folders[-1]))
    if os.geteuid() != 0 or all(os.stat(folder).st_mode & 0o001 for folder in folders):
        return program
    if libc.unshare(CLONE_NEWNS) or libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None):
        return program
    os.mkdir(place)
    if libc.mount(sys.base_prefix.encode(), place.encode(), None, MS_BIND, None):
        return program
    return os.path.join(place, os.path.relpath(program, os.path.realpath(sys.base_prefix)))


def limit(settings: dict[str, int]) -> None:
    for name, value in settings.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        _, hard = resource.getrlimit(kind)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def drop_root(uid: int) -> bool:
    """Become a user that nobody else is; its own user is what the process limit counts."""
    if os.geteuid() != 0:
        return True
    try:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    except OSError:
        return False  # root of a user namespace with one user in it
    return True


def main() -> None:
    order = json.loads(sys.argv[1])
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    walls = unshare()
    inner = os.fork()
    if inner:
        for stream in (0, 1, 2):
            os.close(stream)
        _, status = os.waitpid(inner, 0)
        os._exit(os.waitstatus_to_exitcode(status) % 256)
    python = reachable_python(order["python"])
    limit(order["limits"])
    if drop_root(order["uid"]):
        walls.append("user")
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # setuid clears it
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    sys.stderr.write(json.dumps(walls) + "\n")
    sys.stderr.flush()
    if "network" in walls:
        command = [order["file"]]
    else:
        command = ["-c", f"{HOOK}\nimport runpy\nrunpy.run_path({order['file']!r}, run_name='__main__')"]
    os.execv(python, [python, "-I", "-S", *command])


if __name__ == "__main__":
    main()
