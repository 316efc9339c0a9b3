"""Functions of a trained guide: drawn through all layers, at any number of inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jaxtyping import Float, Integer, PRNGKeyArray

from gpzoo import _checks as checks
from gpzoo import linalg
from gpzoo._types import Argument
from gpzoo.inducing.kuu_kuf import Kuu
from gpzoo.inducing.variables import InducingVariable
from gpzoo.inference.fitted.map_batches import Arrays, Batch, BatchFunction, BoundModel, map_batches, refuse_batches
from gpzoo.inference.fitted.parts import checked_parts, refuse_other_parts
from gpzoo.inference.guides.guide import InducingGuide
from gpzoo.inference.programs.arguments import arguments
from gpzoo.inference.programs.calls import RUNNING
from gpzoo.inference.programs.gp_sites import BatchRows, Pathwise
from gpzoo.inference.programs.keys import named_key
from gpzoo.inference.programs.runs import run
from gpzoo.kernels import Kernel, Scaled
from gpzoo.kernels.base import addends
from gpzoo.kernels.fourier_features import function_values
from gpzoo.linalg.operators import BlockDiagonalMatrix
from gpzoo.posteriors.posterior import InducingPosterior

#: A key, and the number of the draw if the posterior is draws. For many functions, both have a leading axis.
Draw: TypeAlias = tuple[Array, dict[str, Array]]


def values_of_functions(
    model: BoundModel,
    rng_key: Array,
    *,
    num_draws: int,
    num_features: int,
    batch_size: int,
    parts: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, np.ndarray]:
    """Values of functions, see :meth:`gpzoo.inference.Trained.functions`."""
    counts = {"num_draws": num_draws, "num_features": num_features, "batch_size": batch_size}
    for name, value in counts.items():
        checks.positive_int(name, value)
    refuse_batches(model, batch_size)
    guide, named = model.guide, checked_parts(parts)
    if named:
        refuse_other_parts(named, model.look.trace, guide.sites.processes)

    def of_draw(draw: Draw, batch: Batch) -> Arrays:
        own, options = (batch.site_rows, batch.args, batch.kwargs), {"num_features": num_features, "parts": named}
        return {"functions": values_of_draw(guide, batch.params, draw, *own, **options)}

    # One draw at a time, because the largest array is the features of a batch.
    options = num_features, tuple(named.items())
    fn, draws = BatchFunction("functions", of_draw, options), draws_of(rng_key, model, num_draws)
    sites = {name: site for site, names in named.items() for name in names}
    result = map_batches(fn, model, draws, batch_size, addends=sites)
    result.refuse_not_finite({"functions": "values of functions"}, guide.sites.processes)
    return result.arrays["functions"]


def one_function(
    rng_key: Array,
    guide: InducingGuide,
    params: Mapping[str, Any],
    draw: int,
    model_kwargs: Mapping[str, Any] | None,
    *,
    num_features: int,
    described: Mapping[str, Any],
) -> Callable[..., dict[str, Array]]:
    """One function of inputs, see :meth:`gpzoo.inference.Trained.function`."""
    draw = checks.count("draw", draw)
    checks.positive_int("num_features", num_features)
    rng_key = checks.rng_key(rng_key)

    def function(*new: Argument) -> dict[str, Array]:
        args, kwargs = arguments(guide.model, new, model_kwargs, new=True, described=described)
        with RUNNING:
            model = BoundModel(guide.model, guide, guide.checked_params(params, args, kwargs), args, kwargs)
            refuse_batches(model, 1)
            rows = model.num_rows
            one = jax.tree.map(lambda x: x[draw], draws_of(rng_key, model, draw + 1))
            own = BatchRows(jnp.arange(rows), rows, {}), args, kwargs
            return values_of_draw(guide, model.params, one, *own, num_features=num_features)

    return function


def draws_of(rng_key: Array, model: BoundModel, num_draws: int) -> Draw:
    """Stacked keys that fix ``num_draws`` functions, with numbers of MCMC draws if these draws are the posterior."""
    keys = random.split(named_key(checks.rng_key(rng_key), "functions"), num_draws)
    return keys, model.guide.numbers(model.params, num_draws)


def values_of_draw(
    guide: InducingGuide,
    params: dict[str, Any],
    draw: Draw,
    rows: BatchRows,
    args: tuple,
    kwargs: Mapping[str, Any],
    *,
    num_features: int,
    misfits: dict[str, Array] | None = None,
    parts: Mapping[str, tuple[str, ...]] | None = None,
) -> dict[str, Array]:
    """The values of each GP site at some rows, for one draw of the functions of all sites.

    Args:
        guide: guide of the program.
        params: checked values of parameters.
        draw: one of the keys of :func:`draws_of`.
        rows: rows of the arguments.
        args: checked positional arguments of the program.
        kwargs: keyword arguments of the program.
        num_features: see :meth:`gpzoo.inference.Trained.functions`.
        misfits: see :func:`pathwise`.
        parts: names for the addends of a GP site's kernel, by site. The result then has the values of these addends
            too.
    """
    key, number = draw
    addends = {site: {} for site in parts or {}}
    mode = Pathwise(rows, value=partial(pathwise, num_features=num_features, misfits=misfits, parts=addends))
    found = run(key, args, kwargs, guide=guide, values=params | number, mode=mode).guide
    values = {name: found[name]["value"] for name in guide.sites.processes}
    for site, names in (parts or {}).items():
        values |= {name: addends[site][i] for i, name in enumerate(names)}
    return values


def pathwise(
    posterior: InducingPosterior,
    key: PRNGKeyArray,
    *,
    num_features: int,
    rows: Integer[Array, " N"] | None = None,
    misfits: dict[str, Array] | None = None,
    parts: Mapping[str, dict[int, Array]] | None = None,
) -> Float[Array, "*event"]:
    """The values of one function from the posterior, at the inputs of the site. Equal keys give the same function.

    Args:
        posterior: posterior of one GP site.
        key: random key that fixes the function.
        num_features: see :meth:`gpzoo.inference.Trained.functions`.
        rows: row numbers of the inputs, ``[N]``, which fix the draws of white noise.
        misfits: ``u - g(Z)`` by site, where ``g`` is a draw of the prior function and ``Z`` are the inducing points;
            whitened if ``u`` is whitened. It is the same at all inputs. If the mapping has the site, its entry is used.
            Otherwise, a new entry is added.
        parts: a dictionary for each site. The function writes the values of the site's addends into it, by number.

    Returns:
        Values of the function, ``[N]`` or ``[N, D]``.

    Raises:
        TypeError: see :meth:`gpzoo.inference.Trained.functions`.
    """
    if posterior.conditional.deterministic:
        return posterior.as_joint().sample(key)  # interpolates one draw of u, wherever the inputs are
    prior, L = posterior.prior, posterior.conditional.L
    kernel, X, D = prior.kernel, prior.X, prior.num_outputs or 1
    key_u, key_prior, key_noise, key_white = random.split(key, 4)
    separate = L.ndim == 3 or kernel.batched or kernel.has_outputs(X)
    function, noise = kernel.split_noise()
    kernels = [part if factor is None else Scaled(part, factor) for factor, part in addends(function)]
    keys = list(random.split(key_prior, len(kernels)))

    def seen(part: Kernel, inputs: Array) -> Array:
        # A constant uses only the number of rows.
        return inputs[0] if part.input_ndim is None and kernel.has_outputs(inputs) else inputs

    def g(part: Kernel, key: PRNGKeyArray, inputs: Array) -> Float[Array, "_ D"]:
        inputs = inputs.astype(X.dtype)
        return function_values(part, seen(part, inputs), key, D, num_features, separate=separate)

    each = [g(part, key, X) for part, key in zip(kernels, keys, strict=True)]
    values = sum(each, jnp.zeros((posterior.num_inputs, D), X.dtype))
    misfits = {} if misfits is None else misfits
    if posterior.site not in misfits:
        at_inducing, variance = jnp.zeros((L.shape[-1], D), X.dtype), 0
        if function is not None:
            at_inducing, variance = _at_inducing(posterior.inducing, kernel, kernels, keys, g)
        # The diagonal of L L^T exceeds the variance of the functions by noise on u: white noise and the jitter.
        blocks = L.blocks if isinstance(L, BlockDiagonalMatrix) else (L,)
        total = jnp.concatenate([jnp.sum(jnp.square(block), axis=-1) for block in blocks], axis=-1)
        beyond = _columns(jnp.sqrt(jnp.maximum(total - variance, 0)))
        at_inducing = at_inducing + beyond * random.normal(key_noise, at_inducing.shape, X.dtype)
        if posterior.whiten:
            at_inducing = _solved(L, at_inducing)
        draw = posterior.draw_inducing(key_u)
        misfits[posterior.site] = draw - at_inducing.reshape(draw.shape)
    given = posterior.given(misfits[posterior.site])
    update = given.mean
    if parts is not None and posterior.site in parts:
        for i, (value, part) in enumerate(zip(each, given.parts(), strict=True)):
            moved = part.mean
            parts[posterior.site][i] = moved + value.reshape(moved.shape)
    if noise is not None:
        values = values + _columns(jnp.sqrt(noise.diag(seen(noise, X)))) * _normals(
            key_white, rows, values, posterior.in_row or 1
        )
    return update + values.reshape(update.shape)


def _at_inducing(
    inducing: InducingVariable, kernel: Kernel, parts: list[Kernel], keys: list[PRNGKeyArray], g: Callable
) -> tuple[Float[Array, "M D"], Float[Array, "*batch M"]]:
    """Values of inducing variables for prior functions, ``[M, D]``, and their variances, ``[M]`` or ``[D, M]``."""
    blocks = inducing.pairs(kernel)
    if blocks[0][0] is not inducing:
        each = [_at_inducing(u, part, [part], [key], g) for (u, part), key in zip(blocks, keys, strict=True)]
        batch = jnp.broadcast_shapes(*(variance.shape[:-1] for _, variance in each))
        variances = [jnp.broadcast_to(variance, batch + variance.shape[-1:]) for _, variance in each]
        return jnp.concatenate([values for values, _ in each]), jnp.concatenate(variances, axis=-1)
    each = [inducing.of(partial(g, part, key)) for part, key in zip(parts, keys, strict=True)]
    return linalg.total(each), linalg.diagonal(Kuu(inducing, kernel.split_noise()[0]))


def _normals(
    key: PRNGKeyArray, rows: Integer[Array, " N"] | None, like: Float[Array, "_ D"], in_row: int
) -> Float[Array, "_ D"]:
    """Standard normal numbers for every input, determined by the number of its row."""
    rows = jnp.arange(len(like)) if rows is None else (rows[:, None] * in_row + jnp.arange(in_row)).ravel()
    keys = jax.vmap(lambda row: random.fold_in(key, row))(rows)
    return jax.vmap(lambda key: random.normal(key, like.shape[1:], like.dtype))(keys)


def _columns(per_output: Float[Array, "*D M"]) -> Float[Array, "M _"]:
    """``[M]`` or ``[D, M]`` to ``[M, 1]`` or ``[M, D]``."""
    return per_output[:, None] if per_output.ndim == 1 else per_output.T


def _solved(L: Any, columns: Float[Array, "M D"]) -> Float[Array, "M D"]:
    """``L^-1`` times ``[M, D]``, each column by its own factor if ``L`` is ``[D, M, M]``."""
    if L.ndim == 2:
        return linalg.solve_lower(L, columns)
    return linalg.solve_lower(L, columns.T[:, :, None])[:, :, 0].T
