"""Every exception Podium raises on purpose.

    PodiumError
    ├── ConfigError (ValueError)        a setting is unknown, malformed or at odds with another
    │   └── RunFolderBusy               another process writes to the run folder
    ├── DataError (ValueError)          a data file or row cannot be used
    ├── ModelError (ValueError)         a model folder cannot be loaded or lacks what a role needs
    ├── RewardError                     rewards failed more often than allowed
    ├── RetrievalError                  documents could not be had from a retriever
    ├── ResourceError                   the cluster lacks what the run asks for
    ├── WorkerError                     a worker's method raised; carries role, rank, method and its traceback
    │   └── WorkerDied                  the worker's process is gone
    ├── WorkerTimeout (TimeoutError)    a worker did not answer within its limit
    ├── RolloutError                    the rollout engine failed or was misused
    ├── PublishError                    the rollout engine does not hold the trained weights
    ├── TrainingError                   training cannot go on (non-finite too often, flat too long)
    └── CheckpointError                 a checkpoint is missing, partial or corrupt

Messages say what was given, what is allowed, and the fix. `assert` is for our own mistakes, these are for the user's.
"""

from __future__ import annotations


class PodiumError(Exception):
    """Base of all errors raised on purpose."""


class ConfigError(PodiumError, ValueError):
    """A setting is unknown, malformed, or at odds with another."""


class RunFolderBusy(ConfigError):
    """Another process writes to the run folder."""


class DataError(PodiumError, ValueError):
    """A data file or a row of it cannot be used."""


class ModelError(PodiumError, ValueError):
    """A model folder cannot be loaded, or lacks what a role needs."""


class RewardError(PodiumError):
    """Rewards failed more often than allowed."""


class RetrievalError(PodiumError):
    """Documents could not be had from a retriever."""


class ResourceError(PodiumError):
    """The cluster lacks what the run asks for."""


class WorkerError(PodiumError):
    """A worker's method raised. The remote traceback is part of the message."""

    def __init__(self, role: str, rank: int, method: str, cause: str, remote_traceback: str = "") -> None:
        self.role, self.rank, self.method = role, rank, method
        self.cause, self.remote_traceback = cause, remote_traceback
        message = f"{role} worker, rank {rank}, failed in {method}(): {cause}"
        if remote_traceback:
            message += f"\n--- traceback in the worker ---\n{remote_traceback.rstrip()}"
        super().__init__(message)

    def __reduce__(self) -> tuple[type[WorkerError], tuple[str, int, str, str, str]]:
        return type(self), (self.role, self.rank, self.method, self.cause, self.remote_traceback)


class WorkerDied(WorkerError):
    """The worker's process is gone."""


class WorkerTimeout(PodiumError, TimeoutError):
    """A worker did not answer within its limit. `role` and `rank` say which, of several the first."""

    def __init__(self, message: str, role: str | None = None, rank: int | None = None) -> None:
        self.role, self.rank = role, rank
        super().__init__(message)


class RolloutError(PodiumError):
    """The rollout engine failed or was misused."""


class PublishError(PodiumError):
    """The rollout engine does not hold the weights that were trained."""


class TrainingError(PodiumError):
    """Training cannot go on."""


class CheckpointError(PodiumError):
    """A checkpoint is missing, partial or corrupt."""
