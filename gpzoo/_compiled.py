"""Compiled programs, kept between processes in a folder of the user's cache; only the user may write to it."""

from __future__ import annotations

import atexit
import hashlib
import os
import platform
import stat
import warnings
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import jax

#: Environment variable that names another folder. With ``off``, no program is kept.
VARIABLE = "GPZOO_COMPILED"

#: Largest number of bytes in the folder of one machine and version. If there are more when a process starts, the oldest
#: entries are removed until half of this number is left.
_MOST = 2**31


@cache
def keep_compiled() -> None:
    """Let JAX keep its compiled programs in a folder, unless the user has set JAX's own folder, or wants no folder.

    Compiled programs are executables, so the folder must belong to the user. JAX's key of an entry contains the version
    of JAX and the compiler's flags, but not the processor. So the name of the folder depends on the processor.
    """
    named, config = os.environ.get(VARIABLE, ""), cast("Any", jax.config)
    if named == "off" or config.jax_compilation_cache_dir or not config.jax_enable_compilation_cache:
        return
    versions = f"{version('jax')} {version('jaxlib')}".encode()
    try:
        if not named:
            import platformdirs

            named = platformdirs.user_cache_dir("gpzoo")
        folder = Path(named) / "compiled" / hashlib.sha256(versions + processor()).hexdigest()[:16]
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_own(folder):
            warnings.warn(
                f"{folder} belongs to somebody else, or others may write to it, so that no compiled program is kept "
                f"there. Delete it, or name another folder by the environment variable {VARIABLE}, or 'off'.",
                stacklevel=2,
            )
            return
        _sweep(folder)
        mark = folder / f"{os.getpid()}.running"
        mark.touch()
    except OSError:
        return  # there is no home folder, or no permission to write there
    atexit.register(mark.unlink, missing_ok=True)
    config.update("jax_compilation_cache_dir", str(folder))
    # A training compiles dozens of programs, most of them in less than a second. By default, JAX does not keep these.
    config.update("jax_persistent_cache_min_compile_time_secs", 0)
    config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # If JAX has compiled a program before, it has looked for a folder and remembers that there is none.
    from jax.experimental.compilation_cache import compilation_cache

    compilation_cache.reset_cache()


def processor() -> bytes:
    """The features of this machine's processor that compiled programs may use."""
    try:
        return next(line for line in Path("/proc/cpuinfo").read_bytes().splitlines() if line.startswith(b"flags"))
    except (OSError, StopIteration):
        return platform.processor().encode()


def _is_own(folder: Path) -> bool:
    """Whether the folder belongs to the user and only the user may write to it; true on systems without user ids."""
    if not hasattr(os, "getuid"):
        return True
    found = folder.stat()
    return found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _sweep(folder: Path) -> None:
    """Remove entries that killed processes may have left incomplete, and the oldest entries if there are too many.

    JAX writes an entry in place and never rewrites it. So every later process would read an incomplete entry and warn
    of it. JAX's own limit, ``jax_compilation_cache_max_size``, is not used for three reasons. It needs ``filelock``,
    which JAX does not install. It holds a lock at every read. And at every write, it reads a file for every entry,
    although a folder can have ten thousand entries.
    """
    marks, entries = {}, {}
    # Only removed entries become ``Path`` objects. For thousands of entries, this would take longer than a training.
    with os.scandir(folder) as found:
        for entry in found:
            with suppress(OSError):
                (marks if entry.name.endswith(".running") else entries)[entry.name] = entry.stat()
    for mark, begun in marks.items():
        process = mark.removesuffix(".running")
        if process.isdigit() and not _runs(int(process)):
            for name in [name for name, entry in entries.items() if entry.st_mtime >= begun.st_mtime]:
                del entries[name]
                (folder / name).unlink(missing_ok=True)
            (folder / mark).unlink(missing_ok=True)
    size = sum(entry.st_size for entry in entries.values())
    if size > _MOST:
        for name, entry in sorted(entries.items(), key=lambda item: item[1].st_mtime):
            (folder / name).unlink(missing_ok=True)
            size -= entry.st_size
            if size <= _MOST // 2:
                break


def _runs(process: int) -> bool:
    """Whether a process of this number runs; true if the system cannot tell."""
    if os.name != "posix":
        return True  # elsewhere, os.kill would end the process
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
