"""Run directories: what a run leaves behind, written atomically, loaded strictly, without pickle."""

from recombine.store.checkpoint import DamagedError, digest_tensors
from recombine.store.directory import FORMAT_VERSION, LockedError, RunDirectory, hash_config
from recombine.store.environment import describe_environment, hash_source
from recombine.store.find import find_runs
from recombine.store.schema import (
    CertificateDict,
    CheckpointInfo,
    ConfigFile,
    Environment,
    EnvironmentFile,
    Interval,
    Json,
    MetricsRow,
    ResultFile,
    SplitFile,
    Stretch,
    Versions,
)

__all__ = [
    "FORMAT_VERSION",
    "CertificateDict",
    "CheckpointInfo",
    "ConfigFile",
    "DamagedError",
    "Environment",
    "EnvironmentFile",
    "Interval",
    "Json",
    "LockedError",
    "MetricsRow",
    "ResultFile",
    "RunDirectory",
    "SplitFile",
    "Stretch",
    "Versions",
    "describe_environment",
    "digest_tensors",
    "find_runs",
    "hash_config",
    "hash_source",
]
