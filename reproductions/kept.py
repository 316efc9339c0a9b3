"""What do the starts of a run keep for one another? JSON files, written in one step, with what made them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np

from gpzoo.reproductions import provenance
from gpzoo.reproductions.experiment import ReproductionError


def write_json(path: Path, content: Any) -> None:
    """Write JSON under ``path`` in one step: a reader sees the old file or the whole new one.

    Raises:
        OSError: if the folder cannot be written to or the disk is full; ``path`` is then as it was.
    """
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write(json.dumps(content, indent=2, allow_nan=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` which takes its place if the block succeeds and is removed if it does not."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        ReproductionError: if it is not one.
        OSError: if it cannot be read.
    """
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ReproductionError(f"{path} is damaged ({error}).") from error


def kept(path: Path, made_by: Mapping[str, Any], make: Callable[[], Any]) -> Any:
    """What ``make`` gave in an earlier start, if the same program, settings and data made it; else what it gives now.

    Args:
        path: the file that keeps it, with what made it.
        made_by: as :meth:`Run.made_by` gives it.
        make: gives something that has a JSON form.
    """
    made_by = {"program": provenance.program(), **made_by}
    content = kept_content(path, made_by)
    if content is None:
        content = as_json(make())
        keep_content(path, made_by, content)
    return content


def kept_content(path: Path, made_by: Mapping[str, Any]) -> Any:
    """What :func:`keep_content` wrote; ``None`` if there is nothing, it is damaged, or something else made it."""
    try:
        found = read_json(path)
    except (ReproductionError, OSError):
        return None
    return found.get("content") if isinstance(found, dict) and found.get("made_by") == as_json(made_by) else None


def keep_content(path: Path, made_by: Mapping[str, Any], content: Any) -> None:
    """Write an intermediate result with what made it, and the commit for whoever reads the file.

    Raises:
        OSError: as :func:`write_json`.
    """
    write_json(path, {"made_by": as_json(made_by), "commit": provenance.commit(), "content": content})


def as_json(content: Any) -> Any:
    """What comes back when this is written as JSON and read again."""
    return json.loads(json.dumps(content, allow_nan=False, default=_plain))


def _plain(value: Any) -> Any:
    """NumPy and JAX numbers and arrays, and paths, as JSON."""
    if isinstance(value, np.generic | np.ndarray | jax.Array):
        return np.asarray(value).tolist()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} {value!r} has no JSON form")
