"""GP sites that a program adds have one q: its moments are exact where noise is Gaussian, by every way to ask."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax import random
from numpyro import handlers
from numpyro.infer import SVI, Trace_ELBO

from gpzoo import GaussianProcess, _platform, kmeans
from gpzoo.inducing.variables import InducingBlocks, InducingPatches, InducingPoints
from gpzoo.inference import (
    CollapsedELBO,
    GaussianProcessELBO,
    InducingGuide,
    NaturalGradients,
    OnlineELBO,
    Trained,
    fit,
    load,
    predict,
)
from gpzoo.inference.diagnosis.mean_field import of_mean_field
from gpzoo.kernels import RBF, Constant, Convolutional, Flattened, Linear, Matern12, Matern32, Matern52, White
from gpzoo.likelihoods import Bernoulli, Expected, Gaussian, RobustMax
from gpzoo.processes.marginals import GaussianMarginals
from gpzoo.processes.shared import SharedNoise

KEY = random.key(0)
KINDS = (RBF, Matern12, Matern32, Matern52)
NOISES = {
    "Gaussian": lambda f: Gaussian(f, 0.3),
    "Poisson": lambda f: Expected(lambda f: dist.Poisson(jnp.exp(f)), f),
    "Bernoulli": lambda f: Bernoulli(f),
    "StudentT": lambda f: Expected(lambda f: dist.StudentT(4.0, f, 0.5), f),
}


class Sum:
    """A random program of some sites, each times a number or a number for each row, with a mask or not."""

    def __init__(self, seed, noise="Gaussian", size=9):
        rng = np.random.default_rng(seed)
        self.count, self.outputs = int(rng.integers(2, 5)), (None, None, 2)[rng.integers(3)]
        if noise != "Gaussian":
            self.outputs = None
        self.X = np.sort(rng.uniform(0, 3, (size, 1)), axis=0)
        shape = (size,) if self.outputs is None else (size, self.outputs)
        self.kernels, self.factors = [], []
        for _ in range(self.count):
            kernel = KINDS[rng.integers(len(KINDS))](rng.uniform(0.3, 2), rng.uniform(0.3, 2))
            self.kernels.append(kernel + Linear(0.5) if rng.random() < 0.2 else kernel)
            kind = rng.integers(4)
            rows = rng.uniform(-1.5, 1.5, (size,) if self.outputs is None else (size, 1))
            self.factors.append((1.0, -1.0, float(rng.uniform(-2, 2)), rows)[kind])
        self.mask = rng.random(size) < 0.7 if rng.random() < 0.3 else np.ones(size, bool)
        self.noise = NOISES[noise]
        y = rng.standard_normal(shape)
        self.y = {"Poisson": rng.poisson(1.0, shape), "Bernoulli": (y > 0).astype(float)}.get(noise, y)
        self.M = rng.integers(3, size, self.count)

    def __call__(self, X, y=None):
        total = 0.3
        for i, (kernel, factor) in enumerate(zip(self.kernels, self.factors, strict=True)):
            f = numpyro.sample(f"f{i}", GaussianProcess(kernel, X, num_outputs=self.outputs))
            total = total + factor * f if i % 2 else total + f * factor
        with numpyro.plate("rows", len(X)), handlers.mask(mask=self.mask):
            numpyro.sample("y", self.noise(total), obs=y)

    def inducing(self, whole=True):
        return {f"f{i}": InducingPoints(self.X if whole else self.X[:M]) for i, M in enumerate(self.M)}

    def covariances(self, new):
        """Of each scaled site at new inputs with the data's sum, and of the data's sum; factors are those of rows."""
        each = [np.asarray(k(new, self.X)) * np.ravel(c) for k, c in zip(self.kernels, self.factors, strict=True)]
        scaled = [np.ravel(c)[:, None] * x for c, x in zip(self.factors, map(self._gram, self.kernels), strict=True)]
        return each, sum(x * np.ravel(c) for x, c in zip(scaled, self.factors, strict=True))

    def _gram(self, kernel):
        return np.asarray(kernel(self.X))

    def evidence(self):
        _, K = self.covariances(self.X)
        columns = self.y[:, None] if self.outputs is None else self.y
        total, seen = 0.0, self.mask
        for y in columns.T - 0.3:
            C = K[np.ix_(seen, seen)] + 0.3 * np.eye(seen.sum())
            log_det = np.linalg.slogdet(2 * np.pi * C)[1]
            total -= (y[seen] @ np.linalg.solve(C, y[seen]) + log_det) / 2
        return total


class Mixture(Sum):
    """A random sum of sites with different numbers of outputs, some of which are mixed or chosen."""

    def __init__(self, seed, noise="Gaussian", size=9):
        super().__init__(seed, noise, size)
        rng = np.random.default_rng(1000 + seed)
        self.columns = None if noise != "Gaussian" else (None, 3)[rng.integers(2)]
        self.sites = [self._site(rng, (2, 3) if i == 0 else (None, 2, 3)) for i in range(self.count)]
        self.y = rng.standard_normal((size, self.columns)[: 1 if self.columns is None else 2])
        self.y = {"Poisson": rng.poisson(1.0, size), "Bernoulli": (self.y > 0).astype(float)}.get(noise, self.y)

    def _site(self, rng, outputs):
        """A number of outputs, what becomes of a site with them, and its weights ``[N, K, D]``."""
        size, K, D = len(self.X), self.columns or 1, outputs[rng.integers(len(outputs))]
        column = (lambda f: f) if self.columns is None else (lambda f: f[:, None])
        if D is None and rng.random() < 0.5:
            rows = rng.uniform(-1.5, 1.5, size)
            return D, lambda f: column(rows * f), np.broadcast_to(rows[:, None, None], (size, K, 1))
        if D is None:
            w = rng.uniform(-1.5, 1.5, K)
            return D, lambda f: f * w[0] if self.columns is None else f[:, None] * w, np.tile(w[:, None], (size, 1, 1))
        kind = ("chosen", "mixed", "whole", "by row")[rng.integers(4)]
        if kind == "whole" and D == K:
            return D, lambda f: f, np.tile(np.eye(D), (size, 1, 1))
        if kind == "chosen":
            k = rng.integers(D)
            return D, lambda f: column(f[:, k]), np.tile(np.eye(D)[k], (size, K, 1))
        if kind == "by row":
            rows = rng.uniform(-1.5, 1.5, (size, D))
            return D, lambda f: column((f * rows).sum(-1)), np.tile(rows[:, None], (1, K, 1))
        A = rng.uniform(-1.5, 1.5, (D, K))
        return D, lambda f: f @ (A[:, 0] if self.columns is None else A), np.tile(A.T, (size, 1, 1))

    def __call__(self, X, y=None):
        total = np.full(self.columns or (), 0.3)
        for i, (kernel, (D, of, _)) in enumerate(zip(self.kernels, self.sites, strict=True)):
            total = total + of(numpyro.sample(f"f{i}", GaussianProcess(kernel, X, num_outputs=D)))
        with numpyro.plate("rows", len(X)), handlers.mask(mask=self.mask):
            numpyro.sample("y", self.noise(total), obs=y)

    def evidence(self):
        K, size = self.columns or 1, len(self.X)
        each = [
            np.einsum("nkd,mld,nm->nkml", w, w, self._gram(k))
            for k, (*_, w) in zip(self.kernels, self.sites, strict=True)
        ]
        seen, y = np.repeat(self.mask, K), np.ravel(self.y) - 0.3
        C = sum(each).reshape(size * K, size * K)[np.ix_(seen, seen)] + 0.3 * np.eye(seen.sum())
        return -(y[seen] @ np.linalg.solve(C, y[seen]) + np.linalg.slogdet(2 * np.pi * C)[1]) / 2


KINDS_OF_SUMS = {"added": Sum, "mixed": Mixture}


def started(program, guide, objective, optimiser=None):
    svi = SVI(program, guide, optax.sgd(0.0) if optimiser is None else optimiser, objective)
    return svi, svi.init(KEY, program.X, program.y)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100))
@pytest.mark.parametrize("kind", KINDS_OF_SUMS)
def test_the_collapsed_bound_of_a_sum_is_its_evidence(kind, seed):
    program = KINDS_OF_SUMS[kind](seed)
    coupled = list(program.inducing()) if kind == "mixed" else True  # of more than ten outputs in all those named
    guide = InducingGuide(program, program.inducing(), coupled=coupled)
    svi, state = started(program, guide, CollapsedELBO())
    assert -float(svi.evaluate(state, program.X, program.y)) == pytest.approx(program.evidence(), abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("of", list(itertools.product(KINDS_OF_SUMS, NOISES)))
@pytest.mark.parametrize("seed", range(25))
def test_the_joint_bound_is_that_of_the_mean_field_and_more(seed, of):
    """At equal numbers they are equal; steps from there raise the joint one, whose slopes are those of numbers."""
    (kind, noise), params, bounds = of, None, []
    program = KINDS_OF_SUMS[kind](seed, noise)
    for coupled in (False, True):
        guide = InducingGuide(program, program.inducing(whole=False), coupled=coupled, initial_scale=0.4)
        optimiser = NaturalGradients(optax.sgd(0.0), guide, 0.5)
        svi = SVI(program, guide, optimiser, GaussianProcessELBO())
        guide.setup(program.X, program.y)
        params = None if params is None else of_mean_field(params, guide)
        state = svi.init(KEY, program.X, program.y, init_params=params)
        bounds.append(-float(svi.evaluate(state, program.X, program.y)))
        step = jax.jit(lambda state, svi=svi: svi.update(state, program.X, program.y)[0])
        for _ in range(5):
            state = step(state)
        bounds.append(-float(svi.evaluate(state, program.X, program.y)))
        params = svi.get_params(state)
    assert bounds[2] == pytest.approx(bounds[1], rel=1e-9)
    assert bounds[3] >= bounds[2] + 1e-4
    names = [name for name in params if name.endswith(("cross", "scale", "mean"))]

    @jax.jit
    def loss(t):
        moved = params | {name: params[name] + t * direction[name] for name in names}
        return GaussianProcessELBO().loss(KEY, moved, program, guide, program.X, program.y)

    rng = np.random.default_rng(seed)
    direction = {name: jnp.asarray(rng.standard_normal(params[name].shape)) for name in names}
    slope = float(jax.grad(loss)(0.0))
    assert slope == pytest.approx(float(loss(1e-5) - loss(-1e-5)) / 2e-5, rel=1e-4, abs=1e-5)


@pytest.fixture(scope="module")
def two():
    """A sum of two sites at the optimum, with what NumPy says of both at new inputs."""
    program = Sum(3, size=30)
    program.kernels, program.factors = [RBF(1.0, 0.7), Matern12(0.6, 1.0)], [1.0, -0.5]
    program.outputs, program.count, program.mask, program.M = None, 2, True, np.array([30, 30])
    program.y = np.random.default_rng(1).standard_normal(30)
    guide = InducingGuide(program, program.inducing())
    svi, _ = started(program, guide, CollapsedELBO())
    trained = fit(KEY, svi, 1, program.X, program.y, progress=False)
    new = np.linspace(-1, 4, 7)[:, None]
    each, K = program.covariances(new)
    C = K + 0.3 * np.eye(30)
    means = [x @ np.linalg.solve(C, program.y - 0.3) for x in each]
    joint = np.zeros((2, 2, 7, 7))
    for i in range(2):
        for j in range(2):
            prior = np.asarray(program.kernels[i](new)) if i == j else 0
            joint[i, j] = prior - each[i] @ np.linalg.solve(C, each[j].T)
    return program, trained, new, means, joint


def sum_of(joint):
    return joint[0, 0] - 0.5 * (joint[0, 1] + joint[1, 0]) + 0.25 * joint[1, 1]


@pytest.mark.slow_but(at_a_time=[3])
@pytest.mark.parametrize("at_a_time", [None, 3])
def test_predictions_of_parts_and_sum(two, at_a_time, monkeypatch):
    _, trained, new, means, joint = two
    if at_a_time:
        monkeypatch.setattr(_platform, "inputs_at_a_time", lambda N: at_a_time)
    found = Trained(trained.model, trained.guide, trained.params).predict(KEY, new)
    for i in range(2):
        np.testing.assert_allclose(found[f"f{i}"].mean, means[i], atol=1e-5)
        np.testing.assert_allclose(found[f"f{i}"].variance, np.diag(joint[i, i]), atol=1e-5)
    np.testing.assert_allclose(found["y"].mean, means[0] - 0.5 * means[1] + 0.3, atol=1e-5)
    np.testing.assert_allclose(found["y"].variance, np.diag(sum_of(joint)) + 0.3, atol=1e-5)


def test_posteriors_have_covariances_with_each_other(two):
    _, trained, new, _, joint = two
    q, other = trained.posterior(KEY, new), trained.posterior(KEY, new[:3])
    np.testing.assert_allclose(q["f0"].moments()[1], joint[0, 0], atol=1e-5)
    np.testing.assert_allclose(q["f0"].covariance_with(q["f1"]), joint[0, 1], atol=1e-5)
    np.testing.assert_allclose(q["f1"].covariance_with(other["f0"]), joint[1, 0][:, :3], atol=1e-5)
    for theirs in (q["f0"], other["f0"]):
        with pytest.raises(ValueError, match="Both posteriors are of site 'f0'"):
            q["f0"].covariance_with(theirs)


def mixture(X, y=None, *, law=lambda f: Gaussian(f, 0.1)):
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 0.5), X, num_outputs=2))
    g = numpyro.sample("g", GaussianProcess(Matern32(0.5, 1.0), X))
    with numpyro.plate("rows", len(X)):
        numpyro.sample("y", law(f @ MIXED + g[:, None]), obs=y)


MIXED = np.random.default_rng(2).standard_normal((2, 3))


@pytest.fixture(scope="module")
def mixed():
    """A sum of mixed outputs at the optimum, data, new inputs, and NumPy's joint law of all outputs there."""
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(0, 3, (15, 1)), axis=0)
    y, new = rng.standard_normal((15, 3)), np.linspace(-0.5, 3, 4)[:, None]
    guide = InducingGuide(mixture, InducingPoints(X))
    trained = fit(KEY, SVI(mixture, guide, optax.sgd(0.0), CollapsedELBO()), 1, X, y, progress=False)
    loadings = np.concatenate([MIXED, np.ones((1, 3))])
    kernels = [RBF(1.0, 0.5), RBF(1.0, 0.5), Matern32(0.5, 1.0)]
    each = [np.einsum("k,l,nm->nkml", a, a, np.asarray(k(X))) for a, k in zip(loadings, kernels, strict=True)]
    C = sum(each).reshape(45, 45) + 0.1 * np.eye(45)
    cross = [np.kron(np.asarray(k(new, X)), a) for a, k in zip(loadings, kernels, strict=True)]
    mean = np.stack([x @ np.linalg.solve(C, y.ravel()) for x in cross])
    joint = np.array([[-a @ np.linalg.solve(C, b.T) for b in cross] for a in cross])
    for i in range(3):
        joint[i, i] += np.asarray(kernels[i](new))
    return trained, X, y, new, mean, joint, loadings


@pytest.mark.slow
def test_mixed_outputs_have_the_joint_law_of_numpy(mixed):
    """Predictions, densities of rows and covariances of ``f @ A + g`` and of its sites."""
    trained, _, y, new, mean, joint, loadings = mixed
    outputs = np.einsum("ik,ijnn,jl->nkl", loadings, joint, loadings) + 0.1 * np.eye(3)
    found = trained.predict(KEY, new, test_data={"y": y[:4]})
    np.testing.assert_allclose(found["f"].variance, np.stack([np.diag(joint[i, i]) for i in range(2)], 1), atol=1e-6)
    np.testing.assert_allclose(found["y"].variance, np.einsum("nkk->nk", outputs), atol=1e-6)
    away = y[:4] - mean.T @ loadings
    square = np.einsum("nk,nk->n", away, np.linalg.solve(outputs, away[..., None])[..., 0])
    expected = -(square + np.linalg.slogdet(2 * np.pi * outputs)[1]) / 2
    np.testing.assert_allclose(found["y"].log_density, expected, atol=1e-3)
    q = trained.posterior(KEY, new)
    np.testing.assert_allclose(q["f"].covariance_with(q["g"]), joint[:2, 2], atol=1e-6)


@pytest.mark.slow
def test_draws_and_exports_of_mixed_outputs_have_it_too(mixed):
    trained, X, y, new, mean, joint, _ = mixed
    exported = trained.to_arviz(KEY, X, y, num_draws=1500, new_args=(new,))
    for draws in (trained.functions(KEY, new, num_draws=1500), exported["predictions"]):
        f, g = np.asarray(draws["f"]).reshape(-1, 4, 2), np.asarray(draws["g"]).reshape(-1, 4)
        own = np.stack([f[..., 0], f[..., 1], g]) - mean[:, None]
        np.testing.assert_allclose(np.einsum("isn,jsm->ijnm", own, own) / 1500, joint, atol=0.12)
    stats = exported["sample_stats"]
    np.testing.assert_allclose(stats["log_p"] - stats["log_q"], -trained.losses[-1], atol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [3, 1])
def test_draws_of_marginals_have_the_covariances_of_noise_that_outputs_share(columns):
    rng = np.random.default_rng(0)
    loads, variance = rng.standard_normal((4, 2, columns)), rng.uniform(0.1, 1, (2, columns))
    shared = SharedNoise((jnp.asarray(loads),), ("a",))
    f = GaussianMarginals(jnp.zeros((2, columns)), jnp.asarray(variance), KEY, shared=shared)
    covariance = np.einsum("mnk,mnl->nkl", loads, loads) + np.einsum("nk,kl->nkl", variance, np.eye(columns))
    np.testing.assert_allclose(f.covariance, covariance, rtol=1e-9)
    np.testing.assert_allclose(f.variance, np.einsum("nkk->nk", covariance), rtol=1e-9)
    draws = np.asarray(f.draws(20_000))
    np.testing.assert_allclose(np.einsum("snk,snl->nkl", draws, draws) / 20_000, covariance, atol=0.2)
    assert f.independent == (columns == 1)
    if columns == 3:
        probs = RobustMax(f, num_predictive_draws=4000).probs
        share = np.mean(np.argmax(draws, -1)[..., None] == np.arange(3), axis=0)
        np.testing.assert_allclose(probs, share, atol=0.03)


def moments(draws):
    draws = np.asarray(draws).reshape(2, -1, 7)
    return np.einsum("isn,jsm->ijnm", *[draws - draws.mean(1, keepdims=True)] * 2) / draws.shape[1]


@pytest.mark.slow
def test_draws_of_parts_add_up_to_draws_of_the_sum(two):
    _, trained, new, _, joint = two
    found = trained.functions(KEY, new, num_draws=1500, num_features=50)
    np.testing.assert_allclose(moments([found["f0"], found["f1"]]), joint, atol=0.1)
    np.testing.assert_allclose(np.cov((found["f0"] - 0.5 * found["f1"]).T), sum_of(joint), atol=0.1)
    exported = trained.to_arviz(KEY, new, num_draws=1500)
    posterior = exported["posterior"]
    np.testing.assert_allclose(moments([posterior["f0"], posterior["f1"]]), joint, atol=0.1)


def at_optimum(program, inducing, X, y):
    guide = InducingGuide(program, inducing)
    svi = SVI(program, guide, NaturalGradients(optax.sgd(0.0), guide, 1.0), GaussianProcessELBO())
    return fit(KEY, svi, 2, X, y, progress=False)


IMAGES = np.random.default_rng(0).standard_normal((12, 4, 4, 1))
PATCHES = InducingPatches(np.random.default_rng(1).standard_normal((5, 4)))
PIXELS = InducingPoints(IMAGES[:6])
ADDENDS = {
    "blocks": (
        (Convolutional(RBF(1.0, 1.5), (4, 4), (2, 2)), Flattened(RBF(0.7, 4.0))),
        (PATCHES, PIXELS),
        InducingBlocks(PATCHES, PIXELS),
        IMAGES,
    ),
    "shared": ((RBF(1.0, 0.5), 2.0 * Matern12(0.5, 1.0)), None, InducingPoints(IMAGES[:, 0, 0]), IMAGES[:, 0, 0]),
}


@pytest.mark.slow
@pytest.mark.parametrize("at", ["blocks", "blocks of two", "shared", "shared of two"])
def test_addends_of_a_kernel_are_those_of_sites(at):
    """With blocks of inducing variables one site with a sum of kernels and two sites have one bound and posterior."""
    case, outputs = at.removesuffix(" of two"), 2 if at.endswith("two") else None
    (first, second), apart, together, X = ADDENDS[case]
    y = np.random.default_rng(2).standard_normal((12,) if outputs is None else (12, 2))

    def one(X, y=None):
        f = numpyro.sample("f", GaussianProcess(first + second, X, num_outputs=outputs))
        numpyro.sample("y", Gaussian(f, 0.2), obs=y)

    def two(X, y=None):
        f = numpyro.sample("a", GaussianProcess(first, X, num_outputs=outputs))
        f = f + numpyro.sample("b", GaussianProcess(second, X, num_outputs=outputs))
        numpyro.sample("y", Gaussian(f, 0.2), obs=y)

    whole = at_optimum(one, together, X, y)
    new, names = (X[3:8] + 0.1, {"f": ("a", "b")})
    found = whole.predict(KEY, new, parts=names, quantiles=(0.1,))
    batched = whole.predict(KEY, new, parts=names, batch_size=2)
    drawn = whole.functions(KEY, new, num_draws=3, parts=names) if case == "shared" else {}
    if drawn:
        np.testing.assert_allclose(drawn["a"] + drawn["b"], drawn["f"], atol=1e-9)
    joint = None if apart is None else at_optimum(two, dict(zip("ab", apart, strict=True)), X, y)
    for name in "ab":
        np.testing.assert_allclose(batched[name].variance, found[name].variance, rtol=1e-9)
        assert found[name].quantiles.shape == (1, *found["f"].mean.shape)
        if joint is not None:
            own = joint.predict(KEY, new)[name]
            np.testing.assert_allclose(found[name].mean, own.mean, atol=1e-8)
            np.testing.assert_allclose(found[name].variance, own.variance, atol=1e-8)
    if joint is not None:
        assert joint.losses[-1] == pytest.approx(whole.losses[-1], abs=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("outputs", [None, 2])
def test_exports_of_addends_have_their_joint_law(outputs):
    """Draws add up to those of the site, and have the covariances of sites with one q, at the data and elsewhere."""
    X, new = np.linspace(0, 3, 9)[:, None], np.linspace(0.1, 3.5, 3)[:, None]
    y = np.random.default_rng(3).standard_normal((9,) if outputs is None else (9, outputs))
    kernels = [RBF(1.0, 0.5), 2.0 * Matern12(0.5, 1.0)]

    def program(X, y=None):
        f = numpyro.sample("f", GaussianProcess(kernels[0] + kernels[1], X, mean=1.0, num_outputs=outputs))
        numpyro.sample("y", Gaussian(f, 0.2), obs=y)

    trained, parts = at_optimum(program, InducingPoints(X), X, y), {"f": ("a", "b")}
    found = trained.to_arviz(KEY, X, y, num_draws=1500, new_args=(new,), parts=parts)
    batched = trained.to_arviz(KEY, X, y, num_draws=2, batch_size=4, parts=parts)["posterior"]
    assert batched["a"].dims[:2] == ("chain", "draw") and batched["a"].dims[2] == batched["f"].dims[2]
    # Exports with other addends, or none, are not those of the program that was compiled before.
    again = partial(trained.to_arviz, KEY, X, y, num_draws=2, batch_size=4, new_args=(new,))
    turned, without, named = again(parts={"f": ("b", "a")}), again(), again(parts=parts)
    assert "a" not in without["posterior"] and "a" not in without["predictions"]
    for group in ("posterior", "predictions"):
        np.testing.assert_allclose(turned[group]["b"], named[group]["a"])
        np.testing.assert_allclose(turned[group]["a"], named[group]["b"])
    for draws in (found["posterior"], found["predictions"], batched):
        np.testing.assert_allclose(draws["a"] + draws["b"] + 1.0, draws["f"], atol=1e-6)
    C = sum(np.asarray(kernel(X)) for kernel in kernels) + 0.2 * np.eye(9)
    cross = [np.asarray(kernel(new, X)) for kernel in kernels]
    own = np.stack([np.asarray(found["predictions"][name])[0].reshape(1500, 3, -1)[..., -1] for name in "ab"])
    residual = (y if outputs is None else y[:, -1]) - 1.0
    for i in range(2):
        np.testing.assert_allclose(own[i].mean(0), cross[i] @ np.linalg.solve(C, residual), atol=0.1)
        for j in range(2):
            prior = np.asarray(kernels[i](new)) if i == j else 0
            covariance = np.cov(own[i].T, own[j].T)[:3, 3:]
            np.testing.assert_allclose(covariance, prior - cross[i] @ np.linalg.solve(C, cross[j].T), atol=0.1)


@pytest.mark.slow
def test_addends_of_exact_regression():
    program, (X, y) = Sum(5), (np.linspace(0, 3, 20)[:, None], np.random.default_rng(3).standard_normal(20))
    kernels = [Matern52(1.0, 1.0), Linear(0.3), Constant(2.0)]

    def exact(X, y=None):
        numpyro.sample("y", GaussianProcess(sum(kernels[1:], kernels[0]) + White(0.1), X), obs=y)

    found = predict(KEY, exact, program.X, train_args=(X, y), params={}, parts={"y": ("a", "b", "c")})
    C = sum(np.asarray(kernel(X)) for kernel in kernels) + 0.1 * np.eye(20)
    for name, kernel in zip("abc", kernels, strict=True):
        K = np.asarray(kernel(program.X, X))
        np.testing.assert_allclose(found[name].mean, K @ np.linalg.solve(C, y), atol=1e-9)
        variance = np.diag(np.asarray(kernel(program.X)) - K @ np.linalg.solve(C, K.T))
        np.testing.assert_allclose(found[name].variance, variance, atol=1e-9)


@pytest.mark.parametrize(
    "parts, error, said",
    [
        ({"f0": ("a",)}, ValueError, "2 addends"),
        ({"g": ("a", "b")}, ValueError, "'g'"),
        ({"f0": "ab"}, TypeError, "f0"),
        ({"f0": ("a", "a")}, ValueError, "twice"),
        ({"f0": ("f1", "y")}, ValueError, "names of sites"),
        ({"f0": ("f0_u", "b")}, ValueError, "f0_u"),
        (["f0"], TypeError, "parts"),
    ],
)
def test_names_of_no_addends_are_refused(parts, error, said):
    program = Sum(0)
    program.kernels[0] = RBF() + Matern12()
    guide = InducingGuide(program, program.inducing())
    model = Trained(program, guide, guide.init_params(KEY, program.X, program.y))
    export = lambda key, X, parts: model.to_arviz(key, X, program.y, parts=parts)  # noqa: E731
    for ask in (model.predict, model.functions, export):
        with pytest.raises(error, match=said):
            ask(KEY, program.X, parts=parts)


REFUSED = {
    "one output alone": ((["a"],), "'a' alone"),
    "a residual": (("a", "b"), "residual"),
    "unknown": (("a", "nobody"), "nobody"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_sites_that_cannot_be_coupled_are_refused_by_name(case):
    names, said = REFUSED[case]

    def program(X, y=None):
        site = lambda name, outputs=None: numpyro.sample(name, GaussianProcess(RBF(), X, num_outputs=outputs))  # noqa: E731
        f = site("a") + site("b") + site("d", 2) @ jnp.ones(2)
        numpyro.sample("y", Gaussian(f, 0.2), obs=y)
        numpyro.sample("z", Gaussian(site("c", 2), 0.2), obs=y if y is None else jnp.stack([y, -y], axis=1))

    X, options = np.linspace(0, 1, 5)[:, None], {"residual": {"b"}} if case == "a residual" else {}
    with pytest.raises(ValueError, match=said):
        InducingGuide(program, kmeans(3), coupled=names, **options).setup(X, X[:, 0])
    assert InducingGuide(program, kmeans(3)).setup(X, X[:, 0]).coupled == (("a", "b", "d"),)
    for wrong in (3, "a", [1], [["a"], "b"]):
        with pytest.raises(TypeError, match="coupled"):
            InducingGuide(program, kmeans(3), coupled=wrong)


@pytest.mark.slow
def test_what_takes_no_coupled_sites_says_so(two):
    program, trained, new, *_ = two
    y = program.y[:7]
    for call in (
        lambda: trained.condition(KEY, new, y),
        lambda: trained.add_inducing(KEY, kmeans(3), program.X, program.y),
        lambda: OnlineELBO(trained),
        lambda: GaussianProcessELBO(tight=True).loss(KEY, trained.params, program, trained.guide, new, y),
        lambda: Trace_ELBO().loss(KEY, trained.params, program, trained.guide, new, y),
    ):
        with pytest.raises((ValueError, TypeError), match=r"f0.*coupled=False"):
            call()


def test_files_keep_coupled_sites(two, tmp_path):
    _, trained, new, *_ = two
    trained.save(tmp_path / "model")
    again = load(tmp_path / "model", trained.model)
    assert again.guide.sites.coupled == (("f0", "f1"),)
    for name, site in trained.predict(KEY, new).items():
        np.testing.assert_array_equal(again.predict(KEY, new)[name].variance, site.variance)


def minibatches(X, y=None, *, num_data=None):
    sd = numpyro.sample("sd", dist.LogNormal(0.0, 0.3))
    f = sd * numpyro.sample("a", GaussianProcess(RBF(1.0, 0.5), X)) + numpyro.sample("b", GaussianProcess(RBF(), X))
    with numpyro.plate("rows", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", Gaussian(f, 0.1), obs=y)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_minibatches_of_several_trainings(dtype, standard_promotion):
    """Each learns, with a coefficient that has a posterior of its own; the parts of a sum are against each other."""
    X = np.linspace(0, 3, 24, dtype=dtype)[:, None]
    y = np.sin(3 * X[:, 0]) + np.random.default_rng(0).normal(0, 0.2, 24).astype(dtype)
    guide = InducingGuide(minibatches, kmeans(6), hyperparameters="normal")
    svi = SVI(minibatches, guide, optax.adam(0.05), GaussianProcessELBO())
    trained = fit(random.split(KEY, 2), svi, 150, X, y, batch_size=8, in_axes=None, progress=False)
    assert guide.sites.coupled == (("a", "b"),) and np.all(np.abs(trained.params["b_cross"]).max((1, 2)) > 0.01)
    assert np.all(trained.losses[:, -20:].mean(1) < trained.losses[:, :20].mean(1) - 5)
    model = trained.member(0)
    found = model.predict(KEY, X, test_data={"y": y})["y"]
    assert found.log_density.mean() > -0.5 * np.log(2 * np.pi * np.e) - np.log(np.std(y))
    parts = model.functions(KEY, X, num_draws=300)
    assert np.corrcoef(parts["a"].mean(1), parts["b"].mean(1))[0, 1] < -0.3


@pytest.mark.slow
def test_exports_have_the_joint_density_of_inducing_variables_in_any_batches():
    X = np.linspace(0, 3, 8)[:, None]

    def program(X, y=None):
        f = numpyro.sample("a", GaussianProcess(RBF(1.0, 0.7), X)) + numpyro.sample("b", GaussianProcess(Matern12(), X))
        numpyro.sample("y", Gaussian(f, 0.3), obs=y)

    guide = InducingGuide(program, {"a": InducingPoints(X[::2]), "b": InducingPoints(X)}, whiten={"a": False})
    svi = SVI(program, guide, optax.sgd(0.0), CollapsedELBO())
    trained = fit(KEY, svi, 1, X, np.sin(3 * X[:, 0]), progress=False)
    found = trained.to_arviz(KEY, X, num_draws=6)
    batched = trained.to_arviz(KEY, X, num_draws=6, batch_size=3)
    q = {name: trained.posterior(KEY, Z)[name] for name, Z in (("a", X[::2]), ("b", X))}
    cross = q["a"].covariance_with(q["b"])
    covariance = np.block([[q["a"].moments()[1], cross], [cross.T, q["b"].moments()[1]]])
    u = np.concatenate([found["posterior"]["a_u"], found["posterior"]["b_u"]], axis=-1)[0]
    away = u - np.concatenate([q["a"].mean, q["b"].mean])
    square = np.sum(away * np.linalg.solve(covariance, away.T).T, axis=1)
    expected = -(square + np.linalg.slogdet(2 * np.pi * covariance)[1]) / 2
    np.testing.assert_allclose(found["sample_stats"]["log_q"][0], expected, rtol=1e-4)
    for name in ("a_u", "b_u"):
        np.testing.assert_allclose(batched["posterior"][name], found["posterior"][name], rtol=1e-9)
    drawn = trained.functions(KEY, X, num_draws=4), trained.functions(KEY, X, num_draws=4, batch_size=3)
    np.testing.assert_allclose(drawn[0]["b"], drawn[1]["b"], rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["a", "b"])
def test_a_coupled_site_that_a_call_leaves_out_is_told(flag):
    def program(X, y=None, *, only=None):
        site = lambda name: numpyro.sample(name, GaussianProcess(RBF(), X))  # noqa: E731
        f = site("a") + site("b") if only is None else site(only)
        numpyro.sample("y", Gaussian(f, 0.2), obs=y)

    X = np.linspace(0, 1, 5)[:, None]
    guide = InducingGuide(program, InducingPoints(X))
    model = Trained(program, guide, guide.init_params(KEY, X, X[:, 0]))
    if flag == "a":  # which depends on no other
        assert "b" not in model.predict(KEY, X, model_kwargs={"only": "a"})
        return
    with pytest.raises(ValueError, match=r"'b' has one q with \['a'\].*coupled=False"):
        model.predict(KEY, X, model_kwargs={"only": "b"})
