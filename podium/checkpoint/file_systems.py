"""Other people's file systems: a URL becomes an fsspec file system, and what goes wrong with one is said in words.

An error names the package to install or the variables to set, and never shows a login, key or token. It knows nothing
of checkpoints.
"""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import fsspec
from fsspec.callbacks import Callback

from podium.config.secrets import HIDDEN, scrub_text
from podium.errors import CheckpointError
from podium.stop_points import LOOK_S, stop_point

T = TypeVar("T")
_AWS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or a profile), and AWS_ENDPOINT_URL for MinIO and its like"
_GOOGLE = "GOOGLE_APPLICATION_CREDENTIALS, or run gcloud auth application-default login"
_HADOOP = "HADOOP_USER_NAME or a Kerberos ticket (kinit), and HADOOP_CONF_DIR for a cluster with a name service"
KINDS = {
    "s3": ("s3fs", _AWS),
    "s3a": ("s3fs", _AWS),
    "gs": ("gcsfs", _GOOGLE),
    "gcs": ("gcsfs", _GOOGLE),
    "hdfs": ("hdfs-native", _HADOOP),
    "viewfs": ("hdfs-native", _HADOOP),
    "webhdfs": ("requests", "the user in the URL (webhdfs://user@host:port/folder), or FSSPEC_WEBHDFS_TOKEN"),
}
"""The package for a kind of URL, and what tells it who is asking."""
_MAX_TEXT = 600
_BUCKETS = ("s3", "s3a", "gs", "gcs")


def open_url(url: str, name: str) -> tuple[Any, str]:
    """The file system of the URL and the path there; `name` is the setting that the URL comes from."""
    kind, shown = url.partition("://")[0], without_login(url)
    package, access = KINDS.get(kind, ("", ""))
    if "?" in url or (kind in _BUCKETS and shown != url):
        raise CheckpointError(
            f"{name}={shown} was given with a login or a query, which {kind} does not read from a URL and which would "
            f"be a secret in a setting. Leave it out of the URL" + (f" and set {access}." if access else ".")
        )
    try:
        fs, root = fsspec.core.url_to_fs(url, **({"auto_mkdir": True} if kind in ("file", "local") else {}))
    except (ImportError, ValueError, OSError) as error:
        install = f". To use {kind}:// addresses: pip install {package}" if package else ""
        reason = scrub_text(str(error)).partition("\n")[0]
        raise CheckpointError(f"{name}={shown} cannot be used: {reason}{install}") from error
    return fs, root.rstrip("/")


def what_failed(error: BaseException, fs: Any) -> str:
    """The error in one line, without secrets."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    for secret in _secrets(fs.storage_options):
        text = text.replace(secret, HIDDEN)
    text = re.sub(r"(https?://[^\s?]+\?)\S+", rf"\1{HIDDEN}", text)  # tokens and signatures
    return " ".join(scrub_text(text).split())[:_MAX_TEXT]


def is_refusal(error: BaseException) -> bool:
    """Whether the file system answered, and the answer was no: trying again does not help."""
    response = getattr(error, "response", None)
    codes = (getattr(response, "status_code", None), getattr(error, "code", None), getattr(error, "status", None))
    return isinstance(error, PermissionError | FileNotFoundError) or not {401, 403, "401", "403"}.isdisjoint(codes)


def how_to_get_in(url: str) -> str:
    """What to look at when a file system refuses or does not answer."""
    access = KINDS.get(url.partition("://")[0], ("", ""))[1]
    return f"Check the address and the permissions{f', and set {access}' if access else ''}"


def without_login(url: str) -> str:
    """The URL without user, password and query."""
    return re.sub(r"//[^/@]*@", "//", url.partition("?")[0])


def _secrets(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _secrets(value)
        elif isinstance(value, str) and len(value) >= 4 and re.search(r"key|secret|token|password", name):
            yield value


class Stalled(CheckpointError):
    """Nothing moved for too long."""


class Progress(Callback):
    """What fsspec tells of a transfer: when something last moved."""

    def __init__(self) -> None:
        super().__init__()
        self.moved_bytes, self.moved_at = 0, time.monotonic()
        self.given_up = False

    def branched(self, path_1: str, path_2: str, **kwargs: Any) -> Progress:
        return self

    def relative_update(self, inc: int = 1) -> None:
        if self.given_up:
            raise Stalled("this transfer was given up; it moves again, but nobody waits for it")
        self.moved_bytes += inc
        self.moved_at = time.monotonic()

    def absolute_update(self, value: int) -> None:
        self.moved_at = time.monotonic()


def each(work: Callable[[T], object], items: Iterable[T], at_once: int) -> None:
    """Call `work` for every item in so many threads, which do not keep the process when one of them hangs."""
    left, lock, failures = iter(list(items)), threading.Lock(), list[BaseException]()

    def run() -> None:
        while not failures:
            with lock:
                batch = list(itertools.islice(left, 1))
            if not batch:
                return
            try:
                work(batch[0])
            except BaseException as error:  # noqa: BLE001 (it is raised again in the thread that waits)
                failures.append(error)

    threads = [threading.Thread(target=run, name="remote: file", daemon=True) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def patiently(work: Callable[[], T], progress: Progress, stall_s: float, name: str) -> T:
    """The result of `work`, which is left behind in its thread when nothing has moved for `stall_s`.

    Should it wake up later, it ends when it next tells the progress of something.
    """
    result: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            result.append(work())
        except BaseException as error:  # noqa: BLE001 (it is raised again in the thread that waits)
            failure.append(error)

    progress.moved_at = time.monotonic()
    thread = threading.Thread(target=run, name=f"remote: {name}", daemon=True)
    thread.start()
    while thread.is_alive():
        stop_point()
        if time.monotonic() - progress.moved_at > stall_s:
            progress.given_up = True
            raise Stalled(f"{name}: nothing moved for {stall_s:g} s")
        thread.join(LOOK_S)
    if failure:
        raise failure[0]
    return result[0]
