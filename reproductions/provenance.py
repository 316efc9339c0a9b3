"""Which program made a file? Its commit, whether it was changed since, and the hash of its source.

A result names in ``commit`` the commit in which its training began, in ``clean`` whether every start ran programs as
committed, in ``commits`` those of all starts, and in ``versions`` gpzoo's and those of its libraries. In a checkout a
run without a commit is refused; an installed package has none, and its version stands for it. A result without
settings is refused too.
"""

from __future__ import annotations

import hashlib
import subprocess
from functools import cache
from importlib import import_module
from pathlib import Path

from gpzoo.reproductions.experiment import ReproductionError

#: The checkout, if there is one.
_ROOT = Path(__file__).resolve().parents[1]

_PACKAGES = ("gpzoo", "gpzoo.inference", "gpzoo.models", "gpzoo.reproductions")


@cache
def commit() -> str | None:
    """Full hash of the checkout's commit; ``None`` outside a git checkout."""
    top = _git("rev-parse", "--show-toplevel")
    # An installed package may lie inside another project's checkout.
    if top is None or Path(top).resolve() != _ROOT:
        return None
    return _git("rev-parse", "HEAD")


def recorded() -> dict[str, str | bool | None]:
    """What a start of a run records of its program.

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
    """Whether all programs are as committed; ``None`` outside a git checkout."""
    if commit() is None:
        return None
    changed = _git("status", "--porcelain", "--", "*.py", "pyproject.toml")
    return None if changed is None else not changed


@cache
def program() -> str:
    """The sha256 of gpzoo's source files: equal if and only if the same program runs, committed or not."""
    found = hashlib.sha256()
    for package in _PACKAGES:
        folder = Path(import_module(package).__path__[0])
        for path in sorted(folder.rglob("*.py")):
            found.update(f"{package}/{path.relative_to(folder).as_posix()}\0".encode())
            found.update(path.read_bytes() + b"\0")
    return found.hexdigest()


def _git(*args: str) -> str | None:
    """The output of a git command, or ``None`` without git or a checkout that it trusts."""
    try:
        done = subprocess.run(
            ("git", "-C", str(_ROOT), *args), capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
