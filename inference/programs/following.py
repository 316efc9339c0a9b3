"""On which rows does each number of a traced program depend? Rows are followed through it, and nothing is computed.

Every entry of every array has the first and the last row on which it depends. An operation does to these numbers the
same as to the entries: it moves them, or takes the least and the largest of the entries that it combines. An operation
that is not known here combines everything, so that a dependence can be overestimated and is never missed. Derivatives
would miss some: they are zero where a value passes through a comparison, an index or a rounding, and can be zero at the
numbers that they are taken at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import Any, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal, jaxprs_in_params

#: ``[kinds, 2, *shape]``: for each entry of an array, the first row of each kind and minus the last; or :data:`NONE`.
Rows: TypeAlias = np.ndarray

#: Larger than every number of a row.
NONE = np.iinfo(np.int32).max

#: Steps of a loop that are followed one by one; of a longer one, all steps depend on what any step does.
_FEW_STEPS = 16

_SAME_PLACE = """
    abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e bitcast_convert_type cbrt
    ceil clamp clz complex conj convert_element_type copy copy_p cos cosh device_put digamma div eq eq_to erf
    erf_inv erfc exp exp2 expm1 floor ge gt igamma igamma_grad_a igammac imag integer_pow is_finite le le_to
    lgamma log log1p logistic lt lt_to max min mul mulhi name ne neg nextafter not or
    polygamma population_count pow random_gamma_grad real reduce_precision regularized_incomplete_beta rem reshard
    round rsqrt select_n sharding_constraint shift_left shift_right_arithmetic shift_right_logical sign sin sinh
    sqrt square stop_gradient sub tan tanh xor zeta
""".split()

#: Functions of the last two axes of their arguments.
_OF_MATRICES = "cholesky eig eigh householder_product lu qr schur svd triangular_solve".split()

_REDUCTIONS = "reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor argmax argmin".split()

_CUMULATIVE = "cumsum cumprod cummax cummin cumlogsumexp".split()


def union(each: Iterable[Rows], shape: Sequence[int]) -> Rows:
    """The rows of what depends on all of these, whose shapes broadcast to ``shape``."""
    wide = (placed(x, range(len(shape) + 2 - x.ndim, len(shape)), len(shape)) for x in each)
    return reduce(np.minimum, (np.broadcast_to(x, (*x.shape[:2], *shape)) for x in wide))


def together(rows: Rows, axes: Iterable[int] | None = None, keep: bool = False) -> Rows:
    """The rows of what depends on all entries along ``axes``, or on all entries."""
    axes = range(rows.ndim - 2) if axes is None else axes
    return rows.min(axis=tuple(axis + 2 for axis in axes), initial=NONE, keepdims=keep)


def placed(rows: Rows, axes: Iterable[int], rank: int) -> Rows:
    """The same rows for an array of this rank, whose other axes than ``axes`` have length 1."""
    sizes = np.ones(rank, int)
    sizes[list(axes)] = rows.shape[2:]
    return rows.reshape(*rows.shape[:2], *sizes)


class Follow:
    """The rows of the variables of a traced program: of its results, and of others as long as something needs them.

    Args:
        program: the program.
        given: the rows of its arguments.
        numbers: for each argument, a function that gives its value: indices are looked up by it.
        kinds: number of kinds of rows.
        known: for values of sites, by variable, a function of this object that gives their rows from earlier ones.
    """

    def __init__(
        self,
        program: Any,
        given: Sequence[Rows],
        numbers: Sequence[Callable[[], Any]],
        kinds: int,
        known: Mapping[Any, Callable[[Follow], Rows]] | None = None,
    ) -> None:
        self.kinds, known, jaxpr = kinds, known or {}, program.jaxpr
        pairs = zip(jaxpr.invars, given, strict=True)
        self.rows = {variable: rows for variable, rows in pairs if rows.min(initial=NONE) < NONE}
        self.numbers = dict(zip(jaxpr.invars, numbers, strict=True))
        self.numbers |= {v: (lambda x=x: x) for v, x in zip(jaxpr.constvars, program.consts, strict=True)}
        last = {id(variable): equation for equation in jaxpr.eqns for variable in equation.invars}
        last |= {id(variable): None for variable in jaxpr.outvars}
        for equation in jaxpr.eqns:
            self._remember(equation)
            for variable, rows in zip(equation.outvars, self._results(equation), strict=True):
                if (site := known.get(variable)) is not None:
                    rows = union([self.none(()) if rows is None else rows, site(self)], variable.aval.shape)
                if rows is not None:
                    self.rows[variable] = rows
            for variable in equation.invars:
                if not isinstance(variable, Literal) and last[id(variable)] is equation:
                    self.rows.pop(variable, None)

    def none(self, shape: Sequence[int]) -> Rows:
        """The rows of an array of this shape that depends on none."""
        return np.broadcast_to(np.int32(NONE), (self.kinds, 2, *shape))

    def __call__(self, variable: Any) -> Rows:
        """The rows of a variable, or of a constant."""
        found = None if isinstance(variable, Literal) else self.rows.get(variable)
        kind: Any = variable.aval
        return self.none(kind.shape) if found is None else found

    def number(self, variable: Any) -> Any:
        """The value of a variable, which is computed where an index depends on it."""
        return variable.val if isinstance(variable, Literal) else self.numbers[variable]()

    def inside(self, program: Any, given: Sequence[Rows], numbers: Sequence[Callable[[], Any]]) -> list[Rows]:
        """The rows of the results of an inner program."""
        found = Follow(program, given, numbers, self.kinds)
        return [found(variable) for variable in program.jaxpr.outvars]

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

    def _results(self, equation: Any) -> Sequence[Rows | None]:
        if all(isinstance(variable, Literal) or variable not in self.rows for variable in equation.invars):
            return [None] * len(equation.outvars)
        given = [self(variable) for variable in equation.invars]
        shapes = [tuple(x.aval.shape) for x in equation.outvars]
        rule = _RULES.get(equation.primitive.name, _called)
        found = rule(self, equation, given, shapes)
        if found is None:
            everything = union(map(together, given), ())
            found = [union([everything], shape) for shape in shapes]
        return found


class _NoNumber(Exception):
    """A number that is not known, such as one of a loop."""


def _unknown() -> Any:
    raise _NoNumber


# -- rules: of an equation, the rows of its arguments and the shapes of its results; None if everything is combined ----


def _same_place(follow: Follow, equation: Any, given: list[Rows], shapes: list) -> list[Rows]:
    return [union(given, shapes[0])]


def _moved(change: Callable[..., Any]) -> Callable[..., Any]:
    """Of an operation that moves entries: ``change`` does so to arrays with two axes in front."""

    def rule(follow: Follow, equation: Any, given: list[Rows], shapes: list) -> list[Rows] | None:
        found = change(equation.params, shapes[0], *given)
        found = found if isinstance(found, list) else [found]
        return found if [x.shape[2:] for x in found] == shapes else None

    return rule


def _padded(follow: Follow, equation: Any, given: list[Rows], shapes: list) -> list[Rows] | None:
    config = [tuple(map(int, x)) for x in equation.params["padding_config"]]
    if any(low < 0 or high < 0 for low, high, _ in config):
        return None
    found = np.array(union(given[1:], shapes[0]))
    ends = zip(config, shapes[0], strict=True)
    found[(..., *(slice(low, size - high, inner + 1) for (low, high, inner), size in ends))] = given[0]
    return [found]


def _reduced(follow: Follow, equation: Any, given: list[Rows], shapes: list) -> list[Rows]:
    return [union([together(rows, equation.params["axes"]) for rows in given], shape) for shape in shapes]


def _along(axes_of: Callable[[Mapping[str, Any]], Iterable[int]]) -> Callable[..., Any]:
    """Of an operation whose results depend on everything along some axes, which stay or change their length."""

    def rule(follow: Follow, equation: Any, given: list[Rows], shapes: list) -> list[Rows]:
        axes = [list(axes_of(equation.params)), [x.ndim - 2 for x in given]]
        each = [together(x, [i % r for i in axes[0]], keep=True) for x, r in zip(given, axes[1], strict=True) if r]
        return [union(each, shape) for shape in shapes]

    return rule


def _windowed(follow: Follow, equation: Any, given: list[Rows], shapes: list) -> list[Rows] | None:
    params = equation.params
    wide = [i for i, size in enumerate(params.get("window_dimensions", ())) if size != 1]
    own = [i for i in range(len(shapes[0])) if i not in wide]
    strides = params.get("window_strides") or (1,) * len(shapes[0])
    if any(strides[i] != 1 or tuple(params["padding"][i]) != (0, 0) for i in own):
        return None
    return [union([together(rows, wide, keep=True) for rows in given], shapes[0])]


def _product(follow: Follow, equation: Any, given: list[Rows], shapes: list) -> list[Rows]:
    (contracted, batch), rank = equation.params["dimension_numbers"], len(shapes[0])
    parts, shared = [], len(batch[0])
    for side, rows in enumerate(given):
        kept = [i for i in range(rows.ndim - 2) if i not in contracted[side]]
        order = [*batch[side], *(i for i in kept if i not in batch[side])]
        own = len(order) - shared
        places = [*range(shared), *(range(shared, shared + own) if side == 0 else range(rank - own, rank))]
        moved = together(rows, contracted[side]).transpose(0, 1, *(kept.index(i) + 2 for i in order))
        parts.append(placed(moved, places, rank))
    return [union(parts, shapes[0])]


def _convolved(follow: Follow, equation: Any, given: list[Rows], shapes: list) -> list[Rows] | None:
    if equation.params["batch_group_count"] != 1:
        return None
    numbers, rank = equation.params["dimension_numbers"], len(shapes[0])
    images = together(given[0], [i for i in range(rank) if i != numbers.lhs_spec[0]])
    return [union([placed(images, [numbers.out_spec[0]], rank), together(given[1])], shapes[0])]


def _of_matrices(follow: Follow, equation: Any, given: list[Rows], shapes: list) -> list[Rows]:
    each = [together(rows, (rows.ndim - 4, rows.ndim - 3)) for rows in given]
    return [union([placed(x, range(x.ndim - 2), len(shape)) for x in each], shape) for shape in shapes]


def _looked_up(follow: Follow, equation: Any, given: list[Rows], shapes: list) -> list[Rows] | None:
    """Of a gather, a scatter or a slice whose place is computed: the same operation on row numbers."""
    name, bind = equation.primitive.name, equation.primitive.bind
    params: dict[str, Any] = dict(equation.params)
    first = {"dynamic_slice": 1, "dynamic_update_slice": 2}.get(name)
    places = [1] if first is None else list(range(first, len(given)))
    moving = [i for i in range(len(given)) if i not in places]
    by_place = union([together(given[i]) for i in places], ())
    if name == "gather":  # each entry has its own place
        params["fill_value"] = NONE
        own = [axis for axis in range(len(shapes[0])) if axis not in params["dimension_numbers"].offset_dims]
        by_place = placed(together(given[1], [given[1].ndim - 3]), own, len(shapes[0]))
    try:
        at = {i: jnp.asarray(follow.number(equation.invars[i])) for i in places}
    except (_NoNumber, KeyError):
        # In a table that depends on no row it does not matter where an entry is found.
        table = name == "gather" and (given[0] == NONE).all()
        return [union([by_place], shapes[0])] if table else None
    if name.startswith("scatter-"):  # what is combined depends on all of it
        bind, params = (
            cast(Any, lax.scatter_min),
            {"dimension_numbers": params["dimension_numbers"], "mode": params["mode"]},
        )

    def once(*numbers: Any) -> Any:
        each = dict(zip(moving, numbers, strict=True)) | at
        return bind(*(each[i] for i in range(len(given))), **params)

    with jax.ensure_compile_time_eval():
        halves = zip(*(given[i].reshape(-1, *given[i].shape[2:]) for i in moving), strict=True)
        found = np.stack([np.asarray(once(*map(jnp.asarray, half))) for half in halves])
    return [union([found.reshape(follow.kinds, 2, *shapes[0]), by_place], shapes[0])]


# -- rules of programs inside ------------------------------------------------------------------------------------------


def _numbers(follow: Follow, variables: Iterable[Any]) -> list[Callable[[], Any]]:
    return [partial(follow.number, variable) for variable in variables]


def _called(follow: Follow, equation: Any, given: list[Rows], shapes: list) -> list[Rows] | None:
    """Of an operation that runs a program, such as ``jit`` and functions with derivatives of their own."""
    if equation.params.get("name") == "nan_unless":  # of gpzoo._checks
        return [given[0]]
    found = (equation.params.get(key) for key in ("jaxpr", "call_jaxpr", "fun_jaxpr", "call"))
    inner: Any = next((x for x in found if hasattr(getattr(x, "jaxpr", x), "eqns")), None)
    if inner is None:
        return None
    inner = inner if hasattr(inner, "consts") else ClosedJaxpr(inner, ())
    if len(inner.jaxpr.invars) != len(given):
        return None
    return follow.inside(inner, given, _numbers(follow, equation.invars))


def _linear_solve(follow: Follow, equation: Any, given: list[Rows], shapes: list) -> list[Rows]:
    """Of ``jnp.linalg.solve``: its programs' constants come first, and only one of them computes the solution."""
    lengths, program = equation.params["const_lengths"], equation.params["jaxprs"].solve
    first, end = sum(lengths[:2]), sum(lengths)
    numbers = _numbers(follow, equation.invars)
    return follow.inside(
        program,
        [*given[first : first + lengths.solve], *given[end:]],
        [*numbers[first : first + lengths.solve], *numbers[end:]],
    )


def _chosen(follow: Follow, equation: Any, given: list[Rows], shapes: list) -> list[Rows]:
    numbers = _numbers(follow, equation.invars[1:])
    each = [follow.inside(branch, given[1:], numbers) for branch in equation.params["branches"]]
    return [union([together(given[0]), *of], shape) for *of, shape in zip(*each, shapes, strict=True)]


def _scan(follow: Follow, equation: Any, given: list[Rows], shapes: list) -> list[Rows]:
    params = equation.params
    inner, consts, length = params["jaxpr"], params["num_consts"], params["length"]
    first = consts + params["num_carry"]
    fixed, carry, each = given[:consts], given[consts:first], given[first:]
    if length > _FEW_STEPS:
        every = [together(rows, (0,)) for rows in each]
        found = _settled(follow, inner, lambda carry: [*fixed, *carry, *every], carry, shapes)
        wide = [placed(rows, range(1, rows.ndim - 1), rows.ndim - 1) for rows in found[len(carry) :]]
        return [*found[: len(carry)], *(union([x], s) for x, s in zip(wide, shapes[len(carry) :], strict=True))]
    numbers, outputs = _numbers(follow, equation.invars), [[] for _ in shapes[len(carry) :]]
    order = range(length)[::-1] if params["reverse"] else range(length)
    for i in order:
        own = [lambda number=number, i=i: number()[i] for number in numbers[first:]]
        inputs = [*numbers[:consts], *[_unknown] * len(carry), *own]
        found = follow.inside(inner, [*fixed, *carry, *(rows[:, :, i] for rows in each)], inputs)
        carry = found[: len(carry)]
        for output, rows in zip(outputs, found[len(carry) :], strict=True):
            output.append(rows)
    stacked = [np.stack(output[::-1] if params["reverse"] else output, axis=2) for output in outputs if length]
    return [*carry, *stacked] if length else [*carry, *map(follow.none, shapes[len(carry) :])]


def _while(follow: Follow, equation: Any, given: list[Rows], shapes: list) -> list[Rows]:
    skipped, consts = equation.params["cond_nconsts"], equation.params["body_nconsts"]
    of_condition, fixed, carry = given[:skipped], given[skipped : skipped + consts], given[skipped + consts :]
    body, condition = equation.params["body_jaxpr"], equation.params["cond_jaxpr"]
    found = _settled(follow, body, lambda carry: [*fixed, *carry], carry, shapes)
    if any(x.primitive.name in ("random_bits", "threefry2x32") for x in _equations(body.jaxpr)):
        return found  # a sampler that rejects: no entry that was accepted changes
    (more,) = follow.inside(condition, [*of_condition, *found], [_unknown] * (skipped + len(found)))
    # After vmap each entry along the first axes has a condition of its own.
    own = range(more.ndim - 2)
    return [union([x, placed(more, own, len(shape))], shape) for x, shape in zip(found, shapes, strict=True)]


def _equations(program: Any) -> Iterator[Any]:
    for equation in program.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from _equations(inner)


def _settled(
    follow: Follow, inner: Any, inputs: Callable[[list[Rows]], list[Rows]], carry: list[Rows], shapes: list
) -> list[Rows]:
    """The rows of a loop's results, when more steps add no row to those of what is carried."""
    while True:
        given = inputs(carry)
        found = follow.inside(inner, given, [_unknown] * len(given))
        new = [union(pair, shape) for *pair, shape in zip(carry, found, shapes, strict=False)]
        if all(map(np.array_equal, new, carry)):
            return [*new, *found[len(carry) :]]
        carry = new


def _slices(params: Mapping[str, Any], shape: Sequence[int], x: Rows) -> Rows:
    strides = params["strides"] or (1,) * len(shape)
    return x[(..., *map(slice, params["start_indices"], params["limit_indices"], strides))]


def _split(params: Mapping[str, Any], shape: Sequence[int], x: Rows) -> list[Rows]:
    return np.split(x, np.cumsum(params["sizes"])[:-1], axis=params["axis"] + 2)


def _reshaped(params: Mapping[str, Any], shape: Sequence[int], x: Rows) -> Rows:
    return x.reshape(*x.shape[:2], *shape)


_RULES: dict[str, Callable[..., Sequence[Rows] | None]] = {
    **dict.fromkeys(_SAME_PLACE, _same_place),
    **dict.fromkeys(_REDUCTIONS, _reduced),
    **dict.fromkeys(_OF_MATRICES, _of_matrices),
    **dict.fromkeys(_CUMULATIVE, _along(lambda params: [params["axis"]])),
    "sort": _along(lambda params: [params["dimension"]]),
    "top_k": _along(lambda params: [params.get("axis", -1)]),
    "fft": _along(lambda params: [-1 - i for i in range(len(params["fft_lengths"]))]),
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), _moved(_reshaped)),
    "broadcast_in_dim": _moved(
        lambda params, shape, x: union([placed(x, params["broadcast_dimensions"], len(shape))], shape)
    ),
    "transpose": _moved(lambda params, _, x: x.transpose(0, 1, *(axis + 2 for axis in params["permutation"]))),
    "slice": _moved(_slices),
    "rev": _moved(lambda params, _, x: np.flip(x, tuple(axis + 2 for axis in params["dimensions"]))),
    "tile": _moved(lambda params, _, x: np.tile(x, (1, 1, *params["reps"]))),
    "concatenate": _moved(lambda params, _, *each: np.concatenate(each, axis=params["dimension"] + 2)),
    "stack": _moved(lambda params, shape, *each: np.stack(each, axis=params["axis"] % len(shape) + 2)),
    "unstack": _moved(lambda params, _, x: list(np.moveaxis(x, params["axis"] % (x.ndim - 2) + 2, 0))),
    "split": _moved(_split),
    "pad": _padded,
    "dot_general": _product,
    "conv_general_dilated": _convolved,
    **dict.fromkeys((f"reduce_window_{how}" for how in ("sum", "max", "min")), _windowed),
    **dict.fromkeys((f"scatter-{how}" for how in ("add", "sub", "mul", "min", "max")), _looked_up),
    **dict.fromkeys(("gather", "dynamic_slice", "dynamic_update_slice", "scatter"), _looked_up),
    "lu_pivots_to_permutation": _along(lambda params: [-1]),
    "custom_linear_solve": _linear_solve,
    "optimization_barrier": lambda follow, equation, given, shapes: given,
    "cond": _chosen,
    "scan": _scan,
    "while": _while,
}
