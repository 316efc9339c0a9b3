"""How does a run keep intermediate results for a later start? In JSON files, written in one step, with their origin."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpzoo.reproductions import provenance
from gpzoo.reproductions.experiment import ReproductionError


def write_json(path: Path, content: Any) -> None:
    """Write JSON under ``path`` in one step: a reader sees the old file or the whole new one.

    Raises:
        OSError: if the folder cannot be written, the disk is full, or ``path`` is no regular file; ``path`` is then
            unchanged.
    """
    from gpzoo.inference.programs.files import replacing  # JAX is imported with it

    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write(json.dumps(content, indent=2, allow_nan=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        ReproductionError: if it does not hold JSON.
        OSError: if it cannot be read.
    """
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ReproductionError(f"{path} is damaged ({error}).") from error


def kept(path: Path, made_by: Mapping[str, Any], make: Callable[[], Any]) -> Any:
    """The result of ``make`` from an earlier start with the same program, settings and data; else its result now.

    Args:
        path: the file for the result and its origin.
        made_by: the result of :meth:`Run.made_by`.
        make: makes the result, which must have a JSON form.
    """
    made_by = {"program": provenance.program(), **made_by}
    content = kept_content(path, made_by)
    if content is None:
        content = as_json(make())
        keep_content(path, made_by, content)
    return content


def kept_content(path: Path, made_by: Mapping[str, Any]) -> Any:
    """The content from :func:`keep_content`; ``None`` if it is missing, is damaged, or has another origin."""
    try:
        found = read_json(path)
    except (ReproductionError, OSError):
        return None
    return found.get("content") if isinstance(found, dict) and found.get("made_by") == as_json(made_by) else None


def keep_content(path: Path, made_by: Mapping[str, Any], content: Any) -> None:
    """Write an intermediate result with its origin, and the commit for human readers.

    Raises:
        OSError: as :func:`write_json`.
    """
    write_json(path, {"made_by": as_json(made_by), "commit": provenance.commit(), "content": content})


def as_json(content: Any) -> Any:
    """The content after a round trip through JSON."""
    return json.loads(json.dumps(content, allow_nan=False, default=_plain))


def _plain(value: Any) -> Any:
    """NumPy and JAX numbers and arrays, and paths, as JSON."""
    if hasattr(value, "__array__"):
        import numpy as np

        return np.asarray(value).tolist()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} {value!r} has no JSON form")
