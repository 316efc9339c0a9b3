"""Inducing variables in blocks: sums of kernels with a space for each part, mean-field and full (appendix C)."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro.distributions.kl import kl_divergence
from numpyro.infer import SVI

from gpzoo.inducing.initialisers import blocks, kmeans, unique_patches
from gpzoo.inducing.kuu_kuf import Kuf, Kuu
from gpzoo.inducing.variables import InducingBlocks, InducingPatches, InducingPoints
from gpzoo.inference import GaussianProcessELBO, InducingGuide, fit
from gpzoo.kernels import RBF, Convolutional, Flattened, Matern32, MultiChannel, White
from gpzoo.likelihoods import Bernoulli, Gaussian
from gpzoo.linalg.factorise import cholesky, solve_lower
from gpzoo.linalg.operators import BlockDiagonalMatrix, diagonal
from gpzoo.posteriors import InducingPosterior, Projection, forms
from gpzoo.processes.process import GaussianProcess
from tests.programs import KEY, adam, bound, marginals, randomised, terms, trained
from tests.reference import conditional, divergence

SHAPE = (5, 4, 1)


def images(N=12, channels=1, seed=0):
    return jnp.asarray(np.random.default_rng(seed).uniform(size=(N, 5, 4, channels)))


def labels(X):
    return jnp.asarray(np.mean(np.asarray(X), axis=(1, 2, 3)) > 0.5, int)


def two_kernels():
    return Convolutional(RBF(1.3, 0.7), SHAPE, (2, 2)), RBF(0.6, 2.0)


def sum_kernel(white=True):
    conv, whole = two_kernels()
    return conv + Flattened(whole) + White(0.1) if white else conv + Flattened(whole)


def inducing():
    rng = np.random.default_rng(1)
    return InducingBlocks(InducingPatches(rng.uniform(size=(3, 4))), InducingPoints(rng.uniform(size=(2, *SHAPE))))


# -- algebra -----------------------------------------------------------------------------------------------------------


def spd(rng, *shape):
    A = rng.normal(size=(*shape, shape[-1]))
    return A @ np.swapaxes(A, -1, -2) + np.eye(shape[-1])


@pytest.mark.parametrize("batch", [(), (2,)])
def test_block_diagonal_matrices_equal_dense_ones(batch):
    rng = np.random.default_rng(0)
    blocks = spd(rng, *batch, 3), spd(rng, *batch, 2)
    B = rng.normal(size=(*batch, 5, 4))

    @jax.jit
    def pairs(blocks, B):
        K = BlockDiagonalMatrix(*blocks)
        dense = K.dense()
        assert K.shape == dense.shape == (*batch, 5, 5) and K.sizes == (3, 2) and K.ndim == dense.ndim
        L = cholesky(K, "K", 0.01)
        whole = cholesky(dense, "K", 0.01)
        return [
            (L.dense(), whole),
            (K @ B, dense @ B),
            ((K @ L).dense(), dense @ L.dense()),
            (diagonal(K), diagonal(dense)),
            (solve_lower(L, B), solve_lower(whole, B)),
            (solve_lower(L, B, transpose=True), solve_lower(whole, B, transpose=True)),
        ]

    for ours, wanted in pairs(blocks, B):
        np.testing.assert_allclose(ours, wanted, atol=1e-12)


def test_blocks_that_differ_in_outputs_are_broadcast():
    rng = np.random.default_rng(0)
    factors = np.linalg.cholesky(spd(rng, 2, 3)), np.linalg.cholesky(spd(rng, 2))
    B = rng.normal(size=(5, 4))
    found = jax.jit(lambda factors, B: solve_lower(BlockDiagonalMatrix(*factors), B))(factors, B)
    for d in range(2):
        np.testing.assert_allclose(found[d, :3], np.linalg.solve(factors[0][d], B[:3]), atol=1e-12)
        np.testing.assert_allclose(found[d, 3:], np.linalg.solve(factors[1], B[3:]), atol=1e-12)


def test_jitter_is_relative_to_each_block():
    K = BlockDiagonalMatrix(1e6 * jnp.ones((2, 2)), 1e-6 * jnp.ones((2, 2)))
    for block in cholesky(K).blocks:
        assert bool(jnp.isfinite(block).all())
    with pytest.raises(ValueError, match="factorisation of block 1 of Kuu failed"):
        cholesky(BlockDiagonalMatrix(jnp.eye(2), -jnp.eye(2)), "Kuu")


def test_blocks_are_square():
    with pytest.raises(ValueError, match="square matrices"):
        BlockDiagonalMatrix(jnp.ones((2, 3)))


# -- covariances -------------------------------------------------------------------------------------------------------


def test_covariances_of_blocks():
    @jax.jit
    def found(u, X):
        conv, whole = two_kernels()
        K, Z = Kuu(u, sum_kernel()), u.parts[1].Z.reshape(2, -1)
        expected = [RBF(1.3, 0.7)(u.parts[0].Z), whole(Z), Kuf(u.parts[0], conv, X), whole(Z, X.reshape(12, -1))]
        return K.blocks, Kuf(u, sum_kernel(), X), expected

    blocks, cross, expected = found(inducing(), images())
    assert [block.shape for block in blocks] == [(3, 3), (2, 2)]
    for ours, wanted in zip([*blocks, cross[:3], cross[3:]], expected, strict=True):
        np.testing.assert_allclose(ours, wanted)


def test_joint_covariance_with_blocks_is_positive_definite():
    K, cross, prior = map(np.asarray, covariances_of(1.0, images()))
    joint = np.block([[K, cross], [cross.T, prior - 0.1 * np.eye(12)]])
    assert np.linalg.eigvalsh(joint).min() > -1e-10


def test_channels_with_one_base_kernel_share_a_block():
    u = InducingBlocks(InducingPatches(np.random.default_rng(1).uniform(size=(3, 4))))
    shared = Kuu(u, MultiChannel(RBF(), (5, 4, 3), (2, 2)))
    assert len(shared.blocks) == 3 and len({id(block) for block in shared.blocks}) == 1
    assert len({id(block) for block in cholesky(shared).blocks}) == 1
    own = Kuu(u, MultiChannel([RBF(), RBF(2.0), RBF()], (5, 4, 3), (2, 2)))
    assert len({id(block) for block in own.blocks}) == 3


def test_factors_before_a_sum_belong_to_its_parts():
    conv, whole = two_kernels()

    @jax.jit
    def scaled(u, X):
        kernel = 2.0 * (conv + Flattened(whole) + 3.0 * White(0.1))
        return Kuu(u, kernel).dense(), Kuf(u, kernel, X)

    for ours, wanted in zip(scaled(inducing(), images()), covariances_of(1.0, images()), strict=False):
        np.testing.assert_allclose(ours, 2 * wanted)


def test_blocks_of_outputs_with_their_own_kernels():
    @jax.jit
    def found(u, X):
        many = two_kernels()[0] + Flattened(RBF(jnp.asarray([0.6, 1.0]), 2.0))
        return Kuu(u, many).blocks, Kuf(u, many, X)

    blocks, cross = found(inducing(), images())
    assert [block.shape for block in blocks] == [(2, 3, 3), (2, 2, 2)]
    np.testing.assert_allclose(cross[0], covariances_of(1.0, images())[1])


def test_errors_name_the_way_out():
    u, X = inducing(), images()
    with pytest.raises(
        ValueError, match=r"InducingBlocks has 2 parts, but .* a sum of 1 besides white noise \(DoubleSum\)"
    ):
        Kuu(u, two_kernels()[0])
    with pytest.raises(
        ValueError, match="InducingBlocks has 2 parts, but the kernel is a sum of 3 besides white noise"
    ):
        Kuf(u, sum_kernel() + sum_kernel().parts[0], X)
    with pytest.raises(ValueError, match="a sum of 0 besides white noise"):
        Kuu(u, White() + White())
    with pytest.raises(TypeError, match=r"give each part its own, such as blocks\("):
        Kuu(u.parts[0], sum_kernel())
    with pytest.raises(TypeError, match="InducingBlocks takes inducing variables"):
        InducingBlocks(kmeans(3))
    with pytest.raises(ValueError, match=r"blocks of shapes \[\(2, 2\), \(3, 3\)\], expected \[\(3, 3\), \(2, 2\)\]"):
        at = Projection(GaussianProcess(sum_kernel(), X), u)
        InducingPosterior(at, jnp.zeros(5), forms.BlockDiagonal((jnp.eye(2), jnp.eye(3))))
    with pytest.raises(ValueError, match=r"needs blocks .* its Kuu has none"):
        at = Projection(GaussianProcess(RBF(), jnp.zeros((2, 1))), InducingPoints(jnp.asarray([[0.0], [1.0]])))
        InducingPosterior(at, jnp.zeros(2), forms.BlockDiagonal((jnp.eye(1), jnp.eye(1))))
    X, model = images(), partial(one_site, num_outputs=None)
    with pytest.raises(ValueError, match=r"'block_diagonal'.* needs blocks of inducing variables at site 'f'"):
        InducingGuide(model, InducingPoints(X[:2]), covariance="block_diagonal").init_params(KEY, X, labels(X))


# -- posteriors --------------------------------------------------------------------------------------------------------


def numbers(covariance, num_outputs):
    """The mean, the form's own numbers, and the dense factor ``[outputs, 5, 5]`` that they stand for."""
    rng = np.random.default_rng(2)
    outputs = () if num_outputs is None else (num_outputs,)
    mean = rng.normal(size=(5, *outputs))
    if covariance == "diagonal":
        scale = rng.uniform(0.5, 1.5, size=(5, *outputs))
        return mean, scale, np.eye(5) * np.atleast_2d(scale.T)[:, None, :]
    factor = lambda M: np.tril(rng.normal(size=(*outputs, M, M))) + 2 * np.eye(M)  # noqa: E731
    scale = factor(5) if covariance == "full" else (factor(3), factor(2))
    if covariance == "full":
        return mean, scale, scale.reshape(-1, 5, 5)
    dense = np.zeros((num_outputs or 1, 5, 5))
    dense[:, :3, :3], dense[:, 3:, 3:] = scale
    return mean, scale, dense


FORMS = {"full": forms.Full, "block_diagonal": forms.BlockDiagonal, "diagonal": forms.Diagonal}


def posterior(covariance, num_outputs, whiten=True, own_kernels=False):
    kernel = sum_kernel()
    if own_kernels:
        conv, _ = two_kernels()
        kernel = conv + jnp.asarray([1.0, 2.0]) * Flattened(RBF(0.6, 2.0)) + White(0.1)
    prior = GaussianProcess(kernel, images(), num_outputs=num_outputs)
    mean, scale, _ = jax.tree.map(jnp.asarray, numbers(covariance, num_outputs))
    return InducingPosterior(Projection(prior, inducing(), whiten=whiten), mean, FORMS[covariance](scale))


@jax.jit
def covariances_of(factor, X):
    """Kuu, Kuf and Kff of the sum whose second part has this factor."""
    kernel = two_kernels()[0] + factor * Flattened(RBF(0.6, 2.0)) + White(0.1)
    return Kuu(inducing(), kernel).dense(), Kuf(inducing(), kernel, X), kernel(X)


@partial(jax.jit, static_argnums=range(4))
def laws(*options):
    """Everything that a posterior says, in one program."""
    q = posterior(*options)
    return q.moments(), q.marginals()[1], kl_divergence(q, q.prior), q.inducing_moments()


@pytest.mark.slow_but(covariance=["block_diagonal"], whiten=[True])
@pytest.mark.parametrize(
    "num_outputs, own_kernels, whiten",
    [(None, False, True), (None, False, False), (2, False, True), (2, True, False)],
)
@pytest.mark.parametrize("covariance", ["full", "block_diagonal", "diagonal"])
def test_posterior_and_kl_equal_dense_algebra(covariance, num_outputs, own_kernels, whiten):
    found = jax.tree.map(np.asarray, laws(covariance, num_outputs, whiten, own_kernels))
    (mean, covariance_matrix), variance, distance, (u_mean, u_covariance) = found
    m, _, S = numbers(covariance, num_outputs)
    m = m.reshape(5, -1)
    whites, means, covariances, kl = [], [], [], 0.0
    for d in range(num_outputs or 1):
        factor = 1.0 + d if own_kernels else 1.0
        K, cross, prior = map(np.asarray, covariances_of(factor, images()))
        K = K + np.diag(np.repeat([1.3, 0.6 * factor], [3, 2]) * 1e-9)
        L = np.linalg.cholesky(K) if whiten else np.eye(5)
        at, root = L @ m[:, d], L @ S[d]
        known = conditional(K, cross, prior, at, root @ root.T)
        means.append(known[0])
        covariances.append(known[1])
        whites.append((at, root @ root.T))
        kl += divergence(*whites[-1], K)
    np.testing.assert_allclose(mean.reshape(12, -1), np.stack(means, 1), atol=1e-8)
    np.testing.assert_allclose(covariance_matrix.reshape(-1, 12, 12), np.stack(covariances), atol=1e-8)
    np.testing.assert_allclose(
        variance.reshape(12, -1).T, np.diagonal(np.stack(covariances), axis1=1, axis2=2), atol=1e-8
    )
    np.testing.assert_allclose(distance, kl, rtol=1e-7)
    for d, (wanted_mean, wanted_covariance) in enumerate(whites):
        np.testing.assert_allclose(u_mean.reshape(5, -1)[:, d], wanted_mean, atol=1e-10)
        np.testing.assert_allclose(u_covariance.reshape(-1, 5, 5)[d], wanted_covariance, atol=1e-10)


@pytest.mark.parametrize("num_outputs", [None, 2])
def test_draws_of_u_have_the_law_of_q(num_outputs):
    @jax.jit
    def draw(key):
        q = posterior("block_diagonal", num_outputs)
        return jax.vmap(q.draw_inducing)(jax.random.split(key, 20_000)).reshape(20_000, 5, -1)

    draws, (*_, S) = draw(KEY), numbers("block_diagonal", num_outputs)
    for d in range(num_outputs or 1):
        wanted = S[d] @ S[d].T
        np.testing.assert_allclose(np.cov(np.asarray(draws)[:, :, d].T), wanted, atol=0.05 * np.abs(wanted).max())


# -- programs ----------------------------------------------------------------------------------------------------------


def one_site(X, y=None, *, num_outputs=None, num_data=None):
    conv, whole = two_kernels()
    weights = numpyro.param("weights", jnp.linspace(0.5, 1.5, 12))
    kernel = Convolutional(conv.base, SHAPE, (2, 2), weights) + Flattened(whole)
    f = numpyro.sample("f", GaussianProcess(kernel, X, num_outputs=num_outputs))
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", Bernoulli(f), obs=y)


def two_sites(X, y=None):
    conv, whole = two_kernels()
    weights = numpyro.param("weights", jnp.linspace(0.5, 1.5, 12))
    patches = numpyro.sample("conv", GaussianProcess(Convolutional(conv.base, SHAPE, (2, 2), weights), X))
    rest = numpyro.sample("whole", GaussianProcess(whole, X.reshape(len(X), -1)))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Bernoulli(patches + rest), obs=y)


@pytest.mark.slow
def test_mean_field_blocks_equal_the_program_with_two_sites():
    X = images()
    y, u = labels(X), inducing()
    together = InducingGuide(one_site, u, covariance="block_diagonal")
    apart = InducingGuide(two_sites, {"conv": u.parts[0], "whole": InducingPoints(u.parts[1].Z.reshape(2, -1))})
    params = randomised(trained(two_sites, apart, X, y))
    joined = {
        "weights": params["weights"],
        "f_inducing": (params["conv_inducing"], params["whole_inducing"].reshape(2, *SHAPE)),
        "f_mean": jnp.concatenate([params["conv_mean"], params["whole_mean"]]),
        "f_scale": (params["conv_scale"], params["whole_scale"]),
    }
    ours, theirs = terms(one_site, together, joined, X, y), terms(two_sites, apart, params, X, y)
    np.testing.assert_allclose(ours["y"], theirs["y"], rtol=1e-10)
    np.testing.assert_allclose(ours["f"], theirs["conv"] + theirs["whole"], rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("whiten", [True, False])
def test_block_diagonal_scale_equals_the_full_one_with_zeros(whiten):
    X = images()
    y = labels(X)
    guides = {c: InducingGuide(one_site, inducing(), covariance=c, whiten=whiten) for c in ("full", "block_diagonal")}
    params = trained(one_site, guides["block_diagonal"], X, y)
    rng = np.random.default_rng(3)
    params["f_mean"] = jnp.asarray(rng.normal(size=5))
    params["f_scale"] = tuple(s + 0.1 * np.tril(rng.normal(size=s.shape)) for s in params["f_scale"])
    dense = {**params, "f_scale": BlockDiagonalMatrix(*params["f_scale"]).dense()}
    blocked, full = (bound(one_site, guides[c], p, X, y) for c, p in (("block_diagonal", params), ("full", dense)))
    np.testing.assert_allclose(blocked, full, rtol=1e-10)


def test_parameters_of_another_covariance_are_refused():
    X = images()
    y = labels(X)
    guides = {c: InducingGuide(one_site, inducing(), covariance=c) for c in ("full", "block_diagonal")}
    params = {c: trained(one_site, guide, X, y) for c, guide in guides.items()}
    with pytest.raises(ValueError, match="f_scale is 2 arrays, but the guide has covariance='full'"):
        bound(one_site, guides["full"], params["block_diagonal"], X, y)
    with pytest.raises(ValueError, match=r"f_scale is one array of shape \(5, 5\), but .*'block_diagonal'"):
        bound(one_site, guides["block_diagonal"], params["full"], X, y)
    as_lists = {name: list(v) if isinstance(v, tuple) else v for name, v in params["block_diagonal"].items()}
    kept = bound(one_site, guides["block_diagonal"], as_lists, X, y)
    np.testing.assert_allclose(kept, bound(one_site, guides["block_diagonal"], params["block_diagonal"], X, y))


@pytest.mark.slow_but(whiten=[False], covariance=["block_diagonal"])
@pytest.mark.parametrize("whiten", [True, False])
@pytest.mark.parametrize("covariance", ["full", "block_diagonal", "diagonal"])
def test_q_starts_at_the_prior(covariance, whiten):
    X = images()
    guide = InducingGuide(one_site, inducing(), covariance=covariance, whiten=whiten)
    params = trained(one_site, guide, X, labels(X))
    divergence = -terms(one_site, guide, params, X, labels(X))["f"]
    if covariance == "diagonal" and not whiten:
        assert divergence > 0.01  # the prior of u is not diagonal
    else:
        np.testing.assert_allclose(divergence, 0, atol=1e-6)


def multi_channel(X, y=None):
    kernel = MultiChannel(RBF(1.3, 0.7), X.shape[1:], (2, 2), numpyro.param("weights", jnp.ones((2, 12))))
    f = numpyro.sample("f", GaussianProcess(kernel, X))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(f, 0.3), obs=y)


def sum_of_channels(X, y=None):
    weights = numpyro.param("weights", jnp.ones((2, 12)))
    channels = [
        numpyro.sample(
            f"f{c}", GaussianProcess(Convolutional(RBF(1.3, 0.7), (5, 4), (2, 2), weights[c]), X[..., c, None])
        )
        for c in range(2)
    ]
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(channels[0] + channels[1], 0.3), obs=y)


@pytest.mark.slow
def test_multi_channel_equals_the_sum_of_channel_processes():
    X = images(channels=2)
    y = jnp.asarray(np.sin(np.sum(np.asarray(X), axis=(1, 2, 3))))
    Z = jnp.asarray(np.random.default_rng(1).uniform(size=(3, 4)))
    together = InducingGuide(multi_channel, InducingBlocks(InducingPatches(Z)), covariance="block_diagonal")
    apart = InducingGuide(sum_of_channels, InducingPatches(Z))
    params = randomised(trained(sum_of_channels, apart, X, y))
    params["weights"] = jnp.asarray(np.random.default_rng(4).normal(size=(2, 12)))
    joined = {
        "weights": params["weights"],
        "f_inducing": Z,
        "f_mean": jnp.concatenate([params["f0_mean"], params["f1_mean"]]),
        "f_scale": (params["f0_scale"], params["f1_scale"]),
    }
    ours = bound(multi_channel, together, joined, X, y)
    np.testing.assert_allclose(ours, bound(sum_of_channels, apart, params, X, y), rtol=1e-10)
    mean, variance = marginals(together, joined, X, y)
    pairs = [marginals(apart, params, X, y, site=f"f{c}") for c in range(2)]
    np.testing.assert_allclose(mean, pairs[0][0] + pairs[1][0], atol=1e-10)
    np.testing.assert_allclose(variance, pairs[0][1] + pairs[1][1], atol=1e-10)


@pytest.mark.slow
def test_full_covariance_explains_data_better_than_mean_field():
    """The best of either has a closed form here; they differ by what mean-field leaves out of the precision."""
    X, u, blocks = images(30), inducing(), (slice(3), slice(3, 5))
    y = jnp.asarray(np.mean(np.asarray(X), axis=(1, 2, 3)) - 0.5)

    @jax.jit
    def factors(u, X):
        kernel = sum_kernel(white=False)
        return cholesky(Kuu(u, kernel)).dense(), Kuf(u, kernel, X)

    A = np.linalg.solve(*factors(u, X))
    precision = np.eye(5) + A @ A.T / 0.3
    mean = jnp.asarray(np.linalg.solve(precision, A @ np.asarray(y) / 0.3))

    def best(precision):
        return jnp.asarray(np.linalg.cholesky(np.linalg.inv(precision)))

    scales = {"full": best(precision), "block_diagonal": tuple(best(precision[b, b]) for b in blocks)}
    bounds = {}
    for covariance, scale in scales.items():
        guide = InducingGuide(regression_sum, inducing(), covariance=covariance)
        params = guide.init_params(KEY, X, y) | {"f_mean": mean, "f_scale": scale}
        value = jax.jit(jax.value_and_grad(partial(bound, regression_sum, guide)))
        bounds[covariance], slopes = value(params, X, y)
        for name in ("f_mean", "f_scale"):
            jax.tree.map(lambda slope: np.testing.assert_allclose(slope, 0, atol=1e-4), slopes[name])
    lost = sum(np.linalg.slogdet(precision[b, b])[1] for b in blocks) - np.linalg.slogdet(precision)[1]
    np.testing.assert_allclose(bounds["full"] - bounds["block_diagonal"], lost / 2, rtol=1e-4)
    assert lost > 0.2


def regression_sum(X, y=None, *, num_data=None):
    f = numpyro.sample("f", GaussianProcess(sum_kernel(white=False), X))
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", Gaussian(f, 0.3), obs=y)


# -- cost --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("whiten", [True, False])
@pytest.mark.parametrize("covariance", ["full", "block_diagonal"])
def test_nothing_larger_than_a_block_is_factorised(covariance, whiten):
    X, M = images(channels=3), 7
    y = jnp.zeros(12)

    def program(X, y=None):
        kernel = MultiChannel(Matern32(1.3, 0.7), X.shape[1:], (2, 2))
        f = numpyro.sample("f", GaussianProcess(kernel, X))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", Gaussian(f, 0.3), obs=y)

    guide = InducingGuide(program, blocks(unique_patches(M)), covariance=covariance, whiten=whiten)
    svi = SVI(program, guide, adam(0.01), GaussianProcessELBO())
    params = guide.init_params(KEY, X, y)
    state = jax.eval_shape(lambda: svi.init(KEY, X, y, init_params=params))
    compiled = jax.jit(svi.update).lower(state, X, y).compile().as_text()
    calls = [line for line in compiled.splitlines() if "potrf" in line or "trsm" in line or "cholesky" in line]
    sizes = [int(n) for line in calls for n in re.findall(r"f64\[(\d+),\1\]", line.split("custom_call_target")[0])]
    assert sizes and max(sizes) == M
    factorisations = [line for line in calls if "potrf" in line and "custom-call(" in line]
    assert len(factorisations) == 1  # one for all channels


# -- everything else that takes a guide --------------------------------------------------------------------------------


@pytest.mark.slow
def test_trainings_go_on_from_checkpoints(tmp_path):
    X = images(60)
    y = labels(X)
    guide = InducingGuide(one_site, blocks(unique_patches(6), kmeans(5)), covariance="block_diagonal")

    def run(steps, checkpoint):
        svi = SVI(one_site, guide, adam(0.05), GaussianProcessELBO())
        settings = {"batch_size": 30, "model_kwargs": {"num_data": 60}, "progress": False}
        return fit(KEY, svi, steps, X, y, checkpoint=checkpoint, **settings)

    whole = run(60, None)
    run(30, tmp_path / "checkpoint")
    resumed = run(60, tmp_path / "checkpoint")
    jax.tree.map(np.testing.assert_array_equal, whole.params, resumed.params)
    assert whole.losses[-10:].mean() < 0.8 * whole.losses[0]
