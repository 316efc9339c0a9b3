"""Checks of the arguments of users; each refusal names the argument and the problem, and says what to do instead.

Entry points call :func:`arguments`, :func:`parameters` and :func:`rng_key`. The other functions are single checks.
"""

from __future__ import annotations

import inspect
import math
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from numpyro import handlers

from gpzoo._labels import aligned, refuse_other_order
from gpzoo._numpyro import Messenger, handlers_around_mcmc
from gpzoo.errors import PrecisionWarning

# -- refusals ----------------------------------------------------------------------------------------------------------


class OutOfRange(ValueError):
    """The error for a number that is negative, or zero, where this is not allowed."""


def refuse(bad: Any, message: str, kind: type[Exception] = ValueError) -> None:
    """Raise an error if ``bad``; the message names the argument and the problem, and says what to do instead.

    Callers make the message even if nothing is bad. So do not put numbers of an array into the message, because they
    would be fetched from a device.

    Raises:
        kind: if ``bad``.
    """
    if bad:
        raise kind(message)


def must(good: Any, name: str, wanted: str, found: str, hint: str = "") -> None:
    """Refuse an argument with the message "``name`` must ``wanted``, got ``found``."

    If ``wanted`` ends in ";", the message has no comma after it.

    Raises:
        ValueError: unless ``good``.
    """
    refuse(not good, f"{name} must {_then(wanted)} got {found}{hint}.")


def _then(wanted: str) -> str:
    return wanted if wanted.endswith(";") else f"{wanted},"


def instance(name: str, value: Any, kinds: Any, wanted: str, hint: str = "") -> Any:
    """``value``, if it has one of these types.

    Raises:
        TypeError: if it has another type.
    """
    told = f"{name} must be {_then(wanted)} got {type(value).__name__}{hint}."
    refuse(not isinstance(value, kinds), told, TypeError)
    return value


def whole(name: str, value: Any, least: int = 1, most: float = math.inf) -> int:
    """``value``, if it is an integer of at least ``least`` and at most ``most``.

    Raises:
        ValueError: if it is not.
    """
    good = isinstance(value, int | np.integer) and not isinstance(value, bool) and least <= value <= most
    limits = f"an integer of at least {least}" if most == math.inf else f"an integer from {least} to {most}"
    must(good, name, f"be {limits}", _said(value))
    return int(value)


def broadcasts(name: str, x: Any, shape: tuple[int, ...], whose: str, hint: str = "") -> None:
    """Refuse an array that does not broadcast to a shape.

    Raises:
        ValueError: if it does not; the message has both shapes.
    """
    found = tuple(np.shape(x))
    refuse(not fits_into(found, shape), f"{name} has shape {found}, which does not broadcast to {whose} {shape}{hint}.")


def fits_into(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether an array of this shape broadcasts to the wanted shape."""
    try:
        return jnp.broadcast_shapes(shape, wanted) == wanted
    except ValueError:
        return False


def unwritten(of: Any, what: str) -> NoReturn:
    """Refuse a call of a method that a subclass must write.

    Raises:
        NotImplementedError: always; the message names the class and the method.
    """
    raise NotImplementedError(f"{type(of).__name__} does not define {what}.")


# -- single arguments --------------------------------------------------------------------------------------------------


def is_concrete(x: Any) -> bool:
    """Whether ``x`` has values, as outside ``jit``: ``x`` is not a tracer of a transformed function."""
    return not isinstance(x, Tracer)


def is_table(x: Any) -> bool:
    """Whether ``x`` is a :class:`gpzoo.tables.Table`; the check does not import the module of tables."""
    return hasattr(x, "block_rows") and hasattr(x, "read")


def floating(name: str, x: Any) -> Array:
    """``x`` as a floating array, in its own precision.

    Raises:
        TypeError: if ``x`` is not numeric (strings, objects, complex numbers).
    """
    wanted = f"{name} must be a numeric array, got {type(x).__name__}"
    refuse(x is None or isinstance(x, str), f"{wanted}.", TypeError)
    try:
        x = _whole_as_floating(x)
        # ``asarray`` of a NumPy array compiles a program for every new shape.
        x = jax.device_put(x) if type(x) is np.ndarray else jnp.asarray(x)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{wanted}: {error}") from None
    refuse(jnp.issubdtype(x.dtype, jnp.complexfloating), f"{name} must be real, got dtype {x.dtype}.", TypeError)
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.result_type(float))


def _whole_as_floating(x: Any) -> Any:
    """Whole numbers on the host as floating numbers: JAX would keep only their last 32 bits. All else as it is."""
    if isinstance(x, jax.Array) or not (hasattr(x, "__array__") or isinstance(x, int | list | tuple)):
        return x
    if any(isinstance(part, jax.Array) for part in jax.tree.leaves(x)):
        return x
    host = np.asarray(x)
    return host.astype(jnp.result_type(float)) if host.dtype.kind in "iu" else x


def finite(name: str, x: Any) -> None:
    """Refuse NaN and infinity in a concrete array. Under a transformation, there is no check.

    Raises:
        ValueError: for NaN or infinity; the message names the first bad entry.
    """
    if not is_concrete(x):
        return
    good = np.isfinite(x)
    refuse(
        not good.all(),
        f"{name} has {(~good).sum()} entries that are not finite, the first at index {first_of(~good)}. "
        "Remove or impute those rows before they reach the model.",
    )


def first_of(bad: np.ndarray) -> tuple[int, ...]:
    """The index of the first bad entry; an empty tuple if no entry is bad."""
    return next((tuple(map(int, index)) for index in np.argwhere(bad)), ())


def positive(name: str, value: Any, *, or_zero: bool = False) -> Array:
    """``value`` as a floating array of positive finite numbers. Under a transformation, NaN replaces negative numbers.

    Raises:
        TypeError: if it is not numeric.
        OutOfRange: if a number is not positive and finite.
    """
    given, value = value, floating(name, value)
    if all(map(is_concrete, jax.tree.leaves(given))):  # constants of a program are known while it is traced
        with jax.ensure_compile_time_eval():
            known = floating(name, given)
            good = (known >= 0 if or_zero else known > 0) & jnp.isfinite(known)
            if not jnp.all(good):
                first = first_of(~np.asarray(good))
                wanted = f"{'zero or ' if or_zero else ''}positive and finite"
                where = f" at index {first}" if first else ""
                raise OutOfRange(f"{name} must be {wanted}, got {known[first]}{where}.")
    return value if is_concrete(value) else jnp.where(value < 0, jnp.nan, value)


def not_empty(name: str, x: Array) -> None:
    """Refuse an array without rows.

    Raises:
        ValueError: if the leading axis has length 0.
    """
    none = x.ndim == 0 or x.shape[0] == 0
    refuse(none, f"{name} is empty: its shape is {tuple(x.shape)}, at least one row is needed.")


def positive_int(name: str, value: Any) -> int:
    """``value``, if it is a count of at least one.

    Raises:
        ValueError: if it is not.
    """
    return whole(name, value)


def _said(value: Any) -> str:
    """A value as text for a message; only the shape of an array, because its numbers would fill the message."""
    return f"an array of shape {np.shape(value)}" if np.ndim(value) else repr(value)


def fraction(name: str, value: float) -> float:
    """``value``, if it is a number in ``[0, 0.5)``, as the ``squash`` of a likelihood must be.

    Raises:
        ValueError: if it is not.
    """
    must(0.0 <= value < 0.5, name, "be in [0, 0.5)", repr(value))
    return float(value)


# -- data --------------------------------------------------------------------------------------------------------------

#: The kinds of numbers that data are, for messages.
_WANTED = "real numbers of float32, float64, integers or bool"

#: Advice for dates and times.
_DATES = "dates or times: pass numbers, such as the days since the first date"

#: Largest rounding error of a column relative to its spread. Beyond it, float32 keeps three digits or fewer.
_ROUNDING = 1e-3

#: Whole numbers below this are labels, counts or years. float32 represents them exactly.
_WHOLE = 2.0**24

#: How many numbers of an array are read to find the spread of its columns.
_LOOKED_AT = 2**18


#: Arrays that contain NaN, each with the error that refuses the array.
Absent: TypeAlias = list[tuple[Any, ValueError]]


def data(name: str, x: Any, *, infinite: bool = False, absent: Absent | None = None) -> Any:
    """``x`` as an array of real finite numbers; all data of users pass this function.

    ``x`` is an array of NumPy (of any byte order and stride), of JAX or of pandas, an object with ``__array__``, or
    nested lists of numbers. Arrays on the host stay on the host, and arrays on a device do not change. Arrays are
    copied only if this is necessary. Integers and bools keep their type. Under a transformation, there is no check.

    Args:
        name: name of the argument, for messages.
        x: the argument.
        infinite: whether infinity is allowed, as for a bound or a threshold.
        absent: list to which an array with NaN is added. With a list, arrays with NaN are allowed. The caller refuses
            them if NaN does not mean missing data.

    Returns:
        A NumPy array in the machine's byte order, or the JAX array itself.

    Raises:
        TypeError: if it does not hold real numbers of float32, float64, integers or bool.
        ValueError: for masked arrays, ragged lists, an axis of length 0, NaN, infinity, and numbers that do not fit
            into 32 bits if JAX stores them in 32 bits.
    """
    if not is_concrete(x):
        return x
    array = x if isinstance(x, jax.Array) else _host_array(name, x)
    _check_dtype(name, x, array.dtype)
    refuse(0 in array.shape, f"{name} is empty: its shape is {tuple(array.shape)}, at least one row is needed.")
    _check_numbers(name, array, infinite, absent)
    return array


def rows(name: str, x: Any, hint: str = "", *, absent: Absent | None = None, each: str = "datum") -> Any:
    """:func:`data` with at least one axis, the axis of rows; ``each`` names a row in messages.

    Raises:
        TypeError: as for :func:`data`.
        ValueError: as for :func:`data`, and for a single number.
    """
    number = isinstance(x, bool | int | float | complex | np.generic)
    array = x if number else data(name, x, absent=absent)
    must(np.ndim(array), name, f"be an array with one row per {each}", repr(x) if number else "one number", hint)
    return array


def _host_array(name: str, x: Any) -> np.ndarray:
    _refuse_masked(name, x)
    refuse(
        is_table(x),
        f"{name} is a table, which fit alone takes whole. Pass arrays instead: the first rows, table.head(1000)[0], "
        "or the rows of each block in turn, table.read(block)[0].",
        TypeError,
    )
    no_array = x is None or isinstance(x, str | bytes) or callable(x)
    refuse(no_array, f"{name} must be an array of {_WANTED}, got {_kind(x)}.", TypeError)
    columns = np.atleast_1d(np.asarray(getattr(x, "dtypes", getattr(x, "dtype", None)), object))
    labels = getattr(x, "columns", ()) if hasattr(x, "dtypes") else ()
    named = list(zip([f"{name}[{label!r}]" for label in labels] or [name], columns, strict=False))
    categorical = [column for column, dtype in named if str(dtype) == "category"]
    codes = " and ".join(f"{column}.{'cat.' * hasattr(x, 'iloc')}codes" for column in categorical)
    message = f"{' and '.join(categorical)} must not be categorical. Pass {codes}, or columns of 0 and 1."
    refuse(categorical, message, TypeError)
    dates = [column for column, dtype in named if getattr(dtype, "kind", "O") in "Mm"]
    refuse(dates, f"{' and '.join(dates)} must hold {_WANTED}, got {_DATES}.", TypeError)
    try:
        array = np.asarray(x)
        kinds = {getattr(column, "kind", "O") for column in columns}
        if array.dtype == object and kinds <= set("iufb"):
            of_pandas: Any = x  # columns of several dtypes, or of pandas' own dtypes
            array = of_pandas.to_numpy("float64", na_value=np.nan)
    except Exception as error:  # an ``__array__`` of other libraries may raise any error
        raise TypeError(
            f"{name} must be an array of {_WANTED}, and this {_kind(x)} cannot be made one: {error}"
        ) from None
    _refuse_masked(name, array)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _refuse_masked(name: str, x: Any) -> None:
    refuse(
        isinstance(x, np.ma.MaskedArray),
        f"{name} is a masked array, whose mask would be lost. Pass {name}.filled(0) and the mask as arguments of "
        "their own, and leave what is missing out of the bound with numpyro.handlers.mask(mask=observed).",
    )


def _kind(x: Any) -> str:
    return f"{type(x).__name__} {x!r:.40}" if isinstance(x, str | bytes | bool | int | float) else type(x).__name__


def _check_dtype(name: str, x: Any, dtype: Any) -> None:
    key = jnp.issubdtype(dtype, jax.dtypes.extended)
    kind = "key" if key else "f" if jnp.issubdtype(dtype, jnp.floating) else np.dtype(dtype).kind
    if kind in "iub" or (kind == "f" and np.dtype(dtype) in (np.float32, np.float64)):
        return
    source = "" if isinstance(x, np.ndarray) else f" from {type(x).__name__}"
    few = "few" if kind == "f" and np.dtype(dtype).itemsize < 4 else "many"
    which = _no_numbers(x) if kind in "OUST" else ""
    objects = (
        f"{source}{which}. Turn it into numbers first: missing values, text, categories and sparse matrices have no "
        "numbers of their own."
    )
    advice = {
        "key": ", a random key.",
        "c": f": its imaginary part would be lost. Pass {name}.real if that is what is meant.",
        "f": ". Kernels and factorisations use the dtype of their inputs, and this dtype has too "
        f"{few} bits: convert it, {name}.astype('float32').",
        **dict.fromkeys("Mm", f" of {_DATES}."),
        **dict.fromkeys("OUST", objects),
    }
    told = advice.get(kind, ". Convert it to float32, float64 or int32.")
    raise TypeError(f"{name} must hold {_WANTED}, got dtype {dtype}{told}")


def _no_numbers(x: Any) -> str:
    """The entry or the columns for which an array holds objects and not numbers, in words."""
    columns, array = getattr(x, "columns", None), np.asarray(x)
    named = lambda j: j if columns is None else repr(columns[j])  # noqa: E731
    for at, value in np.ndenumerate(array):
        if not isinstance(value, int | float | np.number | np.bool_):
            place = "".join(f" in row {i}" for i in at[:1]) + "".join(f" of column {named(j)}" for j in at[1:2])
            return f": {value!r:.40}{place}"
    kinds = enumerate(getattr(x, "dtypes", ())) if columns is not None else ()
    objects = [str(named(j)) for j, dtype in kinds if getattr(dtype, "kind", "O") not in "iufb"]
    return f", its column(s) {', '.join(objects)}" if objects else ""


#: Arrays that were read inside :func:`each_once`, with their least and largest numbers.
_LOOKED: ContextVar[dict[int, tuple[Any, Any]] | None] = ContextVar("looked", default=None)


@contextmanager
def each_once() -> Iterator[None]:
    """A context that reads the numbers of each array once, for calls that check the same arrays several times."""
    token = _LOOKED.set({} if (known := _LOOKED.get()) is None else known)
    try:
        yield
    finally:
        _LOOKED.reset(token)


def _extremes(array: Any) -> tuple[Any, Any] | None:
    """The least and largest number, NaN if there is one; ``None`` if other machines hold a part of the array."""
    if (looked := _LOOKED.get()) is None:
        return _extremes_of(array)
    if id(array) not in looked:
        looked[id(array)] = array, _extremes_of(array)  # keeps the array, so that no other array gets the same id
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
    """Whether NumPy can read an array without a copy."""
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
    """Refuse numbers that do not fit into 32 bits, if JAX stores numbers in 32 bits.

    Raises:
        ValueError: if they do not fit; the message has the numbers.
    """
    if array.dtype.itemsize == 8 and not jax.config.read("jax_enable_x64"):
        _check_bits(name, array.dtype, array.min(), array.max())


def _check_bits(name: str, dtype: np.dtype, low: Any, high: Any) -> None:
    if dtype.itemsize < 8 or jax.config.read("jax_enable_x64"):
        return
    if dtype.kind == "f":
        return refuse(
            max(-low, high) > np.finfo(np.float32).max,
            f"{name} has numbers up to {max(-low, high):.3g}, more than float32 holds. Scale it, or call "
            "numpyro.enable_x64() first.",
        )
    most = np.iinfo("uint32" if dtype.kind == "u" else "int32")
    refuse(
        low < most.min or high > most.max,
        f"{name} has whole numbers from {low} to {high}, more than {most.dtype} holds: they would change. "
        "Subtract the least, convert it to floating numbers, or call numpyro.enable_x64() first.",
    )


def _not_finite(name: str, values: np.ndarray, infinite: bool) -> ValueError:
    good = ~np.isnan(values) if infinite else np.isfinite(values)
    first = first_of(~good)
    advice = "Remove or impute those rows"
    if np.isnan(values).any():
        advice += (
            "; missing targets are left out by a likelihood with missing='mask', or by "
            f"`with numpyro.handlers.mask(mask=observed)` around the site, where observed is ~numpy.isnan({name})"
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
    """The arguments of a program, after :func:`data` has checked every array.

    Positional arguments are data: arrays with one row for each row of the data, or pytrees of such arrays. Arguments
    with row labels are put in one order (:func:`gpzoo._labels.aligned`). Keyword arguments are checked only if they are
    arrays, and may be infinite, as for bounds. Of the other keyword arguments, only ``num_data`` is checked.

    One :class:`PrecisionWarning` names the arguments that lose digits in float32: numbers far from zero, and inputs of
    float32 if float64 is enabled.

    Args:
        program: the program, which gives the names of its positional arguments; or a tuple of these names.
        args: positional arguments.
        kwargs: keyword arguments, by name; ``None`` if there are none.
        tables: whether ``args`` is a table, which is checked while it is read.
        new: whether the arguments are inputs for predictions. Their own spread has no information about the data.
        absent: see :func:`data`.

    Raises:
        TypeError: as for :func:`data`, and for ``kwargs`` that are not a mapping from names.
        ValueError: as for :func:`data`, for row labels that differ between arguments, and for a ``num_data`` that is
            not a count.
    """
    kwargs = {} if kwargs is None else kwargs
    refuse(
        not _by_name(kwargs),
        f"model_kwargs must map names of the program's arguments to values, {{'layers': layers}}; got {_kind(kwargs)}.",
        TypeError,
    )
    lost: list[str] = []
    if tables:
        for table in filter(is_table, args):
            for position, (x, group) in enumerate(zip(table.stored(0), table.groups, strict=True)):
                if group.dtype.kind == "f":  # one block is enough for a warning
                    lost.extend(_far_from_zero(f"array {position} of the table", x, group.dtype))
    else:
        names, optional = (program, ()) if isinstance(program, tuple) else positional(program, len(args))
        for name, x in zip(names, args, strict=True):
            none = x is None or (isinstance(x, Mapping) and not jax.tree.leaves(x))
            refuse(
                none and name not in (*optional, *names[1:] * new),
                f"{name} must be an array of {_WANTED}, got {x if none else ''}.",
                TypeError,
            )
        refuse_other_order(args, kwargs)
        args, far = aligned(names, args), [] if new else lost
        args = tuple(_each(n, x, far, absent, positional=True) for n, x in zip(names, args, strict=True))
        if args and not new and jax.config.read("jax_enable_x64"):
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
        warnings.warn(f"{'; '.join(lost)}.", PrecisionWarning, stacklevel=outside())
    return args, kwargs


def outside() -> int:
    """The ``stacklevel`` of the first frame outside this package."""
    frame, level = sys._getframe(1), 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == __name__.partition(".")[0]:
        frame, level = frame.f_back, level + 1
    return level


def positional(model: Any, count: int) -> tuple[list[str], set[str]]:
    """Names of a program's first positional arguments, as its author wrote them, and names that may be ``None``."""
    parameters = _parameters(model)
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = [known[i] if i < len(known) else f"args[{i}]" for i in range(count)]
    required = {p.name for p in parameters if p.default is p.empty}
    return names, set(names) - required


def is_open(model: Any, name: str) -> bool:
    """Whether a program has an argument of this name whose default is ``None``, or that has no default."""
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
    """One argument, after :func:`data` has checked each of its arrays."""

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

    empty = f"{name} is a {type(x).__name__}, which is empty after the program's first run: pass a list."
    refuse(isinstance(x, Iterator), empty, TypeError)
    if positional and _is_numbers(x):
        return leaf((), x)
    if not positional and not any(map(_is_array, jax.tree.leaves(x))):
        return x
    return jax.tree_util.tree_map_with_path(leaf, x)


def _is_array(x: Any) -> bool:
    """Whether a leaf of a keyword argument is an array, and not a scalar, a key or a class."""
    if isinstance(x, jax.Array):
        return is_concrete(x) and not jnp.issubdtype(x.dtype, jax.dtypes.extended)
    return isinstance(x, np.ndarray) or (
        hasattr(x, "__array__") and not isinstance(x, np.generic) and not inspect.isclass(x)
    )


def _is_numbers(x: Any) -> bool:
    """Whether a list or tuple stands for one array, because it contains no arrays."""
    return isinstance(x, list | tuple) and not any(np.ndim(leaf) for leaf in jax.tree.leaves(x) if _is_array(leaf))


def _far_from_zero(name: str, x: Any, dtype: Any = None) -> list[str]:
    """A message on the column of an array whose differences float32 would lose; an empty list if there is none.

    ``dtype`` is that of the computation, if it is not the dtype of the array.
    """
    if x.dtype == bool or (isinstance(x, jax.Array) and not x.is_fully_addressable):
        return []
    if (dtype or x.dtype) != np.float32 and jax.config.read("jax_enable_x64"):
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
    """Test data, or draws, by the names of sites, after checks by :func:`data`; an empty dictionary for ``None``.

    Raises:
        TypeError: if ``values`` is not a mapping from names, and as for :func:`data`.
        ValueError: as for :func:`data`.
    """
    if values is None:
        return {}
    wanted = f"{name} must map site names to arrays, such as {{'y': y}}; got {type(values).__name__}."
    refuse(not isinstance(values, Mapping), wanted, TypeError)
    each = "datum" if name == "test_data" else "draw"
    return {site: rows(f"{name}[{site!r}]", x, absent=absent, each=each) for site, x in values.items()}


# -- parameters --------------------------------------------------------------------------------------------------------


def parameters(name: str, params: Any) -> dict[str, Any]:
    """Values of parameters, by name, if their numbers are real and finite; every floating precision passes.

    Raises:
        TypeError: if ``params`` is not a mapping, or a value does not hold numbers.
        ValueError: if a value is not finite; the message names the parameter.
    """
    wanted = f"{name} must map names to values, such as the .params of fit's result; got {_kind(params)}."
    refuse(not _by_name(params), wanted, TypeError)

    def check(path: Any, leaf: Any) -> None:
        if not is_concrete(leaf):
            return
        own = name + "".join(f"[{p.key!r}]" if hasattr(p, "key") else str(p) for p in path)
        if isinstance(leaf, jax.Array):
            real = jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.size
            ends = (_extremes(leaf) or ()) if real else ()
        else:
            array = np.ma.asanyarray(leaf) if isinstance(leaf, np.ma.MaskedArray) else np.asarray(leaf)
            numeric = array.dtype.kind in "iubf" or jnp.issubdtype(array.dtype, jnp.floating)
            wrong = not numeric or isinstance(leaf, str | np.ma.MaskedArray)
            refuse(wrong, f"{own} must hold numbers, got {_kind(leaf)} of dtype {array.dtype}.", TypeError)
            ends = array[~np.isfinite(array)].flat if array.dtype.kind == "f" else ()
        for end in ends:
            refuse(not np.isfinite(end), f"{own} holds {end}: parameters must be finite.")

    jax.tree_util.tree_map_with_path(check, dict(params))
    return dict(params)


@jax.jit
def nan_unless(x: Array, known: Array) -> Array:
    """``x``, or NaN if ``known`` is false anywhere. This is a refusal inside ``jit``, because callers refuse NaN."""
    return jnp.where(jnp.all(known), x, jnp.nan)


def within(name: str, value: Any, constraint: Any) -> None:
    """Refuse values outside their constraint. Under a transformation, there is no check.

    Raises:
        ValueError: if there is such a value; the message has the first one and the constraint.
    """
    if not all(map(is_concrete, jax.tree.leaves(value))):
        return
    for leaf in jax.tree.leaves(value):
        with jax.ensure_compile_time_eval():
            good = np.asarray(constraint(jnp.asarray(leaf)))
        if not good.all():
            first = np.asarray(leaf)[~good].flat[0] if good.shape == np.shape(leaf) else f"of shape {np.shape(leaf)}"
            raise ValueError(f"{name} is {first}, outside its constraint, {constraint}.")


def _by_name(values: Any) -> bool:
    """Whether this is a mapping from names."""
    return isinstance(values, Mapping) and all(isinstance(name, str) for name in values)


def names(name: str, given: set[str], *, needed: set[str], known: set[str]) -> None:
    """Refuse a mapping of parameters in which a parameter is missing or has an unknown name.

    Args:
        name: name of the argument.
        given: the names of the given parameters.
        needed: the names of the required parameters, which messages list.
        known: the names of all possible parameters.

    Raises:
        ValueError: for missing or unknown parameters; the message names them.
    """
    missing, unknown = sorted(needed - given), sorted(given - known)
    more = f", of which {unknown} are no parameters" if unknown else ""
    has = f"it has {sorted(given)}{more}"
    refuse(missing, f"{name} has no value for {missing} of the program and its guide; {has}.")
    refuse(unknown, f"{name} names {unknown}, but the parameters are {sorted(needed or known)}.")


# -- options -----------------------------------------------------------------------------------------------------------


def rng_key(key: Any, *, several: bool = False) -> Array:
    """``key``, if it is a random key of JAX: a typed key or an old key (``uint32 [2]``).

    Args:
        key: the argument.
        several: whether an array of keys ``[K]`` is allowed too.

    Raises:
        TypeError: if it is not a key.
        ValueError: if it is several keys, but one key is needed.
    """
    old = getattr(key, "dtype", None) == np.uint32 and np.ndim(key) >= 1 and key.shape[-1] >= 2
    typed = isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    wrong = f"rng_key must be a key such as jax.random.key(0), got {_kind(key)}."
    refuse(not old and not typed, wrong, TypeError)
    one = several or np.ndim(key) == int(old)
    must(one, "rng_key", "be one key such as jax.random.key(0)", f"keys of shape {tuple(key.shape)}")
    return jnp.asarray(key) if old else key


def count(name: str, value: Any) -> int:
    """``value``, if it is a whole number of 0 or more.

    Raises:
        ValueError: if it is not.
    """
    return whole(name, value, least=0)


def positive_number(name: str, value: Any, *, or_zero: bool = False) -> Any:
    """``value``, if it is a positive finite number.

    Raises:
        ValueError: if it is not.
    """
    if not is_concrete(value):
        return value
    good = _is_number(value) and np.isfinite(value) and (value > 0 or (value == 0 and or_zero))
    must(good, name, f"be a {'finite number of 0 or more' if or_zero else 'positive finite number'}", repr(value))
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
    known = (value is None or isinstance(value, str)) and value in options
    must(known, name, f"be one of {', '.join(map(repr, options))}", repr(value))
    return value


def refuse_params_under_mcmc() -> None:
    """Refuse a program with ``numpyro.param`` sites that MCMC would silently keep at their starting values.

    Raises:
        ValueError: if MCMC runs a program with such sites; the message names the sites.
    """
    if (around := handlers_around_mcmc()) is None:
        return
    outer, inner = around
    if not all(isinstance(h, handlers.trace | handlers.substitute) for h in outer):
        return  # the set-up of an automatic guide; SVI will train the params
    recorded = next((h.trace for h in outer if isinstance(h, handlers.trace)), {})
    # Inside MCMC's handler, the outermost substitution is NumPyro's, with the starting values. Others are the user's.
    substitutions = [h.data or {} for h in inner if isinstance(h, handlers.substitute)]
    given = {name for data in substitutions[1:] for name in data}
    loose = [name for name, site in recorded.items() if site["type"] == "param" and name not in given]
    refuse(
        loose,
        f"The numpyro.param site(s) {', '.join(loose)} are not sampled by MCMC and would stay at their starting "
        "values. Give them priors with numpyro.handlers.lift(model, prior={...}), or fix them on purpose with "
        "numpyro.handlers.substitute(model, data={...}).",
    )
