"""Arguments as users pass them: odd ones that mean an array, and bad ones that mean none, drawn by hypothesis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pandas as pd
import scipy.sparse
from hypothesis import strategies as st


@dataclass(frozen=True)
class Odd:
    """What is passed, and the plain array that it means, ``None`` where it must be refused."""

    what: str
    value: Any
    plain: np.ndarray | None = None

    def __repr__(self) -> str:
        return f"Odd({self.what})"


class Holder:
    """Somebody else's array."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if isinstance(self.array, Exception):
            raise self.array
        return np.asarray(self.array, dtype)


def _strided(x: np.ndarray) -> np.ndarray:
    wide = np.zeros((2 * x.shape[0], *x.shape[1:]), x.dtype)
    wide[::2] = x
    return wide[::2]


def _frozen(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x.flags.writeable = False
    return x


def _frame(x: np.ndarray) -> Any:
    return pd.DataFrame(x) if x.ndim == 2 else pd.Series(x)


#: Forms of an array that mean the same numbers.
FORMS = {
    "numpy": lambda x: x,
    "jax": jnp.asarray,
    "big-endian": lambda x: x.astype(x.dtype.newbyteorder(">")),
    "little-endian": lambda x: x.astype(x.dtype.newbyteorder("<")),
    "strided": _strided,
    "Fortran order": np.asfortranarray,
    "backwards": lambda x: x[::-1].copy()[::-1],
    "read-only": _frozen,
    "pandas": _frame,
    "pandas columns of objects": lambda x: _frame(x).convert_dtypes(),
    "list": lambda x: x.tolist(),
    "tuple": lambda x: tuple(map(tuple, x.tolist())) if x.ndim == 2 else tuple(x.tolist()),
    "list of scalars": lambda x: [list(row) for row in x] if x.ndim == 2 else list(x),
    "__array__": Holder,
    "subclass": lambda x: x.view(type("Own", (np.ndarray,), {})),
}

#: Kinds of numbers.
DTYPES = ("float64", "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "bool", "float32")


@st.composite
def numbers(draw: Any, shape: tuple[int, ...], dtype: str, classes: int | None) -> np.ndarray:
    """Numbers that ``dtype`` holds: labels where there are classes, else around zero."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if classes is not None:
        return rng.integers(0, 2 if dtype == "bool" else classes, shape).astype(dtype)
    if dtype.startswith("float"):
        return rng.standard_normal(shape).astype(dtype)
    low = 0 if dtype.startswith("u") or dtype == "bool" else -50
    return rng.integers(low, 2 if dtype == "bool" else 50, shape).astype(dtype)


@st.composite
def meaningful(draw: Any, shape: tuple[int, ...], dtypes: tuple[str, ...], classes: int | None = None) -> Odd:
    """An array in an unusual form, or of an unusual kind of numbers."""
    dtype, form = draw(st.sampled_from(dtypes)), draw(st.sampled_from(sorted(FORMS)))
    x = draw(numbers(shape, dtype, classes))
    return Odd(f"{form} of {dtype}", FORMS[form](x), np.array(x.tolist(), np.float64))


def _with(x: np.ndarray, value: Any, where: int) -> np.ndarray:
    x = x.copy()
    x.flat[where % x.size] = value
    return x


#: What is done to an array ``x``, at a place ``i``, that must be refused.
BAD = {
    "NaN": lambda x, i: _with(x, np.nan, i),
    "NaN in JAX": lambda x, i: jnp.asarray(_with(x, np.nan, i)),
    "NaN in pandas": lambda x, i: _frame(_with(x, np.nan, i)),
    "NaN in a list": lambda x, i: _with(x, np.nan, i).tolist(),
    "NaN, big-endian": lambda x, i: _with(x, np.nan, i).astype(">f8"),
    "infinity": lambda x, i: _with(x, np.inf, i),
    "minus infinity": lambda x, i: jnp.asarray(_with(x, -np.inf, i)),
    "infinity in float32": lambda x, i: _with(x.astype(np.float32), np.inf, i),
    "NaT": lambda x, i: np.full(x.shape, "NaT", "datetime64[s]"),
    "masked": lambda x, i: np.ma.masked_array(x, np.arange(x.size).reshape(x.shape) == i % x.size),
    "masked, no mask": lambda x, i: np.ma.masked_array(x),
    "holder of a masked array": lambda x, i: np.ma.masked_array(x, x > 0),
    "complex128": lambda x, i: x.astype(complex),
    "complex64": lambda x, i: jnp.asarray(x.astype(np.complex64)),
    "complex in a list": lambda x, i: x.astype(complex).tolist(),
    "object": lambda x, i: x.astype(object),
    "object with None": lambda x, i: _with(x.astype(object), None, i),
    "list with None": lambda x, i: _with(x.astype(object), None, i).tolist(),
    "list with text": lambda x, i: _with(x.astype(object), "three", i).tolist(),
    "strings": lambda x, i: x.astype(str),
    "bytes": lambda x, i: x.astype(bytes),
    "pandas of text": lambda x, i: _frame(x.astype(str)),
    "dates": lambda x, i: np.full(x.shape, "2020-01-01", "datetime64[D]"),
    "durations": lambda x, i: np.full(x.shape, 3, "timedelta64[s]"),
    "pandas of dates": lambda x, i: _frame(np.full(x.shape, "2020-01-01", "datetime64[s]")),
    "float16": lambda x, i: x.astype(np.float16),
    "float16 of JAX": lambda x, i: jnp.asarray(x, jnp.float16),
    "bfloat16": lambda x, i: jnp.asarray(x, jnp.bfloat16),
    "bfloat16 of NumPy": lambda x, i: x.astype(ml_dtypes.bfloat16),
    "float8": lambda x, i: x.astype(ml_dtypes.float8_e4m3fn),
    "long double": lambda x, i: x.astype(np.longdouble),
    "records": lambda x, i: np.zeros(x.shape, [("a", float), ("b", int)]),
    "no rows": lambda x, i: x[:0],
    "no rows in JAX": lambda x, i: jnp.asarray(x[:0]),
    "no rows in a list": lambda x, i: [],
    "no columns": lambda x, i: np.zeros((*x.shape, 0)),
    "ragged": lambda x, i: [[1.0] * (1 + k % 2) for k in range(len(x))],
    "text": lambda x, i: "some text"[: 1 + i % 9],
    "byte string": lambda x, i: b"some bytes",
    "a number": lambda x, i: float(i),
    "a whole number": lambda x, i: i,
    "a NumPy number": lambda x, i: np.float64(i),
    "no axis": lambda x, i: np.array(float(i)),
    "no axis in JAX": lambda x, i: jnp.asarray(float(i)),
    "a bool": lambda x, i: bool(i % 2),
    "a set": lambda x, i: set(range(1 + i % 5)),
    "a generator": lambda x, i: (value for value in x),
    "an iterator": lambda x, i: iter(x.tolist()),
    "an object": lambda x, i: object(),
    "an ellipsis": lambda x, i: ...,
    "a function": lambda x, i: np.sin,
    "a type": lambda x, i: np.ndarray,
    "sparse": lambda x, i: scipy.sparse.csr_array(x.reshape(len(x), -1)),
    "sparse matrix": lambda x, i: scipy.sparse.coo_matrix(x.reshape(len(x), -1)),
    "categorical": lambda x, i: pd.Series(pd.Categorical(np.arange(len(x)) % (2 + i % 3))),
    "an array that fails": lambda x, i: Holder(RuntimeError("no such buffer")),
    "random keys": lambda x, i: jax.random.split(jax.random.key(i % 1000), len(x)),
}
#: Of several columns, where the first need not be of the kind of the second.
BAD_FRAMES = {
    "frame with text": lambda x, i: pd.DataFrame({"a": x[:, 0], "b": ["one"] * len(x)}),
    "frame with dates": lambda x, i: pd.DataFrame({"a": x[:, 0], "b": pd.Timestamp("2020-01-01")}),
    "frame with missing": lambda x, i: pd.DataFrame({"a": x[:, 0], "b": pd.array([1, None] * (len(x) // 2), "Int64")}),
    "frame with a category": lambda x, i: pd.DataFrame({"a": x[:, 0], "b": pd.Categorical(["u", "v"] * (len(x) // 2))}),
}


@st.composite
def meaningless(draw: Any, shape: tuple[int, ...]) -> Odd:
    """What must be refused."""
    kinds = BAD | (BAD_FRAMES if len(shape) == 2 else {})
    what, i = draw(st.sampled_from(sorted(kinds))), draw(st.integers(0, 2**20))
    x = draw(numbers(shape, "float64", None))
    return Odd(what, kinds[what](x, i))


#: What counts, keys and numbers must not be.
JUNK = st.one_of(
    st.sampled_from([None, "ten", b"1", (), [], {}, object(), np.sin, float("nan"), float("inf"), 1j, "40"]),
    st.floats(-1e6, 1e6).filter(lambda v: v != int(v)),
)
COUNTS = st.one_of(JUNK, st.integers(-(2**40), 0), st.booleans(), st.integers(1, 9).map(float), st.just(np.arange(3)))
NUMBERS = st.one_of(
    st.sampled_from([None, "ten", (), {}, np.sin, float("nan"), float("inf"), -float("inf"), 1j, True, False, 0, 0.0]),
    st.floats(-1e6, -1e-6),
    st.integers(-(2**40), -1),
    st.just(np.arange(3.0)),
)
KEYS = st.one_of(
    JUNK,
    st.integers(-5, 2**31),
    st.sampled_from([np.zeros(2), np.zeros(2, np.int64), np.uint32(3), jnp.zeros(2), np.zeros(3, object)]),
)
