"""Marginals of inducing posteriors at many inputs: in chunks, by quadratic forms, the same numbers and derivatives."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpzoo.inducing.variables import InducingBlocks, InducingPatches, InducingPoints
from gpzoo.kernels import RBF, Convolutional
from gpzoo.linalg import quadratic as quadratics
from gpzoo.linalg.operators import BlockDiagonalMatrix
from gpzoo.posteriors import InducingPosterior, Projection, forms
from gpzoo.posteriors.conditional import Narrowed
from gpzoo.processes.process import GaussianProcess

M, D = 3, 2
on_cpu = pytest.mark.skipif(jax.default_backend() != "cpu", reason="accelerators take all inputs at once")


def numbers(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape))


SHARED = RBF(jnp.array(1.3), jnp.array([0.8, 1.1]))
EACH = RBF(jnp.array([1.3, 0.4]), jnp.array([0.8, 2.0]))
POINTS = InducingPoints(numbers(M, 2, seed=1))
FULL = numbers(D, M, M, seed=3)

# name -> kernel, inducing variables, shape of the inputs with N as None, scale of q(u), number of outputs
POSTERIORS = {
    "one function": (SHARED, POINTS, (None, 2), forms.Full(FULL[0]), None),
    "one kernel": (SHARED, POINTS, (None, 2), forms.Full(FULL), D),
    "standard deviations": (SHARED, POINTS, (None, 2), forms.Diagonal(numbers(M, D, seed=4)), D),
    "one kernel per output": (EACH, POINTS, (None, 2), forms.Full(FULL), D),
    "inputs per output": (SHARED, InducingPoints(numbers(D, M, 2, seed=5)), (D, None, 2), forms.Full(FULL), D),
    "images": (
        Convolutional(RBF(1.3, 3.0), (4, 4), (3, 3)),
        InducingPatches(numbers(M, 9, seed=6)),
        (None, 4, 4, 1),
        forms.Full(FULL),
        D,
    ),
    "blocks": (
        SHARED + RBF(0.5, 2.0),
        InducingBlocks(POINTS, InducingPoints(numbers(2, 2, seed=7))),
        (None, 2),
        forms.BlockDiagonal((FULL, numbers(D, 2, 2, seed=8))),
        D,
    ),
}


def setting(name, N):
    kernel, inducing, shape, scale, outputs = POSTERIORS[name]
    size = BlockDiagonalMatrix(*scale.scale).shape[-1] if isinstance(scale, forms.BlockDiagonal) else M
    columns = () if outputs is None else (outputs,)
    X = numbers(*(N if n is None else n for n in shape), seed=9)
    mean = numbers(size, *columns, seed=10)
    whiten = name != "one function"
    make = partial(_posterior, outputs=None if kernel.batched or name == "inputs per output" else outputs)
    return partial(make, whiten=whiten), (kernel, X, inducing, mean, scale, numbers(N, *columns, seed=11))


def _posterior(kernel, X, inducing, mean, scale, loc, *, outputs, whiten):
    prior = GaussianProcess(kernel, X, loc, num_outputs=outputs, jitter=1e-6)
    return InducingPosterior(Projection(prior, inducing, whiten=whiten), mean, scale)


def close(ours, theirs, rtol=1e-11):
    def compare(a, b):
        np.testing.assert_allclose(a, b, rtol=0, atol=rtol * max(np.abs(b).max(), 1e-3))

    jax.tree.map(compare, ours, theirs)


@pytest.mark.slow_but(name=["inputs per output"], N=[11])
@on_cpu
@pytest.mark.parametrize("name, N", [(name, 11) for name in POSTERIORS] + [("inputs per output", 8)])
def test_inputs_in_chunks_are_inputs_at_once(name, N, monkeypatch):
    make, arguments = setting(name, N)
    weights = [numbers(*arguments[-1].shape, seed=seed) for seed in (12, 13)]

    def score(*arguments):
        posterior = make(*arguments)
        moments = posterior.marginals()
        value = sum(jnp.sum(w * jnp.sin(x)) for w, x in zip(weights, moments, strict=True))
        return value, (*moments, *posterior.marginal_parts())

    def run():
        # A new function each time: compiled code is kept by function, and what is patched is no argument of it.
        gradient = jax.value_and_grad(lambda *a: score(*a), argnums=tuple(range(6)), has_aux=True)
        traced = jax.jit(gradient).trace(*arguments)
        return str(traced.jaxpr).count("scan["), traced.lower().compile()(*arguments)

    at_once, whole = run()
    monkeypatch.setattr("gpzoo._platform.inputs_at_a_time", lambda num_inputs: min(num_inputs, 4))
    in_chunks, chunks = run()
    assert in_chunks > at_once  # kernels on images have loops of their own
    close(chunks, whole)
    mean, variance, same, inducing, residual = whole[0][1]
    close((same, inducing + residual), (mean, variance))
    assert mean.shape == arguments[-1].shape
    assert all(np.abs(leaf).max() > 1e-4 for leaf in jax.tree.leaves(whole[1]))


@pytest.mark.parametrize("name", ["one function", "one kernel"])
def test_the_mean_alone_is_that_of_dense_matrices(name):
    make, (kernel, X, inducing, mean, scale, loc) = setting(name, 4)
    found, K, across = jax.jit(
        lambda: (make(kernel, X, inducing, mean, scale, loc).mean, kernel(inducing.Z), kernel(inducing.Z, X))
    )()
    K = np.asarray(K) + 1e-6 * np.eye(M)  # with the jitter of the prior
    weights = np.linalg.solve(K, mean) if name == "one function" else np.linalg.solve(np.linalg.cholesky(K).T, mean)
    close(np.asarray(found), np.asarray(loc + across.T @ weights), 1e-9)


def test_by_default_few_inputs_are_taken_at_once():
    make, arguments = setting("one kernel", 50)
    assert "scan[" not in str(jax.make_jaxpr(lambda *a: make(*a).marginals())(*arguments))


# -- the quadratic form that serves many inputs ------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(M, 9), (D, M, 9)], ids=["one kernel", "one kernel per output"])
def test_quadratic_form_against_einsum(shape):
    S, B = FULL, numbers(*shape, seed=14)
    directions, weights = (numbers(D, M, M, seed=15), numbers(*shape, seed=16)), numbers(D, 9, seed=17)

    def by_einsum(S, B):
        B = jnp.broadcast_to(B, (D, *B.shape[-2:]))
        return jnp.einsum("dmn,dmi,dki,dkn->dn", B, S, S, B)

    def ours(S, B):
        return quadratics.quadratic(S @ S.mT, B)

    def everything(function):
        def score(S, B):
            return jnp.sum(weights * jnp.sin(function(S, B)))

        gradient = jax.grad(score, argnums=(0, 1))
        along = lambda S, B: sum(jnp.vdot(g, d) for g, d in zip(gradient(S, B), directions, strict=True))  # noqa: E731
        return (
            jax.jvp(function, (S, B), directions),
            gradient(S, B),
            jax.jvp(gradient, (S, B), directions)[1],
            jax.grad(along, argnums=(0, 1))(S, B),
            jax.vmap(lambda t: function(t * S, B))(jnp.array([0.5, 2.0])),
        )

    close(jax.jit(lambda: everything(ours))(), jax.jit(lambda: everything(by_einsum))())


@pytest.mark.slow_but(name=["one kernel"])
@pytest.mark.parametrize("name", ["one function", "one kernel", "one kernel per output", "inputs per output", "blocks"])
def test_many_inputs_have_the_marginals_of_few(name):
    # Beyond twice as many inputs as inducing variables the variance is computed on another route.
    make, arguments = setting(name, 4 * M)
    kernel, X, inducing, mean, scale, loc = arguments
    axis = 1 if name == "inputs per output" else 0
    weights = numbers(*loc.shape, seed=18)

    def many(scale, X):
        return make(kernel, X, inducing, mean, scale, loc).marginals()

    def few(scale, X):
        halves = jnp.stack(jnp.split(X, 2, axis=axis)), jnp.stack(jnp.split(loc, 2))
        parts = jax.vmap(lambda x, c: make(kernel, x, inducing, mean, scale, c).marginals())(*halves)
        return tuple(part.reshape(loc.shape) for part in parts)

    def everything(function):
        gradient = jax.grad(lambda *a: jnp.sum(weights * jnp.sin(function(*a)[1])), argnums=(0, 1))
        ones = jax.tree.map(jnp.ones_like, (scale, X))
        # Second derivatives of the quadratic form itself are above.
        second = jax.jvp(gradient, (scale, X), ones)[1] if name == "one kernel" else None
        return jax.jvp(function, (scale, X), ones), gradient(scale, X), second

    close(jax.jit(lambda: everything(many))(), jax.jit(lambda: everything(few))())


@pytest.mark.slow_but(inducing=[130], dtype=["float32"])
@on_cpu
@pytest.mark.parametrize("width", [0.4, 1.0, 1.3], ids=["narrow", "as wide as the prior", "wide"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 2e-3)])
@pytest.mark.parametrize(("inducing", "outputs"), [(130, None), (310, 1), (470, None)])
def test_marginals_by_one_product_are_those_by_two(inducing, outputs, dtype, tolerance, width):
    rng = np.random.default_rng(0)
    Z, X = (rng.uniform(-3, 3, (count, 2)).astype(dtype) for count in (inducing, 10 * inducing + 7))
    prior = GaussianProcess(RBF(1.7, 0.8), X, jitter=1e-4, num_outputs=outputs, mean=0.3)
    lower = np.tril(rng.standard_normal((inducing, inducing)))
    scale = width * np.eye(inducing) + 0.01 * (width < 1) * lower
    mean, scale = (x if outputs is None else np.stack([x] * outputs) for x in (rng.standard_normal(inducing), scale))
    of = Projection(prior, InducingPoints(Z))
    posterior = InducingPosterior(of, jnp.asarray(mean.T, dtype), forms.Full(jnp.asarray(scale, dtype)))
    fewer = posterior.for_many_inputs()
    assert type(fewer.conditional) is Narrowed
    for found, expected in zip(fewer.marginals(), posterior.marginals(), strict=True):
        assert found.shape == expected.shape and found.dtype == dtype
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
