"""Random keys by name: the draws for one purpose do not depend on any other draws."""

from __future__ import annotations

import zlib

import numpy as np
from jax import random
from jaxtyping import PRNGKeyArray


def named_key(key: PRNGKeyArray, name: str) -> PRNGKeyArray:
    """The key for one purpose, such as ``"rows"`` or a site's name; equal names give equal keys on every machine."""
    # A Python number would need a program of its own to convert it.
    return random.fold_in(key, np.uint32(zlib.crc32(name.encode())))
