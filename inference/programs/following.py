"""On which rows does each number of a traced program depend? Rows are followed through it, and nothing is computed.

Every entry of every array has the first and the last row on which it depends. What an operation does to entries, it
does to these too: it moves them, or takes the least and the largest of what it combines. An operation that is not known
here combines everything, so that a dependence can be overestimated and is never missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

#: By kind of row: ``[2, *shape]``, the first row of each entry and minus the last; :data:`NONE` where there is none.
Rows: TypeAlias = dict[Any, np.ndarray]

#: Larger than every number of a row.
NONE = np.iinfo(np.int32).max

#: Steps of a loop that are followed one by one; of a longer one, all steps depend on what any step does.
_FEW_STEPS = 16

_SAME_PLACE = frozenset(
    """
    abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e bitcast_convert_type cbrt
    ceil clamp clz complex conj convert_element_type copy copy_p cos cosh device_put digamma div eq eq_to erf
    erf_inv erfc exp exp2 expm1 floor ge gt igamma igamma_grad_a igammac imag integer_pow is_finite le le_to
    lgamma log log1p logistic lt lt_to max min mul mulhi name ne neg nextafter not optimization_barrier or
    polygamma population_count pow random_gamma_grad real reduce_precision regularized_incomplete_beta rem reshard
    round rsqrt select_n sharding_constraint shift_left shift_right_arithmetic shift_right_logical sign sin sinh
    sqrt square stop_gradient sub tan tanh xor zeta
    """.split()
)

#: Functions of the last two axes of their arguments.
_OF_MATRICES = ("cholesky", "eig", "eigh", "householder_product", "lu", "qr", "schur", "svd", "triangular_solve")

_REDUCTIONS = (
    *("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "reduce_xor"),
    *("argmax", "argmin"),
)


def union(each: Iterable[Rows], shape: Sequence[int]) -> Rows:
    """What depends on all of these; their shapes broadcast to ``shape``."""
    found: Rows = {}
    for rows in each:
        for kind, x in rows.items():
            x = np.broadcast_to(x.reshape(2, *(1,) * (len(shape) + 1 - x.ndim), *x.shape[1:]), (2, *shape))
            found[kind] = np.minimum(found[kind], x) if kind in found else x
    return found


def together(rows: Rows, axes: Iterable[int] | None = None, keep: bool = False) -> Rows:
    """What depends on all entries along ``axes``, or on all entries."""
    if axes is None:
        return {kind: x.reshape(2, -1).min(axis=1, initial=NONE) for kind, x in rows.items()}
    along = tuple(axis + 1 for axis in axes)
    return {kind: x.min(axis=along, initial=NONE, keepdims=keep) for kind, x in rows.items()}


class Follow:
    """The rows of all variables of a trace.

    Args:
        trace: of ``jax.make_jaxpr``.
        inputs: the numbers that the trace was made of, by which indices are looked up.
        rows: those of the trace's inputs.
        known: of the values of sites, by variable, a function of this object that gives their rows from earlier ones.
    """

    def __init__(
        self, trace: Any, inputs: Sequence[Any], rows: Sequence[Rows], known: Mapping[Any, Callable[[Follow], Rows]]
    ) -> None:
        self.known = known
        self.scope = _Scope(self, trace.jaxpr, [*zip(trace.jaxpr.constvars, trace.consts, strict=True)])
        for variable, value, own in zip(trace.jaxpr.invars, inputs, rows, strict=True):
            self.scope.numbers[variable] = lambda value=value: value
            self.scope.rows[variable] = own
        self.scope.run()

    def __call__(self, variable: Any) -> Rows:
        """The rows of a variable, or of a constant."""
        return self.scope.of(variable)


class _Scope:
    """One (inner) program: rows and numbers of its variables."""

    def __init__(self, follow: Follow, program: Any, constants: Iterable[tuple[Any, Any]] = ()) -> None:
        self.follow, self.program = follow, program
        self.rows: dict[Any, Rows] = {}
        self.numbers: dict[Any, Callable[[], Any]] = {v: (lambda x=x: x) for v, x in constants}

    def of(self, variable: Any) -> Rows:
        return {} if _is_literal(variable) else self.rows.get(variable, {})

    def run(self) -> list[Rows]:
        for equation in self.program.eqns:
            outputs = self._step(equation)
            for variable, rows in zip(equation.outvars, outputs, strict=True):
                if (site := self.follow.known.get(variable)) is not None:
                    rows = union([rows, site(self.follow)], variable.aval.shape)
                if rows:
                    self.rows[variable] = rows
        return [self.of(x) for x in self.program.outvars]

    # -- numbers, of indices alone -----------------------------------------------------------------------------------

    def number(self, variable: Any) -> Any:
        """The variable's value: computed where an index depends on it."""
        if _is_literal(variable):
            return variable.val
        return self.numbers[variable]()

    def _remember(self, equation: Any) -> None:
        found: list[Any] = []

        def compute() -> list[Any]:
            if not found:
                given, bound = map(self.number, equation.invars), equation.primitive.get_bind_params(equation.params)
                functions, params = bound if isinstance(bound, tuple) else ((), bound)  # of earlier versions
                with jax.ensure_compile_time_eval():
                    value = equation.primitive.bind(*functions, *given, **params)
                found.extend(value if equation.primitive.multiple_results else [value])
            return found

        for i, variable in enumerate(equation.outvars):
            self.numbers[variable] = lambda i=i: compute()[i]

    # -- operations --------------------------------------------------------------------------------------------------

    def _step(self, equation: Any) -> list[Rows]:
        name, params = equation.primitive.name, equation.params
        given = [self.of(x) for x in equation.invars]
        shapes = [tuple(x.aval.shape) for x in equation.outvars]
        inner = _inner(name, params)
        if inner is not None:
            return self._inside(equation, inner, given)
        self._remember(equation)
        if not any(given):
            return [{}] * len(shapes)
        if name in _SAME_PLACE:
            if len(shapes) > 1:  # a barrier
                return given
            return [union(given, shapes[0])]
        rule = _RULES.get(name)
        found = None if rule is None else rule(self, equation, given, shapes)
        if found is None:
            everything = union([together(rows) for rows in given], ())
            found = [union([everything], shape) for shape in shapes]
        return found

    def _inside(self, equation: Any, inner: Any, given: list[Rows]) -> list[Rows]:
        name, params = equation.primitive.name, equation.params
        self._remember(equation)
        numbers = [lambda x=x: self.number(x) for x in equation.invars]
        if params.get("name") == "nan_unless":  # of gpzoo._checks
            return [given[0]]
        if name == "scan":
            return self._scan(equation, inner, given, numbers)
        if name == "while":
            return self._while(equation, inner, given)
        if name == "cond":
            chosen = union([together(given[0])], ())
            each = [self._called(branch, given[1:], numbers[1:]) for branch in params["branches"]]
            shapes = [tuple(x.aval.shape) for x in equation.outvars]
            return [union([chosen, *of], shape) for *of, shape in zip(*each, shapes, strict=True)]
        if len(inner.jaxpr.invars) != len(given):
            everything = union([together(rows) for rows in given], ())
            return [union([everything], tuple(x.aval.shape)) for x in equation.outvars]
        return self._called(inner, given, numbers)

    def _called(self, inner: Any, given: list[Rows], numbers: list[Callable[[], Any]]) -> list[Rows]:
        scope = _Scope(self.follow, inner.jaxpr, zip(inner.jaxpr.constvars, inner.consts, strict=True))
        for variable, rows, number in zip(inner.jaxpr.invars, given, numbers, strict=True):
            scope.numbers[variable] = number
            if rows:
                scope.rows[variable] = rows
        return scope.run()

    def _scan(self, equation: Any, inner: Any, given: list[Rows], numbers: list[Callable[[], Any]]) -> list[Rows]:
        params = equation.params
        consts, carries, length = params["num_consts"], params["num_carry"], params["length"]
        fixed, carry, each = given[:consts], given[consts : consts + carries], given[consts + carries :]
        shapes = [tuple(x.aval.shape) for x in equation.outvars]
        if length <= _FEW_STEPS:
            order, stacked = range(length), []
            for i in reversed(order) if params["reverse"] else order:
                at = [{kind: x[:, i] for kind, x in rows.items()} for rows in each]
                own = [_entry(x, i) for x in numbers[consts + carries :]]
                inputs = [*numbers[:consts], *[_unknown] * carries, *own]
                found = self._called(inner, [*fixed, *carry, *at], inputs)
                carry = found[:carries]
                stacked.append(found[carries:])
            if params["reverse"]:
                stacked.reverse()
            out = [_stacked(parts) for parts in zip(*stacked, strict=True)] if stacked else []
            return [*carry, *out]
        at, unknown = [together(rows, (0,)) for rows in each], [_unknown] * len(given)
        found = self._settled(lambda carry: self._called(inner, [*fixed, *carry, *at], unknown), carry, shapes)
        return [*found[:carries], *(_with_axis(rows, length) for rows in found[carries:])]

    def _while(self, equation: Any, inner: Any, given: list[Rows]) -> list[Rows]:
        skipped, consts = equation.params["cond_nconsts"], equation.params["body_nconsts"]
        fixed, carry = given[skipped : skipped + consts], given[skipped + consts :]
        shapes, unknown = [tuple(x.aval.shape) for x in equation.outvars], [_unknown] * (len(given) - skipped)
        # How often it runs may depend on all entries; each entry stops where it has converged.
        return self._settled(lambda carry: self._called(inner, [*fixed, *carry], unknown), carry, shapes)

    def _settled(
        self, step: Callable[[list[Rows]], list[Rows]], carry: list[Rows], shapes: list[tuple[int, ...]]
    ) -> list[Rows]:
        """What a loop's step gives when more steps add no row to what is carried."""
        while True:
            found = step(carry)
            new = [union(pair, shape) for *pair, shape in zip(carry, found, shapes, strict=False)]
            if all(map(_equal, new, carry)):
                return [*new, *found[len(carry) :]]
            carry = new


def _is_literal(variable: Any) -> bool:
    return hasattr(variable, "val")


class _NoNumber(Exception):
    """A number that is not known, such as one of a loop."""


def _unknown() -> Any:
    raise _NoNumber


def _entry(number: Callable[[], Any], i: int) -> Callable[[], Any]:
    return lambda: number()[i]


def _inner(name: str, params: Mapping[str, Any]) -> Any:
    if name == "cond":
        return params["branches"][0]
    if name == "while":
        return params["body_jaxpr"]
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr", "call"):
        if (found := params.get(key)) is not None and hasattr(getattr(found, "jaxpr", found), "eqns"):
            return found if hasattr(found, "consts") else _Closed(found, ())
    return None


class _Closed(NamedTuple):
    jaxpr: Any
    consts: tuple


def _equal(a: Rows, b: Rows) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[kind], b[kind]) for kind in a)


def _stacked(parts: Sequence[Rows]) -> Rows:
    kinds = set().union(*parts)
    shape = {kind: next(rows[kind].shape for rows in parts if kind in rows) for kind in kinds}
    empty = lambda kind: np.full(shape[kind], NONE, np.int32)  # noqa: E731
    return {kind: np.stack([rows.get(kind, empty(kind)) for rows in parts], axis=1) for kind in kinds}


def _with_axis(rows: Rows, length: int) -> Rows:
    return {kind: np.broadcast_to(x[:, None], (2, length, *x.shape[1:])) for kind, x in rows.items()}


# -- rules: of a scope, an equation, the rows of its arguments and the shapes of its results --------------------------


def _moved(change: Callable[[np.ndarray, Any, Mapping[str, Any]], np.ndarray]) -> Callable[..., Any]:
    """Of an operation that moves the entries of its first argument."""

    def rule(scope: _Scope, equation: Any, given: list[Rows], shapes: list) -> list[Rows]:
        of = {kind: change(x, equation, equation.params) for kind, x in given[0].items()}
        return [of] if all(x.shape[1:] == shapes[0] for x in of.values()) else None  # type: ignore[return-value]

    return rule


def _broadcast(x: np.ndarray, equation: Any, params: Mapping[str, Any]) -> np.ndarray:
    shape = equation.outvars[0].aval.shape
    sizes = np.ones(len(shape), int)
    sizes[list(map(int, params["broadcast_dimensions"]))] = x.shape[1:]
    return np.broadcast_to(x.reshape(2, *sizes), (2, *shape))


def _sliced(x: np.ndarray, equation: Any, params: Mapping[str, Any]) -> np.ndarray:
    strides = params["strides"] or (1,) * (x.ndim - 1)
    ends = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return x[(slice(None), *(slice(*map(int, end)) for end in ends))]


def _reversed(x: np.ndarray, equation: Any, params: Mapping[str, Any]) -> np.ndarray:
    return np.flip(x, tuple(axis + 1 for axis in params["dimensions"]))


def _reshaped(x: np.ndarray, equation: Any, params: Mapping[str, Any]) -> np.ndarray:
    return x.reshape(2, *equation.outvars[0].aval.shape)


def _transposed(x: np.ndarray, equation: Any, params: Mapping[str, Any]) -> np.ndarray:
    return x.transpose(0, *(axis + 1 for axis in params["permutation"]))


def _padded(scope: _Scope, equation: Any, given: list[Rows], shapes: list) -> list[Rows] | None:
    low_high_inner = [tuple(map(int, x)) for x in equation.params["padding_config"]]
    if any(inner or low < 0 or high < 0 for low, high, inner in low_high_inner):
        return None
    widths = [(0, 0), *((low, high) for low, high, _ in low_high_inner)]
    moved = {kind: np.pad(x, widths, constant_values=NONE) for kind, x in given[0].items()}
    return [union([moved, given[1]], shapes[0])]


def _concatenated(scope: _Scope, equation: Any, given: list[Rows], shapes: list) -> list[Rows]:
    kinds, axis = set().union(*given), equation.params["dimension"] + 1
    sizes = [(2, *x.aval.shape) for x in equation.invars]
    parts = lambda kind: [  # noqa: E731
        rows.get(kind, np.full(size, NONE, np.int32)) for rows, size in zip(given, sizes, strict=True)
    ]
    return [{kind: np.concatenate(parts(kind), axis=axis) for kind in kinds}]


def _stacked_on(scope: _Scope, equation: Any, given: list[Rows], shapes: list) -> list[Rows]:
    axis = equation.params["axis"]
    sizes, parts = [(2, *x.aval.shape) for x in equation.invars], {}
    for kind in set().union(*given):
        each = [r.get(kind, np.full(size, NONE, np.int32)) for r, size in zip(given, sizes, strict=True)]
        parts[kind] = np.stack(each, axis=axis % len(shapes[0]) + 1)
    return [parts]


def _unstacked(scope: _Scope, equation: Any, given: list[Rows], shapes: list) -> list[Rows]:
    axis = equation.params["axis"] % equation.invars[0].aval.ndim
    return [{kind: np.take(x, i, axis=axis + 1) for kind, x in given[0].items()} for i in range(len(shapes))]


def _split(scope: _Scope, equation: Any, given: list[Rows], shapes: list) -> list[Rows]:
    axis, ends = equation.params["axis"], np.cumsum(list(map(int, equation.params["sizes"])))[:-1]
    parts = {kind: np.split(x, ends, axis=axis + 1) for kind, x in given[0].items()}
    return [{kind: each[i] for kind, each in parts.items()} for i in range(len(shapes))]


def _tiled(x: np.ndarray, equation: Any, params: Mapping[str, Any]) -> np.ndarray:
    return np.tile(x, (1, *map(int, params["reps"])))


def _reduced(scope: _Scope, equation: Any, given: list[Rows], shapes: list) -> list[Rows]:
    axes = [int(axis) for axis in equation.params["axes"]]
    found = union([together(rows, axes) for rows in given], shapes[0])
    return [found] * len(shapes)


def _along(axis_of: Callable[[Any], Iterable[int]]) -> Callable[..., Any]:
    """Of an operation whose results depend on everything along some axes, which stay or change their length."""

    def rule(scope: _Scope, equation: Any, given: list[Rows], shapes: list) -> list[Rows]:
        ranks = [len(x.aval.shape) for x in equation.invars]
        each = [
            together(rows, [axis % rank for axis in axis_of(equation)], keep=True)
            for rows, rank in zip(given, ranks, strict=True)
            if rank
        ]
        return [union(each, shape) for shape in shapes]

    return rule


def _windows(equation: Any) -> list[int]:
    params = equation.params
    sizes = params.get("window_dimensions", ())
    return [i for i, size in enumerate(sizes) if size != 1]


def _windowed(scope: _Scope, equation: Any, given: list[Rows], shapes: list) -> list[Rows] | None:
    wide, params = _windows(equation), equation.params
    own = [i for i in range(len(shapes[0])) if i not in wide]
    plain = all(params.get("window_strides", (1,) * 99)[i] == 1 and tuple(params["padding"][i]) == (0, 0) for i in own)
    if not plain:
        return None
    return [union([together(rows, wide, keep=True) for rows in given if rows], shapes[0])]


def _product(scope: _Scope, equation: Any, given: list[Rows], shapes: list) -> list[Rows]:
    (contracted, batch), parts = equation.params["dimension_numbers"], []
    ranks = [len(x.aval.shape) for x in equation.invars]
    free = [[i for i in range(r) if i not in (*c, *b)] for r, c, b in zip(ranks, contracted, batch, strict=True)]
    for side, rows in enumerate(given):
        order = [*batch[side], *free[side]]
        for_axes = together(rows, contracted[side], keep=True)
        shape = [equation.invars[side].aval.shape[i] for i in order]
        before = () if side == 0 else (1,) * len(free[0])
        after = (1,) * len(free[1]) if side == 0 else ()
        count = len(batch[side])
        parts.append(
            {
                kind: np.squeeze(
                    x.transpose(0, *(i + 1 for i in order), *(i + 1 for i in contracted[side])),
                    axis=tuple(range(1 + len(order), x.ndim)),
                ).reshape(2, *shape[:count], *before, *shape[count:], *after)
                for kind, x in for_axes.items()
            }
        )
    return [union(parts, shapes[0])]


def _convolved(scope: _Scope, equation: Any, given: list[Rows], shapes: list) -> list[Rows] | None:
    params = equation.params
    if params["batch_group_count"] != 1:
        return None
    numbers = params["dimension_numbers"]
    image, out = numbers.lhs_spec[0], numbers.out_spec[0]
    rank = len(shapes[0])
    moved = {}
    for kind, x in together(given[0], [i for i in range(rank) if i != image], keep=True).items():
        sizes = [1] * rank
        sizes[out] = x.shape[image + 1]
        moved[kind] = x.reshape(2, *sizes)
    return [union([moved, together(given[1])], shapes[0])]


def _of_matrices(scope: _Scope, equation: Any, given: list[Rows], shapes: list) -> list[Rows]:
    each = [together(rows, (x.aval.ndim - 2, x.aval.ndim - 1)) for rows, x in zip(given, equation.invars, strict=True)]
    batch = max((x.aval.shape[:-2] for x in equation.invars), key=len)
    found = union(each, batch)
    rank = len(batch)
    return [
        union([{kind: x.reshape(*x.shape, *(1,) * (len(shape) - rank)) for kind, x in found.items()}], shape)
        for shape in shapes
    ]


def _looked_up(scope: _Scope, equation: Any, given: list[Rows], shapes: list) -> list[Rows] | None:
    """Of a gather, a scatter or a slice whose place is computed: the same operation on row numbers."""
    name, places = equation.primitive.name, _places(equation)
    try:
        at = {i: jnp.asarray(scope.number(equation.invars[i])) for i in places}
    except (_NoNumber, KeyError):
        return None
    by_place = union([together(given[i]) for i in places], ())
    if name == "gather":  # each entry has its own place
        offsets = set(equation.params["dimension_numbers"].offset_dims)
        own = [axis for axis in range(len(shapes[0])) if axis not in offsets]
        by_place = {}
        for kind, x in together(given[1], [equation.invars[1].aval.ndim - 1]).items():
            sizes = np.ones(len(shapes[0]), int)
            sizes[own] = x.shape[1:]
            by_place[kind] = x.reshape(2, *sizes)
    kinds = set().union(*(rows for i, rows in enumerate(given) if i not in places))
    whole = [(2, *x.aval.shape) for x in equation.invars]
    params = dict(equation.params)
    if name == "gather":
        params["fill_value"] = NONE
    found: Rows = {}
    for kind in kinds:
        moving = [i for i in range(len(given)) if i not in places]
        numbers = [np.asarray(given[i].get(kind, np.full(whole[i], NONE, np.int32))) for i in moving]

        def once(*x: Any) -> Any:
            each = dict(zip(moving, x, strict=True)) | at  # noqa: B023
            ordered = [each[i] for i in range(len(given))]
            if name.startswith("scatter-"):  # what is combined depends on all of it
                operand, place, updates = ordered
                return lax.scatter_min(operand, place, updates, params["dimension_numbers"], mode=params["mode"])
            return equation.primitive.bind(*ordered, **params)

        with jax.ensure_compile_time_eval():
            found[kind] = np.stack([np.asarray(once(*map(jnp.asarray, half))) for half in zip(*numbers, strict=True)])
    return [union([found, by_place], shapes[0])]


def _places(equation: Any) -> list[int]:
    count = len(equation.invars)
    first = {"dynamic_slice": 1, "dynamic_update_slice": 2}.get(equation.primitive.name)
    return [1] if first is None else list(range(first, count))


_RULES: dict[str, Callable[..., list[Rows] | None]] = {
    "broadcast_in_dim": _moved(_broadcast),
    "reshape": _moved(_reshaped),
    "squeeze": _moved(_reshaped),
    "expand_dims": _moved(_reshaped),
    "transpose": _moved(_transposed),
    "slice": _moved(_sliced),
    "rev": _moved(_reversed),
    "tile": _moved(_tiled),
    "pad": _padded,
    "concatenate": _concatenated,
    "split": _split,
    "stack": _stacked_on,
    "unstack": _unstacked,
    "dot_general": _product,
    "conv_general_dilated": _convolved,
    "sort": _along(lambda equation: [equation.params["dimension"]]),
    "top_k": _along(lambda equation: [-1]),
    "fft": _along(lambda equation: [-1 - i for i in range(len(equation.params["fft_lengths"]))]),
}
_RULES |= {f"scatter-{how}": _looked_up for how in ("add", "sub", "mul", "min", "max")}
_RULES |= dict.fromkeys(("gather", "dynamic_slice", "dynamic_update_slice", "scatter"), _looked_up)
_RULES |= dict.fromkeys(_OF_MATRICES, _of_matrices)
_RULES |= dict.fromkeys(_REDUCTIONS, _reduced)
_RULES |= dict.fromkeys(
    ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), _along(lambda equation: [equation.params["axis"]])
)
_RULES |= dict.fromkeys(("reduce_window_sum", "reduce_window_max", "reduce_window_min"), _windowed)
