"""Files of a run that record the program that made them: results, and intermediate results.

Four fields of a result describe its program. ``commit`` is the commit in which its training began. ``clean`` says
whether every start ran programs as committed. ``commits`` has the commits of all starts. ``versions`` has the versions
of gpzoo and its libraries. In a checkout, a run without a commit is refused. An installed package has no commit, and
its version replaces it. A result without settings is also refused. Intermediate results are kept in JSON files, which
are written in one step, with the hash of the source files. A later start takes them only from the same program,
committed or not.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from gpzoo.reproductions.experiment import ReproductionError

#: The checkout, if there is one.
_ROOT = Path(__file__).resolve().parents[1]

_PACKAGES = ("gpzoo", "gpzoo.inference", "gpzoo.models", "gpzoo.reproductions")


@cache
def commit() -> str | None:
    """Full hash of the checkout's commit; ``None`` outside a git checkout."""
    top = _git("rev-parse", "--show-toplevel")
    # An installed package may be inside the checkout of another project.
    if top is None or Path(top).resolve() != _ROOT:
        return None
    return _git("rev-parse", "HEAD")


def recorded() -> dict[str, str | bool | None]:
    """The record of the program for a start of a run.

    Raises:
        ReproductionError: if the commit of a checkout cannot be read.
    """
    if commit() is None and (_ROOT / ".git").exists():
        raise ReproductionError(
            f"The commit of the checkout in {_ROOT} cannot be read, and no result is recorded without it: git must be "
            "installed and trust the folder (git status says), and there must be a commit."
        )
    return {"commit": commit(), "clean": clean(), "program": program()}


@cache
def clean() -> bool | None:
    """Whether all programs and the settings beside them are as committed; ``None`` outside a git checkout."""
    if commit() is None:
        return None
    changed = _git("status", "--porcelain", "--", "*.py", "*.toml")
    return None if changed is None else not changed


@cache
def program() -> str:
    """The sha256 of gpzoo's source files and settings. It is equal if and only if the same program runs."""
    found = hashlib.sha256()
    for package in _PACKAGES:
        folder = Path(import_module(package).__path__[0])
        for path in sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".toml")):
            found.update(f"{package}/{path.relative_to(folder).as_posix()}\0".encode())
            found.update(path.read_bytes() + b"\0")
    return found.hexdigest()


def _git(*args: str) -> str | None:
    """The output of a git command; ``None`` without git, or without a checkout that git trusts."""
    command = ("git", "-C", str(_ROOT), *args)
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step: readers see the old file or the whole new file.

    Raises:
        OSError: if the folder cannot be written, the disk is full, or ``path`` is not a regular file. The file at
            ``path`` is then unchanged.
    """
    from gpzoo.inference.programs.files import replacing  # this import also imports JAX

    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    """Write JSON under ``path``, as :func:`write_text` does."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        ReproductionError: if the file does not contain JSON.
        OSError: if the file cannot be read.
    """
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ReproductionError(f"{path} is damaged ({error}).") from error


def kept(path: Path, made_by: Mapping[str, Any], make: Callable[[], Any]) -> Any:
    """The result of ``make``; read from ``path`` if an earlier call had the same program, settings and data.

    Args:
        path: the file for the result and its origin.
        made_by: the result of :meth:`Run.made_by`.
        make: a function that makes the result, which must have a JSON form.
    """
    made_by = {"program": program(), **made_by}
    if (content := kept_content(path, made_by)) is None:
        keep_content(path, made_by, content := as_json(make()))
    return content


def kept_content(path: Path, made_by: Mapping[str, Any]) -> Any:
    """The content that :func:`keep_content` wrote; ``None`` if it is missing or damaged, or has another origin."""
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
    write_json(path, {"made_by": as_json(made_by), "commit": commit(), "content": content})


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
