"""The gate for what users pass in; each refusal names the argument, what was wrong with it, and the way out.

Entry points call :func:`arguments`, :func:`parameters` and :func:`rng_key`; the others are single checks.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from numpyro import handlers

from gpzoo._numpyro import Messenger, handlers_around_mcmc
from gpzoo.errors import PrecisionWarning


def is_concrete(x: Any) -> bool:
    """Whether ``x`` holds numbers that can be looked at (not a tracer of a transformed function)."""
    return not isinstance(x, Tracer)


def floating(name: str, x: Any) -> Array:
    """``x`` as a floating array of its own precision.

    Raises:
        TypeError: if ``x`` is not numeric (strings, objects, complex numbers).
    """
    if x is None or isinstance(x, str):
        raise TypeError(f"{name} must be a numeric array, got {type(x).__name__}.")
    try:
        x = jnp.asarray(x)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be a numeric array, got {type(x).__name__}: {error}") from None
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        raise TypeError(f"{name} must be real, got dtype {x.dtype}.")
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.result_type(float))


def finite(name: str, x: Any) -> None:
    """Refuse NaN and infinity in a concrete array; under a transformation nothing can be checked.

    Raises:
        ValueError: naming the first bad entry.
    """
    if not is_concrete(x):
        return
    with jax.ensure_compile_time_eval():
        good = np.asarray(jnp.isfinite(x))
    if not good.all():
        first = tuple(int(i) for i in np.argwhere(~good)[0])
        count = int((~good).sum())
        raise ValueError(
            f"{name} has {count} entries that are not finite, the first at index {first}. "
            "Remove or impute those rows before they reach the model."
        )


def not_empty(name: str, x: Array) -> None:
    """Refuse an array without rows.

    Raises:
        ValueError: if the leading axis has length 0.
    """
    if x.ndim == 0 or x.shape[0] == 0:
        raise ValueError(f"{name} is empty: its shape is {tuple(x.shape)}, at least one row is needed.")


def positive_int(name: str, value: Any) -> int:
    """``value``, if it is a count of at least one.

    Raises:
        ValueError: if it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {_said(value)}.")
    return int(value)


def _said(value: Any) -> str:
    """A value in a message, which an array would fill."""
    return f"an array of shape {np.shape(value)}" if np.ndim(value) else repr(value)


def fraction(name: str, value: float) -> float:
    """``value``, if it is a squashing constant in ``[0, 0.5)``.

    Raises:
        ValueError: if it is not.
    """
    if not 0.0 <= value < 0.5:
        raise ValueError(f"{name} must be in [0, 0.5), got {value!r}.")
    return float(value)


# -- data --------------------------------------------------------------------------------------------------------------

#: What data are, for messages.
_WANTED = "real numbers of float32, float64, integers or bool"

#: Spreads that rounding may take from a column: of columns so far from zero float32 keeps three digits or fewer.
_ROUNDING = 1e-3

#: Whole numbers below this are labels, counts or years, which float32 holds exactly.
_WHOLE = 2.0**24

#: Numbers of an array that are looked at for the spread of its columns.
_LOOKED_AT = 2**18


#: Arrays that hold NaN, each with the error that refuses it.
Absent: TypeAlias = list[tuple[Any, ValueError]]


def data(name: str, x: Any, *, infinite: bool = False, absent: Absent | None = None) -> Any:
    """``x`` as an array of real finite numbers: the one way in for data, whoever holds them.

    Taken are arrays of NumPy (of any byte order and stride), of JAX, of pandas, of anything with ``__array__``, and
    nested lists of numbers. Arrays of the host stay there, those of a device as they are; nothing is copied that need
    not be. Integers and bools stay what they are. Under a transformation nothing can be checked.

    Args:
        name: of the argument, for messages.
        x: what the user passed.
        infinite: whether infinity passes, which may be a bound or a threshold.
        absent: takes an array that holds NaN, which then passes; the caller refuses it where NaN are not missing data.

    Returns:
        A NumPy array in the machine's byte order, or the JAX array itself.

    Raises:
        TypeError: if it does not hold real numbers of float32, float64, integers or bool.
        ValueError: for masked arrays, ragged lists, an axis of length 0, NaN, infinity, and numbers that do not fit
            into the 32 bits that JAX will store them in.
    """
    if not is_concrete(x):
        return x
    array = x if isinstance(x, jax.Array) else _host_array(name, x)
    _check_dtype(name, x, array.dtype)
    if 0 in array.shape:
        raise ValueError(f"{name} is empty: its shape is {tuple(array.shape)}, at least one row is needed.")
    _check_numbers(name, array, infinite, absent)
    return array


def rows(name: str, x: Any, hint: str = "", *, absent: Absent | None = None) -> Any:
    """:func:`data` with one row per datum.

    Raises:
        TypeError: as :func:`data`.
        ValueError: as :func:`data`, and for a single number.
    """
    number = isinstance(x, bool | int | float | complex | np.generic)
    if number or np.ndim(array := data(name, x, absent=absent)) == 0:
        found = repr(x) if number else "one number"
        raise ValueError(f"{name} must be an array with one row per datum, got {found}{hint}.")
    return array


def _host_array(name: str, x: Any) -> np.ndarray:
    if isinstance(x, np.ma.MaskedArray):
        raise ValueError(
            f"{name} is a masked array, whose mask would be lost. Pass {name}.filled(0) and the mask as arguments of "
            "their own, and leave what is missing out of the bound with numpyro.handlers.mask(mask=observed)."
        )
    if hasattr(x, "block_rows") and hasattr(x, "read"):
        raise TypeError(
            f"{name} is a table, which fit alone takes whole. Pass arrays of its rows, such as its first, "
            "table.head(1000)[0], or those of one block after the other, table.read(block)[0]."
        )
    if x is None or isinstance(x, str | bytes) or callable(x):
        raise TypeError(f"{name} must be an array of {_WANTED}, got {_kind(x)}.")
    columns = np.atleast_1d(np.asarray(getattr(x, "dtypes", getattr(x, "dtype", None)), object))
    if any(str(column) == "category" for column in columns):
        raise TypeError(f"{name} is categorical. Pass its codes, {name}.cat.codes, or columns of 0 and 1.")
    try:
        array = np.asarray(x)
        kinds = {getattr(column, "kind", "O") for column in columns}
        if array.dtype == object and kinds <= set("iufb"):
            array = x.to_numpy("float64", na_value=np.nan)  # columns of pandas of several dtypes, or of its own
    except Exception as error:  # whatever somebody's __array__ raises
        raise TypeError(
            f"{name} must be an array of {_WANTED}, and this {_kind(x)} cannot be made one: {error}"
        ) from None
    if isinstance(array, np.ma.MaskedArray):
        return _host_array(name, array)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _kind(x: Any) -> str:
    return f"{type(x).__name__} {x!r:.40}" if isinstance(x, str | bytes | bool | int | float) else type(x).__name__


def _check_dtype(name: str, x: Any, dtype: Any) -> None:
    why = f"{name} must hold {_WANTED}, got dtype {dtype}"
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        raise TypeError(f"{why}, a random key.")
    kind = np.dtype(dtype).kind
    if kind in "iub" or np.dtype(dtype) in (np.float32, np.float64):
        return
    if kind == "c":
        raise TypeError(f"{why}: its imaginary part would be lost. Pass {name}.real if that is what is meant.")
    if kind in "Mm":
        raise TypeError(f"{why}: pass numbers, such as the days since the first date.")
    if kind in "OUST":
        raise TypeError(
            f"{why}{f' from {type(x).__name__}' if not isinstance(x, np.ndarray) else ''}. Turn it into numbers first: "
            "missing values, text, categories and sparse matrices have no numbers of their own."
        )
    if kind == "f" or jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(
            f"{why}. Kernels and factorisations are computed in the precision of their inputs, for which these are too "
            f"{'few' if np.dtype(dtype).itemsize < 4 else 'many'} bits: convert it, {name}.astype('float32')."
        )
    raise TypeError(f"{why}. Convert it to float32, float64 or int32.")


#: Arrays that were looked at, with their least and largest number, inside :func:`each_once`.
_LOOKED: ContextVar[dict[int, tuple[Any, Any]] | None] = ContextVar("looked", default=None)


@contextmanager
def each_once() -> Iterator[None]:
    """For a call that asks a model several questions with the same arrays: their numbers are looked at once."""
    token = _LOOKED.set({} if (known := _LOOKED.get()) is None else known)
    try:
        yield
    finally:
        _LOOKED.reset(token)


def _extremes(array: Any) -> tuple[Any, Any] | None:
    """The least and largest number, NaN if there is one; ``None`` where other machines hold a part of the array."""
    if (looked := _LOOKED.get()) is None:
        return _extremes_of(array)
    if id(array) not in looked:
        looked[id(array)] = array, _extremes_of(array)  # the array, so that no other one takes its place in memory
    return looked[id(array)][1]


def _extremes_of(array: Any) -> tuple[Any, Any] | None:
    if isinstance(array, jax.Array):
        if not array.is_fully_addressable:
            return None
        if not _on_host(array):
            with jax.ensure_compile_time_eval():
                return np.asarray(jnp.min(array)), np.asarray(jnp.max(array))
        array = np.asarray(array)
    return array.min(), array.max()


def _on_host(array: Any) -> bool:
    """Whether NumPy can look at an array without a copy."""
    return isinstance(array, np.ndarray) or next(iter(array.devices())).platform == "cpu"


def _check_numbers(name: str, array: Any, infinite: bool, absent: Absent | None) -> None:
    if array.dtype == bool or (extremes := _extremes(array)) is None:
        return
    low, high = extremes
    if array.dtype.kind == "f":
        if np.isnan(low) or not (infinite or (np.isfinite(low) and np.isfinite(high))):
            values = np.asarray(array)
            if absent is None or not np.isnan(low) or (np.isinf(values).any() and not infinite):
                raise _not_finite(name, values, infinite)
            absent.append((array, _not_finite(name, values, infinite)))
            return
        if infinite and np.isinf(max(-low, high)):
            return
    _check_bits(name, array.dtype, low, high)


def fits(name: str, array: np.ndarray) -> None:
    """Refuse numbers that do not fit into the 32 bits that JAX will store them in.

    Raises:
        ValueError: naming the numbers.
    """
    if array.dtype.itemsize == 8 and not jax.config.read("jax_enable_x64"):
        _check_bits(name, array.dtype, array.min(), array.max())


def _check_bits(name: str, dtype: np.dtype, low: Any, high: Any) -> None:
    if dtype.itemsize < 8 or jax.config.read("jax_enable_x64"):
        return
    if dtype.kind == "f":
        if max(-low, high) > np.finfo(np.float32).max:
            raise ValueError(
                f"{name} has numbers up to {max(-low, high):.3g}, more than float32 holds. Scale it, or call "
                "numpyro.enable_x64() first."
            )
        return
    most = np.iinfo("uint32" if dtype.kind == "u" else "int32")
    if low < most.min or high > most.max:
        raise ValueError(
            f"{name} has whole numbers from {low} to {high}, more than {most.dtype} holds: they would change. "
            "Subtract the least, convert it to floating numbers, or call numpyro.enable_x64() first."
        )


def _not_finite(name: str, values: np.ndarray, infinite: bool) -> ValueError:
    good = ~np.isnan(values) if infinite else np.isfinite(values)
    first = tuple(int(i) for i in np.argwhere(~good)[0])
    advice = "Remove or impute those rows"
    if np.isnan(values).any():
        advice += (
            "; missing targets are left out by a likelihood with missing='mask', or by "
            f"`with numpyro.handlers.mask(mask=observed)` around the site of numpy.nan_to_num({name}), where observed "
            f"is ~numpy.isnan({name})"
        )
    return ValueError(
        f"{name} has {int((~good).sum())} entries that are not finite, the first at index {first} ({values[first]}). "
        f"{advice}."
    )


def arguments(
    program: Any,
    args: tuple,
    kwargs: Mapping[str, Any] | None = None,
    *,
    tables: bool = False,
    new: bool = False,
    absent: Absent | None = None,
) -> tuple[tuple, dict[str, Any]]:
    """The arguments of a program, every array of which has passed :func:`data` under the program's name for it.

    Positional arguments are data: arrays with one row per datum, or pytrees of such arrays. Of the keyword arguments
    the arrays are, in which infinity may be a bound; others, lists of numbers among them, are the program's business,
    but for ``num_data``.

    One :class:`PrecisionWarning` names what float32 would lose: numbers far from zero, and inputs of float32 in a
    program that is to compute in float64.

    Args:
        program: for the names of its positional arguments; or those names.
        args: positional arguments.
        kwargs: keyword arguments, by name; ``None`` for none.
        tables: whether ``args`` is a table, which is checked while it is read.
        new: whether they are inputs to predict at, whose own spread says nothing about the data's.
        absent: see :func:`data`.

    Raises:
        TypeError: as :func:`data`, and for ``kwargs`` that are no mapping from names.
        ValueError: as :func:`data`, and for a ``num_data`` that is no count.
    """
    kwargs = {} if kwargs is None else kwargs
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        raise TypeError(
            f"model_kwargs must map names of the program's arguments to values, {{'layers': layers}}; "
            f"got {_kind(kwargs)}."
        )
    lost: list[str] = []
    if not tables:
        names, optional = (program, ()) if isinstance(program, tuple) else positional(program, len(args))
        for name, x in zip(names, args, strict=True):
            if name not in (*optional, *names[1:] * new) and (
                x is None or (isinstance(x, Mapping) and not jax.tree.leaves(x))
            ):
                raise TypeError(f"{name} must be an array of {_WANTED}, got {_kind(x) if x else x}.")
        far = [] if new else lost
        args = tuple(_each(n, x, far, absent, positional=True) for n, x in zip(names, args, strict=True))
        if args and jax.config.read("jax_enable_x64"):
            leaves = [x for x in jax.tree.leaves(args[0]) if getattr(x, "dtype", None) == np.float32]
            if leaves and all(map(is_concrete, leaves)):
                lost.append(
                    f"{names[0]} is float32 and is computed with in float32, although float64 is enabled: convert it, "
                    f"{names[0]}.astype('float64')"
                )
    kwargs = {name: _each(name, x, [] if new else lost, absent, positional=False) for name, x in kwargs.items()}
    if kwargs.get("num_data") is not None and is_concrete(kwargs["num_data"]):
        positive_int("num_data", kwargs["num_data"])
    if lost:
        warnings.warn(f"{'; '.join(lost)}.", PrecisionWarning, stacklevel=_outside())
    return args, kwargs


def _outside() -> int:
    """The ``stacklevel`` of the first frame outside this package."""
    frame, level = sys._getframe(1), 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == __name__.partition(".")[0]:
        frame, level = frame.f_back, level + 1
    return level


def positional(model: Any, count: int) -> tuple[list[str], set[str]]:
    """Names of a program's first positional arguments, as its author wrote them, and those that may be ``None``."""
    parameters = _parameters(model)
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = [known[i] if i < len(known) else f"args[{i}]" for i in range(count)]
    required = {p.name for p in parameters if p.default is p.empty}
    return names, set(names) - required


def is_open(model: Any, name: str) -> bool:
    """Whether a program has an argument of this name that is ``None`` unless given, or must be given."""
    return any(p.name == name and p.default in (None, p.empty) for p in _parameters(model) if p.kind != p.VAR_KEYWORD)


def _parameters(model: Any) -> tuple[inspect.Parameter, ...]:
    """The arguments of a program, as its author wrote them."""
    while isinstance(model, Messenger) and model.fn is not None:
        model = model.fn
    try:
        return tuple(inspect.signature(model).parameters.values())
    except (TypeError, ValueError):
        return ()


def _each(name: str, x: Any, lost: list[str], absent: Absent | None, *, positional: bool) -> Any:
    """The arrays of one argument, each through :func:`data`."""

    def leaf(path: Any, value: Any) -> Any:
        own = name + jax.tree_util.keystr(path)
        if not positional and not _is_array(value):
            return value
        value = (
            rows(own, value, ": pass what is not per datum in model_kwargs", absent=absent)
            if positional
            else data(own, value, infinite=True, absent=absent)
        )
        if is_concrete(value):
            lost.extend(_far_from_zero(own, value))
        return value

    if isinstance(x, Iterator):
        raise TypeError(f"{name} is a {type(x).__name__}, which is empty after the program's first run: pass a list.")
    if positional and _is_numbers(x):
        return leaf((), x)
    if not positional and not any(map(_is_array, jax.tree.leaves(x))):
        return x
    return jax.tree_util.tree_map_with_path(leaf, x)


def _is_array(x: Any) -> bool:
    """Whether a keyword argument's leaf is an array, which a scalar, a key or a class is not."""
    if isinstance(x, jax.Array):
        return is_concrete(x) and not jnp.issubdtype(x.dtype, jax.dtypes.extended)
    return isinstance(x, np.ndarray) or (
        hasattr(x, "__array__") and not isinstance(x, np.generic) and not inspect.isclass(x)
    )


def _is_numbers(x: Any) -> bool:
    """Whether a list or tuple is meant as one array, having none in it."""
    return isinstance(x, list | tuple) and not any(np.ndim(leaf) for leaf in jax.tree.leaves(x) if _is_array(leaf))


def _far_from_zero(name: str, x: Any) -> list[str]:
    """What float32 would lose of an array, by column."""
    if x.dtype == bool or (isinstance(x, jax.Array) and not x.is_fully_addressable):
        return []
    if x.dtype != np.float32 and jax.config.read("jax_enable_x64"):
        return []
    x = np.asarray(x) if _on_host(x) else x
    step = -(-x.size // _LOOKED_AT)
    with jax.ensure_compile_time_eval():
        some = np.asarray(x[::step] if x.ndim and step > 1 else x, np.float64)
    some = some if some.ndim == 2 else some.reshape(-1, 1)
    some = np.where(np.isfinite(some), some, 0)
    low, high = some.min(axis=0), some.max(axis=0)
    centre, spread = (low + high) / 2, (high - low) / 2
    rounding = np.finfo(np.float32).eps * np.abs(centre)
    far = (spread > 0) & (rounding > _ROUNDING * spread)
    if far.any():
        far &= ~((some == np.floor(some)).all(axis=0) & (np.maximum(-low, high) < _WHOLE))
    if not far.any():
        return []
    worst = int(np.argmax(np.where(far, rounding / np.where(spread > 0, spread, 1), 0)))
    column = f"column {worst} of {name}" if x.ndim == 2 else name
    return [
        f"{column} lies between {low[worst]:.10g} and {high[worst]:.10g}, so far from zero that float32 loses the "
        "differences: subtract the mean (standardise), or convert to float64 after numpyro.enable_x64()"
    ]


def named(name: str, values: Any, *, absent: Absent | None = None) -> dict[str, Any]:
    """Data by the names of sites, each through :func:`data`; nothing for ``None``.

    Raises:
        TypeError: if ``values`` is not a mapping from names, and as :func:`data`.
        ValueError: as :func:`data`.
    """
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise TypeError(f"{name} must map site names to arrays, such as {{'y': y}}; got {type(values).__name__}.")
    return {site: rows(f"{name}[{site!r}]", x, absent=absent) for site, x in values.items()}


# -- parameters --------------------------------------------------------------------------------------------------------


def parameters(name: str, params: Any) -> dict[str, Any]:
    """Values of parameters by name, of real finite numbers; floating numbers of any precision pass.

    Raises:
        TypeError: if ``params`` is not a mapping, or a value holds no numbers.
        ValueError: naming a value that is not finite.
    """
    if not isinstance(params, Mapping) or not all(isinstance(key, str) for key in params):
        raise TypeError(f"{name} must map names to values, such as the .params of fit's result; got {_kind(params)}.")

    def check(path: Any, leaf: Any) -> None:
        if not is_concrete(leaf):
            return
        own = name + "".join(f"[{p.key!r}]" if hasattr(p, "key") else str(p) for p in path)
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.inexact):
            if not jnp.issubdtype(leaf.dtype, jnp.complexfloating) and leaf.size:
                low, high = _extremes(leaf) or (0, 0)
                if not (np.isfinite(low) and np.isfinite(high)):
                    raise ValueError(f"{own} holds {low if np.isnan(low) else high}: parameters must be finite.")
        elif not isinstance(leaf, jax.Array):
            array = np.ma.asanyarray(leaf) if isinstance(leaf, np.ma.MaskedArray) else np.asarray(leaf)
            numeric = array.dtype.kind in "iubf" or jnp.issubdtype(array.dtype, jnp.floating)
            if not numeric or isinstance(leaf, str | np.ma.MaskedArray):
                raise TypeError(f"{own} must hold numbers, got {_kind(leaf)} of dtype {array.dtype}.")
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise ValueError(f"{own} holds {array[~np.isfinite(array)].flat[0]}: parameters must be finite.")

    jax.tree_util.tree_map_with_path(check, dict(params))
    return dict(params)


@jax.jit
def nan_unless(x: Array, known: Array) -> Array:
    """``x``, or NaN if not all is known: a refusal inside ``jit``, for whoever asks refuses what is not finite.

    As it changes no number that is given, ``x`` depends on nothing more to those who follow rows through a program.
    """
    return jnp.where(jnp.all(known), x, jnp.nan)


def within(name: str, value: Any, constraint: Any) -> None:
    """Refuse values outside their constraint; under a transformation nothing can be checked.

    Raises:
        ValueError: naming the first such value and the constraint.
    """
    if not all(map(is_concrete, jax.tree.leaves(value))):
        return
    for leaf in jax.tree.leaves(value):
        with jax.ensure_compile_time_eval():
            good = np.asarray(constraint(jnp.asarray(leaf)))
        if not good.all():
            first = np.asarray(leaf)[~good].flat[0] if good.shape == np.shape(leaf) else f"of shape {np.shape(leaf)}"
            raise ValueError(f"{name} is {first}, outside its constraint, {constraint}.")


def names(name: str, given: set[str], *, needed: set[str], known: set[str]) -> None:
    """Refuse parameters that are missing or that nothing is called by.

    Args:
        name: of the argument.
        given: the names in it.
        needed: those that it must have, which are the ones that messages list.
        known: all that it may have.

    Raises:
        ValueError: naming them.
    """
    missing, unknown = sorted(needed - given), sorted(given - known)
    if missing:
        more = f", of which {unknown} are no parameters" if unknown else ""
        raise ValueError(
            f"{name} has no value for {missing} of the program and its guide; it has {sorted(given)}{more}."
        )
    if unknown:
        raise ValueError(f"{name} names {unknown}, but the parameters are {sorted(needed or known)}.")


# -- options -----------------------------------------------------------------------------------------------------------


def rng_key(key: Any, *, several: bool = False) -> Array:
    """``key``, if it is a random key of JAX, of the new kind or the old (``uint32 [2]``).

    Args:
        key: what the user passed.
        several: whether keys ``[K]`` pass too.

    Raises:
        TypeError: if it is no key.
        ValueError: if it is several keys where one is needed.
    """
    old = getattr(key, "dtype", None) == np.uint32 and np.ndim(key) >= 1 and key.shape[-1] >= 2
    if not old and not (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)):
        raise TypeError(f"rng_key must be a key such as jax.random.key(0), got {_kind(key)}.")
    leading = np.ndim(key) - int(old)
    if leading and not several:
        raise ValueError(f"rng_key must be one key such as jax.random.key(0), got keys of shape {tuple(key.shape)}.")
    return jnp.asarray(key) if old else key


def count(name: str, value: Any) -> int:
    """``value``, if it is a whole number of 0 or more.

    Raises:
        ValueError: if it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise ValueError(f"{name} must be an integer of 0 or more, got {_said(value)}.")
    return int(value)


def positive_number(name: str, value: Any, *, or_zero: bool = False) -> Any:
    """``value``, if it is a positive finite number.

    Raises:
        ValueError: if it is not.
    """
    if not is_concrete(value):
        return value
    if not _is_number(value) or not np.isfinite(value) or value < 0 or (value == 0 and not or_zero):
        raise ValueError(
            f"{name} must be a {'finite number of 0 or more' if or_zero else 'positive finite number'}, got {value!r}."
        )
    return value


def _is_number(value: Any) -> bool:
    numbers = int | float | np.number | np.ndarray | jax.Array
    return np.ndim(value) == 0 and not isinstance(value, bool | str) and isinstance(value, numbers)


def one_of(name: str, value: Any, options: Iterable[Any]) -> Any:
    """``value``, if it is one of these texts or ``None``.

    Raises:
        ValueError: if it is not.
    """
    options = tuple(options)
    if not (value is None or isinstance(value, str)) or value not in options:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, options))}, got {value!r}.")
    return value


def refuse(bad: Any, message: str, kind: type[Exception] = ValueError) -> None:
    """Refuse what is bad, by a message that names the argument, what was wrong with it, and the way out.

    The message is made in any case: numbers of an array, which would be fetched from a device, do not belong into it.

    Raises:
        kind: if ``bad``.
    """
    if bad:
        raise kind(message)


def refuse_params_under_mcmc() -> None:
    """Refuse a program whose ``numpyro.param`` sites MCMC would leave at their starting values without a word.

    Raises:
        ValueError: naming the sites, when called by a program that MCMC runs.
    """
    if (around := handlers_around_mcmc()) is None:
        return
    outer, inner = around
    if not all(isinstance(h, handlers.trace | handlers.substitute) for h in outer):
        return  # an automatic guide at its set-up: SVI will train the params
    recorded = next((h.trace for h in outer if isinstance(h, handlers.trace)), {})
    # The outermost substitution inside MCMC's is NumPyro's and repeats the starting values; others are the user's.
    substitutions = [h.data or {} for h in inner if isinstance(h, handlers.substitute)]
    given = {name for data in substitutions[1:] for name in data}
    loose = [name for name, site in recorded.items() if site["type"] == "param" and name not in given]
    if loose:
        raise ValueError(
            f"The numpyro.param site(s) {', '.join(loose)} are not sampled by MCMC and would stay at their starting "
            "values. Give them priors with numpyro.handlers.lift(model, prior={...}), or fix them on purpose with "
            "numpyro.handlers.substitute(model, data={...})."
        )
