"""Files that are written in one step, with named arrays in one file and every byte under a hash.

The first line is the sha256 of the second. The second line is the description in JSON, with type, shape and sha256 of
each array; the bytes of the arrays follow. Nothing in a file is interpreted before its hash is checked, and no more is
read than the file holds. A file contains only numbers and JSON, so that reading it cannot run code.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random

#: Largest number of bytes of a description.
_MOST_DESCRIBED = 2**26

#: Largest number of arrays that a message names.
_MOST_NAMED = 4

#: First letters of the names of temporary files.
TEMPORARY = ".gpzoo-"

_KINDS = {
    "a folder": stat.S_ISDIR,
    "a pipe": stat.S_ISFIFO,
    "a socket": stat.S_ISSOCK,
    "a device": lambda mode: stat.S_ISCHR(mode) or stat.S_ISBLK(mode),
}


def target(path: Path) -> Path:
    """The file that a new file replaces: ``path`` itself or, if ``path`` is a symbolic link, the target of the link.

    Raises:
        OSError: if there is something that is not a regular file, such as a folder.
    """
    found = Path(os.path.realpath(path))
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(mode := os.stat(found).st_mode):
            kind = next((name for name, is_one in _KINDS.items() if is_one(mode)), "no regular file")
            what = f"it leads to {found}, {kind}" if path.is_symlink() else f"it is {kind}"
            raise OSError(errno.EINVAL, f"{what}, and only a regular file is replaced; give another path", str(path))
    return found


@contextmanager
def replacing(path: Path, suffix: str = ".part") -> Iterator[Path]:
    """A temporary path. Its file replaces the file of ``path`` if the ``with`` block succeeds; otherwise it is removed.

    The temporary file is new, lies in the same folder, and has a short name that nobody else uses. So any number of
    threads and processes may replace one file: the last one that ends leaves its whole file.

    Args:
        path: path of a regular file, of a symbolic link to one, or of a file that does not exist.
        suffix: suffix of the temporary file's name.

    Raises:
        OSError: for the reasons of :func:`target`, or if the folder cannot be written.
    """
    file = target(path)
    temporary = file.with_name(f"{TEMPORARY}{secrets.token_hex(8)}{suffix}")
    try:
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))  # minus the permissions of the umask
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        yield temporary
        with open(temporary, "r+b") as written:
            os.fsync(written.fileno())
        os.replace(temporary, file)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write(path: Path, description: dict[str, Any], arrays: dict[str, np.ndarray], suffix: str = ".part") -> None:
    """Write a file in one step: a reader of ``path`` finds either the previous file or the whole new one.

    Args:
        path: path of the file.
        description: plain values by name. The name ``"arrays"`` is not allowed, because the file uses it itself.
        arrays: arrays by name.
        suffix: suffix of the name of a temporary file in the same folder.

    Raises:
        OSError: if the file cannot be written, or ``path`` is not a regular file.
    """
    described = [[name, str(x.dtype), list(x.shape), _sha256(_bytes(x))] for name, x in arrays.items()]
    line = json.dumps(description | {"arrays": described}).encode() + b"\n"
    with replacing(path, suffix) as temporary, open(temporary, "wb") as file:
        file.write(_sha256(line).encode() + b"\n" + line)
        for array in arrays.values():
            file.write(_bytes(array))
    _sync(temporary.parent)


@contextmanager
def alone_in(folder: Path, busy: Callable[[], object] | None = None) -> Iterator[None]:
    """Lock a folder during the ``with`` block. The lock also ends if this process dies.

    Args:
        folder: the folder.
        busy: called if another process or thread has locked the folder; the call then waits for the end of this lock.

    Raises:
        BlockingIOError: if another process or thread has locked the folder, and ``busy`` is ``None``.
        OSError: if the folder cannot be opened.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if busy is None:
                raise
            busy()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EBADF):  # file systems without such locks
                raise
        yield
    finally:
        os.close(descriptor)


def read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Description and arrays, by name, of an undamaged file.

    Raises:
        OSError: if the file cannot be read.
        ValueError: naming the damaged parts, if there are any.
    """
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise ValueError("it is not a file")  # reading a pipe could wait forever
    with open(path, "rb") as file:
        digest, line = file.readline(66), file.readline(_MOST_DESCRIBED)
        if digest != _sha256(line).encode() + b"\n":
            raise ValueError("its description (what it is of, names, hashes) is damaged")
        try:
            description = json.loads(line)
            described = [_described(*entry) for entry in description["arrays"]]
        except (TypeError, KeyError, ValueError, RecursionError):
            raise ValueError("its description is not one of gpzoo") from None
        arrays = _read_arrays(file, described, os.fstat(file.fileno()).st_size - len(digest) - len(line))
    return description, arrays


def _described(name: str, dtype: str, shape: list[int], digest: str) -> tuple[str, np.dtype, list[int], str]:
    """One array's entry of a description, checked, because the file is not trusted."""
    kind = np.dtype(dtype) if isinstance(dtype, str) else None
    fine = kind is not None and kind.itemsize and not kind.hasobject and kind.names is None and kind.subdtype is None
    sizes = isinstance(shape, list) and len(shape) <= 32 and all(type(n) is int and 0 <= n < 2**48 for n in shape)
    if kind is None or not (fine and sizes and isinstance(name, str) and isinstance(digest, str)):
        raise ValueError("no array")
    return name, kind, shape, digest


def _read_arrays(file: BinaryIO, described: list[tuple], left: int) -> dict[str, np.ndarray]:
    """The arrays, from a file with ``left`` more bytes."""
    arrays, bad = {}, []
    for name, dtype, shape, digest in described:
        content = file.read(min(math.prod(shape) * dtype.itemsize, left))
        left -= len(content)
        if len(content) == math.prod(shape) * dtype.itemsize and _sha256(content) == digest:
            arrays[name] = np.frombuffer(content, dtype).reshape(shape)
        else:
            bad.append(name)
    if bad:
        more = f" and {len(bad) - _MOST_NAMED} more" if len(bad) > _MOST_NAMED else ""
        raise ValueError(f"{', '.join(bad[:_MOST_NAMED])}{more} damaged")
    if left:
        raise ValueError("it continues after its end")
    return arrays


def checked_path(name: str, path: Any, kind: str, *, none: str = ",", empty: str = "") -> Path:
    """The path of a file or folder.

    Args:
        name: name of the argument.
        path: the value that was given.
        kind: ``"a file"`` or ``"a folder"``.
        none: words about values that are allowed in place of a path, for the message of the ``TypeError``.
        empty: words about an empty path, for the message of the ``ValueError``.

    Raises:
        TypeError: if ``path`` is not a path.
        ValueError: if ``path`` is empty, or has characters that a path cannot have.
    """
    if not isinstance(path, str | os.PathLike) or isinstance(os.fspath(path), bytes):
        raise TypeError(f"{name} must be the path of {kind}{none} got {path!r:.80}.")
    if not str(path).strip():
        raise ValueError(f"{name} must be the path of {kind}, got {path!r}{empty}.")
    try:
        impossible = b"\0" in os.fsencode(path)
    except UnicodeEncodeError:
        impossible = True
    if impossible:
        raise ValueError(f"{name} must be the path of {kind}, got {path!r}: no path has such characters.")
    return Path(path).absolute()


def numbers(leaf: Any) -> np.ndarray:
    """An array on the host; for a random key, its words."""
    return np.asarray(random.key_data(leaf) if is_key(leaf) else leaf)


def on_device(value: np.ndarray, key: Any = None) -> Array:
    """A copy on the device of the result of :func:`numbers`; ``key`` is the implementation of a random key."""
    copied = jnp.array(value)
    return copied if key is None else random.wrap_key_data(copied, impl=key)


def is_key(x: Any) -> bool:
    """Whether ``x`` is a typed random key, which is saved by its ``jax.random.key_data``."""
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _bytes(array: np.ndarray) -> np.ndarray:
    # Types that NumPy does not know, such as bfloat16, do not export a buffer.
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _sha256(content: Any) -> str:
    return hashlib.sha256(content).hexdigest()


def _sync(directory: Path) -> None:
    """Make the renaming of a file survive a loss of power, on systems that can synchronise folders."""
    if os.name == "posix":
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
