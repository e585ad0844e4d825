"""What a peer's process is told: one environment variable, read here only."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

VARIABLE = "STREAMSERVE_BENCH_PEER"
#: Set alike wherever a client lets us.
SESSION_TIMEOUT_MS = 6_000
FETCH_WAIT_MS = 100
COMMIT_EVERY_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSettings:
    bootstrap_servers: str
    group: str
    requests_topic: str
    answers_topic: str
    middle_topic: str = ""
    model_files: tuple[str, ...] = ()
    max_records: int = 500

    @property
    def models(self) -> list[Path]:
        return [Path(file) for file in self.model_files]

    def environment(self) -> dict[str, str]:
        return {VARIABLE: orjson.dumps(asdict(self)).decode()}

    @classmethod
    def from_environment(cls) -> PeerSettings:
        fields = orjson.loads(os.environ[VARIABLE])
        return cls(**{**fields, "model_files": tuple(fields["model_files"])})
