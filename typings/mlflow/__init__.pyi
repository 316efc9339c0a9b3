"""What gpzoo uses of MLflow, which is only installed where it is asked for."""

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

entities: ModuleType

class MlflowClient:
    def log_batch(self, run_id: str, metrics: Sequence[Any]) -> None: ...

def active_run() -> Any: ...
def log_metrics(metrics: Mapping[str, float], step: int | None = None) -> None: ...
