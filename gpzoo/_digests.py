"""Digests of arrays, with which files and trainings recognise equal numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np


def fingerprint(arrays: Mapping[str, np.ndarray]) -> str:
    """The sha256 of named arrays: names, dtypes, shapes and values, the same on every machine."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        # Arrays of types that NumPy does not know, such as bfloat16, do not export a buffer.
        digest.update(array.reshape(-1).view(np.uint8))
    return digest.hexdigest()
