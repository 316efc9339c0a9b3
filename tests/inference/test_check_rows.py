"""Terms of several rows are told at the rows that are used: generated programs beside a dense computation."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest

from gpzoo import GaussianProcess, InducingPoints, draws, kernels
from gpzoo.inference import GaussianProcessELBO, InducingGuide, Trained
from gpzoo.inference.programs.check_rows import dependence_on_rows
from gpzoo.inference.programs.rows import Layout
from gpzoo.models import gaussian
from tests.programs import KEY
from tests.zoo import OTHERS
from tests.zoo import PROGRAMS as ZOO

# -- maps of drawn values: each is made for N rows, and maps [N] to [N] ------------------------------------------------


def doubled_outside(h):
    return jax.pure_callback(lambda x: np.asarray(x) * 2, jax.ShapeDtypeStruct(h.shape, h.dtype), h)


def looped(h):
    return jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, 0.9 * s[1] + 0.1 * jnp.sin(s[1])), (0, h))[1]


ELEMENTWISE = {
    "sine": jnp.sin,
    "exponential": lambda h: jnp.exp(h / 3),
    "clipped": lambda h: jnp.clip(h, -2, 2),
    "one by one": partial(jax.lax.map, jnp.tanh),
    "a choice": lambda h: jnp.where(h > 0, h, h / 2),
    "outside": doubled_outside,
    "a loop": looped,
    "mapped": jax.vmap(lambda x: jax.lax.cond(x > 0, jnp.sin, jnp.cos, x)),
    "there and back": lambda h: jnp.fft.ifft(jnp.fft.fft(h) * 1.1).real.astype(h.dtype),
}


def lagged(rng, N):
    lag = int(rng.integers(1, N))
    return lambda h: jnp.concatenate([h[:lag], h[lag:] - h[:-lag]])


def permuted(rng, N):
    order = rng.permutation(N)
    return lambda h: h[order]


def picked(rng, N):
    rows = rng.integers(0, N, N)
    return lambda h: h[rows]


def one_pair(rng, N):
    i, j = rng.choice(N, 2, replace=False)
    return lambda h: h.at[i].add(0.5 * h[j])


def grouped(rng, N):
    groups = rng.integers(0, max(N // 2, 1), N)
    return lambda h: h - jax.ops.segment_sum(h, groups, N)[groups] / N


def when_many(rng, N):
    limit = int(rng.integers(0, N + 5))
    return lambda h: h - h.mean() if len(h) > limit else h


def window(rng, N):
    width = int(rng.integers(1, N + 1))
    return lambda h: jax.lax.reduce_window(h, -jnp.inf, jax.lax.max, (width,), (1,), "SAME")


PLACES = {
    "lag": lagged,
    "permutation": permuted,
    "gather": picked,
    "one pair": one_pair,
    "groups": grouped,
    "centred if many": when_many,
    "window": window,
    "reversed": lambda rng, N: lambda h: h - 0.1 * h[::-1],
    "scan": lambda rng, N: lambda h: jax.lax.scan(lambda c, x: (0.5 * c + x,) * 2, jnp.zeros((), h.dtype), h)[1],
    "sort": lambda rng, N: jnp.sort,
    "running": lambda rng, N: jnp.cumsum,
    "product": lambda rng, N: lambda h: jnp.asarray(np.tri(N), h.dtype) @ h,
    "a transform": lambda rng, N: lambda h: jnp.abs(jnp.fft.fft(h)).astype(h.dtype),
}


def generated(rng, N):
    """A composition of some maps, most of which go by single rows."""
    names = [*rng.choice(list(ELEMENTWISE), rng.integers(0, 3))]
    maps = [ELEMENTWISE[name] for name in names]
    if rng.uniform() < 0.6:
        name = rng.choice(list(PLACES))
        place = int(rng.integers(0, len(maps) + 1))
        maps.insert(place, PLACES[name](rng, N))
        names.insert(place, name)

    def composed(h):
        for each in maps:
            h = each(h)
        return h

    return composed, " ".join(names)


def dense(function, shape, rows, dtype):
    """Which rows of its argument every entry of a function's value depends on, ``[M, rows]``; rows one by one."""
    rng, found = np.random.default_rng(1), 0
    at = jax.jit(function)
    for _ in range(3):
        base = rng.standard_normal(shape).astype(dtype)
        before = np.asarray(at(base))
        changed = []
        for row in range(rows.max() + 1):
            other = np.where(rows == row, rng.standard_normal(shape).astype(dtype), base)
            changed.append(np.abs(np.asarray(at(other)) - before) > 1e-5 * (1 + np.abs(before)))
        found = found | np.stack(changed, axis=-1)
    return found


# -- programs ----------------------------------------------------------------------------------------------------------


def one_layer(rng, N, X):
    g, name = generated(rng, N)

    def program(X, y=None):
        f = draws(numpyro.sample("f", GaussianProcess(kernels.RBF(1.0, 1.0), X)))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", gaussian(g(f), 0.1), obs=y)

    return program, dense(g, (N,), np.arange(N), X.dtype).sum(-1).max() > 1, {"f"}, name


def two_layers(rng, N, X):
    (first, one), (second, two), by_mean = generated(rng, N), generated(rng, N), rng.uniform() < 0.5
    skips = rng.uniform() < 0.3

    def program(X, y=None):
        h = draws(numpyro.sample("h", GaussianProcess(kernels.RBF(1.0, 1.0), X)))
        z = first(h)
        f = GaussianProcess(kernels.RBF(1.0, 1.0), X, mean=z) if by_mean else GaussianProcess(kernels.RBF(), z[:, None])
        f = second(draws(numpyro.sample("f", f)))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", gaussian(f + h if skips else f, 0.1), obs=y)

    of_h, of_f = (dense(g, (N,), np.arange(N), X.dtype) for g in (first, second))
    through = of_f.astype(int) @ of_h + (np.eye(N, dtype=int) if skips else 0) > 0
    several = any(x.sum(-1).max() > 1 for x in (of_h, of_f, through))
    return program, several, {"h", "f"}, f"{one}, {two}{', by the mean' * by_mean}{', skips' * skips}"


def several_inputs(rng, N, X):
    """Three inputs of a row, of which the mean is taken before or after something else."""
    g, name = generated(rng, N)
    strided, own_axis = rng.uniform(size=2) < 0.5
    per_row = jnp.stack([X, 2 * X, -X], 1)  # [N, 3, 1]
    flat = jnp.concatenate([X, 2 * X, -X]) if strided else per_row.reshape(-1, 1)

    def values(h):
        by_row = h if own_axis else h.reshape(3, N).T if strided else h.reshape(N, 3)
        return g(by_row.mean(1))

    def program(X, y=None):
        inputs = {"X": per_row, "per_row": True} if own_axis else {"X": flat}
        h = draws(numpyro.sample("h", GaussianProcess(kernels.RBF(1.0, 1.0), **inputs)))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", gaussian(values(h), 0.1), obs=y)

    entries = np.arange(3 * N)
    rows = np.tile(np.arange(N)[:, None], 3) if own_axis else entries % N if strided else entries // 3
    return program, dense(values, rows.shape, rows, X.dtype).sum(-1).max() > 1, {"h"}, f"three inputs, {name}"


@pytest.mark.slow
@pytest.mark.parametrize("block", range(50))
def test_no_dependence_is_accepted_that_a_dense_computation_shows_and_no_program_of_single_rows_is_refused(block):
    kinds = [one_layer, two_layers, several_inputs]
    for seed in range(6 * block, 6 * block + 6):
        rng = np.random.default_rng(seed)
        N, dtype = int(rng.integers(2, 61)), [np.float32, np.float64][seed % 2]
        X = np.linspace(-2, 2, N, dtype=dtype)[:, None]
        program, several, sites, name = kinds[seed % 3](rng, N, X)
        guide = InducingGuide(program, InducingPoints(X[:1]))
        try:
            found = guide.setup(X, np.sin(X[:, 0]))
        except ValueError as error:
            assert several, (seed, N, name, error)
            assert "joint={" in str(error)
        else:
            assert not several, (seed, N, name)
            assert found.drawn == sites


# -- programs of users -------------------------------------------------------------------------------------------------


@pytest.mark.slow_but(name=["latent inputs", "deep invariant"])
@pytest.mark.parametrize("name", [*ZOO, *OTHERS])
def test_no_program_of_the_zoo_is_refused(name):
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        program, *args, inducing, options = [*(ZOO | OTHERS)[name](), {}][:5]
        InducingGuide(program, inducing, **options).setup(*args)


# -- at the rows that are used -----------------------------------------------------------------------------------------


@pytest.mark.slow_but(trained_on=[2], lag=[7])
@pytest.mark.parametrize("lag", [2, 7, 23])
@pytest.mark.parametrize("trained_on", [1, 2, 24])
def test_a_lag_is_refused_where_rows_that_far_apart_are_first_used(lag, trained_on):
    def program(X, y=None):
        f = draws(numpyro.sample("f", GaussianProcess(kernels.RBF(1.0, 10.0), X)))
        h = jnp.concatenate([f[:lag], f[lag:] - f[: max(len(f) - lag, 0)]])
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", gaussian(h, 0.1), obs=y)

    X = np.arange(24.0)[:, None]
    guide = InducingGuide(program, InducingPoints(X[::6]))
    if trained_on > lag:
        with pytest.raises(ValueError, match=r"several rows of GP site 'f'.*joint=\{'f'\}"):
            guide.setup(X[:trained_on], X[:trained_on, 0])
        return
    params = guide.init_params(KEY, X[:trained_on], X[:trained_on, 0])
    with pytest.raises(ValueError, match=r"several rows of GP site\(s\) \['f'\] together"):
        Trained(program, guide, params).predict(KEY, X)
    loss = jax.jit(partial(GaussianProcessELBO().loss, KEY, params, program, guide))
    with pytest.raises(ValueError, match=r"several rows of GP site\(s\) \['f'\] together"):
        loss(X, X[:, 0])


def test_a_later_site_that_is_drawn_jointly_needs_all_rows_of_the_first():
    def program(X, y=None):
        h = draws(numpyro.sample("h", GaussianProcess(kernels.RBF(), X)))
        f = draws(numpyro.sample("f", GaussianProcess(kernels.RBF(), h[:, None])))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", gaussian(f, 0.1), obs=y)

    X = np.linspace(0, 1, 9)[:, None]
    for joint, right in (set(), True), ({"f"}, False), ({"f", "h"}, True):
        guide = InducingGuide(program, InducingPoints(X[:1]), joint=joint)
        if right:
            assert guide.setup(X, X[:, 0]).drawn == {"f", "h"}
        else:
            with pytest.raises(ValueError, match=r"joint=\{'h'\}"):
                guide.setup(X, X[:, 0])


def test_inputs_of_a_row_that_are_needed_together_make_those_before_them_so_too():
    """Of two layers of patches only the second one's are combined; the first one's reach the datum through these."""

    def program(X, y=None):
        h = draws(numpyro.sample("h", GaussianProcess(kernels.RBF(), X.reshape(-1, 1))))
        f = draws(numpyro.sample("f", GaussianProcess(kernels.RBF(), h[:, None])))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", gaussian(f.reshape(len(X), -1).sum(1), 0.1), obs=y)

    X = np.random.default_rng(0).standard_normal((7, 3))
    assert InducingGuide(program, InducingPoints(X[:1, :1])).setup(X, X[:, 0]).within == {
        "h": Layout(3),
        "f": Layout(3),
    }


def test_values_that_are_not_finite_at_some_rows_hide_nothing():
    def program(X, y=None):
        f = draws(numpyro.sample("f", GaussianProcess(kernels.RBF(), X)))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", gaussian(jnp.log(f) - 0.01 * jnp.roll(f, 5), 0.1), obs=y)

    X = np.linspace(0, 1, 12)[:, None]
    with pytest.raises(ValueError, match="several rows of GP site 'f'"):
        InducingGuide(program, InducingPoints(X[:1])).setup(X, X[:, 0])


def test_sites_at_other_rows_may_be_picked_by_a_datum_one_row_each():
    def program(X, y=None, *, Z, groups, several=False):
        f = numpyro.sample("f", GaussianProcess(kernels.RBF(), X))
        g = draws(numpyro.sample("g", GaussianProcess(kernels.RBF(), Z)))
        own = g[groups] + g[0] if several else g[groups]
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", gaussian(draws(f) + own, 0.1), obs=y)

    X, Z = np.linspace(0, 1, 12)[:, None], np.arange(12.0)[:, None]
    given = {"Z": Z, "groups": np.arange(12) // 2}
    guide = InducingGuide(program, InducingPoints(X[:1]))
    assert guide.setup(X, X[:, 0], model_kwargs=given).drawn == {"f", "g"}
    assert dependence_on_rows(
        program, (X, X[:, 0]), given | {"several": True}, guide.sites, frozenset()
    ).across.keys() == {"g"}


COMBINED = {
    "a lag": lambda f, mask, one, other: f - jnp.roll(f, 3),
    "rows by arguments": lambda f, mask, one, other: f[one] - f[other],
    "masked means": lambda f, mask, one, other: f - jnp.where(mask, f, 0).mean(),
}


@pytest.mark.slow_but(rows=[12])
@pytest.mark.parametrize("kind", COMBINED)
@pytest.mark.parametrize("rows", [5, 12])
def test_rows_are_told_apart_where_arguments_are_traced(kind, rows):
    """Of which masks and places nothing is known: numbers stand in for them."""

    def program(X, y=None, mask=None, one=None, other=None):
        f = draws(numpyro.sample("f", GaussianProcess(kernels.RBF(), X)))
        with numpyro.plate("data", len(X)), numpyro.handlers.mask(mask=mask):
            numpyro.sample("y", gaussian(COMBINED[kind](f, mask, one, other), 0.1), obs=y)

    X = np.linspace(0, 1, rows)[:, None]
    guide = InducingGuide(program, InducingPoints(X[:1]))
    given = X, X[:, 0], X[:, 0] < 2, np.arange(rows), np.arange(rows)[::-1].copy()
    with pytest.raises(ValueError, match="several rows of GP site 'f'"):
        jax.jit(lambda *given: guide.init_params(KEY, *given))(*given)
