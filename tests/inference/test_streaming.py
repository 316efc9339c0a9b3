"""New data after others that are gone: exact where it can be, close elsewhere, and room for it changes nothing."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats
from jax import random
from numpyro.infer import SVI
from numpyro.infer.autoguide import AutoNormal

from gpzoo.inducing.grid import InducingGrid
from gpzoo.inducing.initialisers import kmeans, random_subset, unique_patches
from gpzoo.inducing.variables import InducingPatches, InducingPoints
from gpzoo.inference import GaussianProcessELBO, InducingGuide, OnlineELBO, Trained, fit
from gpzoo.inference.fitted import updating
from gpzoo.kernels import RBF, Convolutional
from gpzoo.likelihoods import Bernoulli, Gaussian
from gpzoo.processes.process import GaussianProcess
from tests.programs import KEY, adam, bound, deep, positive, randomised, regression, sine
from tests.reference import conditional, optimal_whitened, pairs, rbf

RNG = np.random.default_rng(0)
X = np.linspace(-3, 3, 12)[:, None]
Y = np.stack([np.sin(2 * X[:, 0]), np.cos(X[:, 0])], 1) + 0.1 * RNG.standard_normal((12, 2))
NEW = np.linspace(-4, 4, 9)[:, None]
FIRST, SECOND = slice(0, 7), slice(7, None)
NOISE = 0.05


def two_outputs(X, Y=None, *, num_data=None):
    f = numpyro.sample("f", GaussianProcess(RBF(1.3, 0.4), X, num_outputs=2, jitter=0.0))
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", Gaussian(f, NOISE), obs=Y)


def covariance(A, B, variance=1.3, lengthscale=0.4):
    return rbf(*pairs(A, B), variance, lengthscale)


def exact(rows):
    """Mean and covariance at new inputs of GP regression on these rows, and their log evidence."""
    K = covariance(X[rows], X[rows]) + NOISE * np.eye(len(X[rows]))
    mean, cov = zip(
        *(conditional(K, covariance(X[rows], NEW), covariance(NEW, NEW), y) for y in Y[rows].T), strict=True
    )
    evidence = sum(scipy.stats.multivariate_normal(cov=K).logpdf(y) for y in Y[rows].T)
    return np.stack(mean, 1), np.stack(cov), evidence


def untrained(model, inducing, *args, **options):
    guide = InducingGuide(model, inducing, **options)
    return Trained(model, guide, guide.init_params(KEY, *args))


def moments(trained, new=NEW, site="f"):
    return trained.posterior(KEY, new)[site].moments()


def assert_same(ours, wanted, atol=1e-8):
    for found, expected in zip(jax.tree.leaves(ours), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(found, expected, atol=atol)


# -- Gaussian data: exact ----------------------------------------------------------------------------------------------


@pytest.mark.slow_but(whiten=[False])
@pytest.mark.parametrize("whiten", [True, False])
def test_two_halves_are_exact_regression_on_all_data(whiten):
    half = untrained(two_outputs, InducingPoints(X), X, Y, whiten=whiten).condition(KEY, X[FIRST], Y[FIRST])
    assert_same(moments(half), exact(FIRST)[:2])
    np.testing.assert_allclose(-half.losses, [exact(FIRST)[2]], rtol=1e-9)
    whole = half.condition(KEY, X[SECOND], Y[SECOND])
    assert_same(moments(whole), exact(slice(None))[:2])
    # What the new data say given the old.
    np.testing.assert_allclose(-whole.losses, [exact(slice(None))[2] - exact(FIRST)[2]], rtol=1e-9)
    assert_same(half.params["f_inducing"], X)


@pytest.mark.slow
@pytest.mark.parametrize("whiten", [True, False])
def test_fewer_inducing_variables_end_at_the_optimum_for_all_data_in_any_pieces(whiten):
    Z = X[::2] + 0.1
    start = untrained(two_outputs, InducingPoints(Z), X, Y, whiten=whiten)
    each = [optimal_whitened(covariance(Z, Z), covariance(Z, X), y, NOISE) for y in Y.T]
    L = np.linalg.cholesky(covariance(Z, Z))
    wanted = np.stack([L @ m for m, _ in each], 1), np.stack([L @ S @ L.T for _, S in each])

    def found(trained):
        return trained.posterior(KEY, NEW)["f"].inducing_moments()

    order = RNG.permutation(len(X))
    pieces = start.condition(KEY, X[order], Y[order], batch_size=5)
    assert len(pieces.losses) == 3
    at_once = start.condition(KEY, X, Y)
    for trained in (at_once, pieces, start.condition(KEY, X[SECOND], Y[SECOND]).condition(KEY, X[FIRST], Y[FIRST])):
        assert_same(found(trained), wanted)


# -- more inducing variables -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("whiten", [True, False])
@pytest.mark.parametrize("model", [two_outputs, regression], ids=["two outputs", "one"])
def test_more_inducing_variables_change_no_prediction_and_no_divergence(model, whiten):
    y = Y if model is two_outputs else Y[:, 0]
    trained = untrained(model, InducingPoints(X[:5]), X, y, whiten=whiten)
    trained = trained.with_params(randomised(trained.params))
    more = trained.add_inducing(KEY, random_subset(4), X[5:])
    assert more.params["f_inducing"].shape == (9, 1) and more.params["f_mean"].shape[0] == 9
    np.testing.assert_array_equal(more.params["f_inducing"][:5], X[:5])
    assert set(np.ravel(more.params["f_inducing"][5:])) <= set(np.ravel(X[5:]))
    assert_same(moments(more), moments(trained))
    # The bound has the divergence in it, and the expectations of the terms.
    found, wanted = (bound(model, t.guide, t.params, X, y) for t in (more, trained))
    np.testing.assert_allclose(found, wanted, rtol=1e-9)


@pytest.mark.slow
def test_inner_layers_have_more_inducing_variables_too():
    x, y = sine(20)
    trained = untrained(deep, kmeans(5), x, y)
    trained = trained.with_params(randomised(trained.params))
    more = trained.add_inducing(KEY, {"h": InducingPoints(np.array([[3.5], [4.0]])), "f": kmeans(3)}, NEW)
    assert [len(more.params[f"{site}_inducing"]) for site in "hf"] == [7, 8]
    found, wanted = (t.predict(KEY, NEW, num_draws=7) for t in (more, trained))
    assert_same([(p.mean, p.variance) for p in found.values()], [(p.mean, p.variance) for p in wanted.values()])
    # The last layer's are among its own inputs, the inner layer's values.
    assert np.ptp(more.params["f_inducing"][5:]) < 20 and not np.isin(more.params["f_inducing"][5:], NEW).any()
    only = trained.add_inducing(KEY, {"f": kmeans(3)}, NEW)
    np.testing.assert_array_equal(only.params["h_mean"], trained.params["h_mean"])


@pytest.mark.slow
def test_patches_are_added_to_patches():
    images = np.round(RNG.uniform(size=(6, 4, 4, 1)), 3)

    def model(X, y=None):
        f = numpyro.sample("f", GaussianProcess(Convolutional(RBF(1.0, 0.7), (4, 4), (2, 2)), X, jitter=1e-8))
        numpyro.sample("y", Gaussian(f, NOISE), obs=y)

    y = images.sum((1, 2, 3)) - 8
    trained = untrained(model, unique_patches(6), images, y).condition(KEY, images, y)
    more = trained.add_inducing(KEY, InducingPatches(RNG.uniform(size=(3, 4))), images)
    assert more.params["f_inducing"].shape == (9, 4)
    assert_same(moments(more, images), moments(trained, images))


@pytest.mark.slow
def test_kernels_and_inducing_inputs_of_each_output_have_more_too():
    def model(X, y=None):
        both = jnp.stack([X, 2 * X])
        f = numpyro.sample("f", GaussianProcess(RBF(jnp.ones(2), jnp.array([0.4, 0.7])), both, num_outputs=2))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", Gaussian(f, NOISE), obs=y)

    trained = untrained(model, kmeans(4), X, Y).condition(KEY, X, Y)
    more = trained.add_inducing(KEY, random_subset(3), NEW)
    assert more.params["f_inducing"].shape == (2, 7, 1)
    assert_same(moments(more), moments(trained))
    slope = jax.jit(jax.grad(lambda Z: OnlineELBO(trained).loss(KEY, now | {"f_inducing": Z}, model, guide, X, Y)))
    now, guide = randomised(more.params), trained.guide
    held, free = jnp.split(slope(now["f_inducing"]), [4], axis=1)
    assert not held.any() and free.all()


@pytest.mark.slow
def test_added_variables_take_in_what_lies_far_from_the_old_ones():
    old, far = X[:6], X[6:]
    start = untrained(two_outputs, InducingPoints(old), X, Y).condition(KEY, old, Y[:6])
    whole = start.add_inducing(KEY, InducingPoints(far), far).condition(KEY, far, Y[6:])
    assert_same(moments(whole), exact(slice(None))[:2])


# -- other data --------------------------------------------------------------------------------------------------------


def labels(X, y=None, *, num_data=None):
    f = numpyro.sample("f", GaussianProcess(RBF(2.0, 1.0), X))
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", Bernoulli(f), obs=y)


@pytest.mark.slow
def test_labels_in_two_halves_are_close_to_all_at_once_and_that_to_its_optimum():
    x, y = sine(200)
    y = (y > 0.3).astype(float)
    start = untrained(labels, kmeans(15), x, y)
    whole = start.condition(KEY, x, y)
    svi = SVI(labels, start.guide, adam(1e-9), GaussianProcessELBO())
    best = fit(KEY, svi, 60, x, y, natural=0.5, init_params=start.params, progress=False)
    np.testing.assert_allclose(whole.losses[-1], best.losses[-1], rtol=1e-5)
    assert_same(moments(whole, np.asarray(x)), moments(best, np.asarray(x)), 0.02)
    mixed = np.random.default_rng(3).permutation(len(x))
    halves = start
    for rows in np.split(mixed, 2):
        halves = halves.condition(KEY, x[rows], y[rows])
    ours, wanted = (t.predict(KEY, x)["y"].mean for t in (halves, best))
    assert np.abs(ours - wanted).max() < 0.01


@pytest.mark.slow
def test_a_deep_gp_takes_in_new_data_by_its_last_layer_or_by_name():
    x, y = sine(60)
    guide = InducingGuide(deep, kmeans(8), initial_scale={"h": 1e-3})
    svi = SVI(deep, guide, adam(0.02), GaussianProcessELBO())
    half = fit(KEY, svi, 300, x[::2], y[::2], progress=False)
    last = half.condition(KEY, x[1::2], y[1::2])
    for name, value in half.params.items():
        assert (name in ("f_mean", "f_scale")) != np.array_equal(value, last.params[name])
    test = {"y": y[1::2]}
    score = [t.predict(KEY, x[1::2], test_data=test)["y"].log_density.mean() for t in (half, last)]
    assert score[1] > score[0]
    inner = half.condition(KEY, x[1::2], y[1::2], sites={"h", "f"})
    assert inner.losses[-1] < last.losses[-1] - 1e-3


@pytest.mark.slow
def test_latent_sites_with_a_posterior_keep_it_and_are_no_part_of_the_evidence():
    def model(X, y=None, *, num_data=None):
        lengthscale = numpyro.sample("lengthscale", dist.LogNormal(0.0, 1.0))
        f = numpyro.sample("f", GaussianProcess(RBF(1.3, lengthscale), X))
        with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
            numpyro.sample("y", Gaussian(f, NOISE), obs=y)

    x, y = sine(40)
    # Posteriors that are nearly points, at a lengthscale of 1.
    narrow = {
        "point": {"lengthscale_loc": 1.0},
        "normal": {"lengthscale_loc": 0.0, "lengthscale_scale": 1e-4},
        AutoNormal: {"lengthscale_auto_loc": 0.0, "lengthscale_auto_scale": 1e-4},
    }
    losses = []
    for kind, values in narrow.items():
        start = untrained(model, kmeans(12), x, y, hyperparameters=kind)
        assert set(values) <= set(start.params)
        start = start.with_params(start.params | {name: jnp.asarray(value) for name, value in values.items()})
        found = start.condition(KEY, x, y, batch_size=25)
        assert all(found.params[name] == value for name, value in values.items())
        losses.append(found.losses)
    np.testing.assert_allclose(losses[1:], [losses[0]] * 2, atol=0.02)


# -- the bound when hyperparameters move -------------------------------------------------------------------------------


def kernel_moves(X, Y=None, *, num_data=None):
    kernel = RBF(positive("variance", 1.3), positive("lengthscale", 0.4))
    f = numpyro.sample("f", GaussianProcess(kernel, X, num_outputs=2, jitter=0.0))
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", Gaussian(f, positive("noise", NOISE)), obs=Y)


def kl(m, S, n, P):
    ratio, away = np.linalg.solve(P, S), m - n
    return (np.trace(ratio) - np.linalg.slogdet(ratio)[1] + away @ np.linalg.solve(P, away) - len(m)) / 2


@pytest.mark.slow
@pytest.mark.parametrize("whiten", [True, False])
def test_online_bound_is_the_papers(whiten):
    Z, rows = X[:5], X[FIRST]
    old = untrained(kernel_moves, InducingPoints(Z), rows, Y[FIRST], whiten=whiten).condition(KEY, rows, Y[FIRST])
    more = old.add_inducing(KEY, InducingPoints(X[8:11]), X[SECOND])
    now = randomised(more.params) | {"variance": jnp.array(1.1), "lengthscale": jnp.array(0.5)}
    found = -OnlineELBO(old).loss(KEY, now, kernel_moves, old.guide, X[SECOND], Y[SECOND])

    posterior = old.with_params(now).posterior(KEY, X[SECOND])["f"]
    past = old.posterior(KEY, X[SECOND])["f"].inducing_moments()
    mean, variance = posterior.marginals()
    wanted = scipy.stats.norm(mean, np.sqrt(NOISE)).logpdf(Y[SECOND]).sum() - np.sum(variance) / (2 * NOISE)
    m, S = map(np.asarray, posterior.inducing_moments())
    u = np.concatenate([Z, X[8:11]])
    for d in range(2):
        wanted -= kl(m[:, d], S[d], 0 * m[:, d], covariance(u, u, 1.1, 0.5))
        a, A = m[:5, d], S[d][:5, :5]
        wanted += kl(a, A, 0 * a, covariance(Z, Z)) - kl(a, A, np.asarray(past[0])[:, d], np.asarray(past[1])[d])
    np.testing.assert_allclose(found, wanted, rtol=1e-9)
    # Held hyperparameters: what one pass maximises.
    best = more.condition(KEY, X[SECOND], Y[SECOND])
    found = OnlineELBO(old).loss(KEY, best.params, kernel_moves, old.guide, X[SECOND], Y[SECOND])
    np.testing.assert_allclose(found, best.losses[-1], rtol=1e-9)


@pytest.mark.slow
def test_numpyros_own_svi_trains_all_but_the_old_inducing_variables():
    old = untrained(kernel_moves, InducingPoints(X[:5]), X, Y).condition(KEY, X[FIRST], Y[FIRST])
    more = old.add_inducing(KEY, InducingPoints(X[7:11] + 0.05), X[SECOND])
    svi = SVI(kernel_moves, old.guide, adam(0.01), OnlineELBO(old))
    result = svi.run(KEY, 200, X[SECOND], Y[SECOND], progress_bar=False, init_params=more.params)
    assert result.losses[-1] < result.losses[0] - 1
    np.testing.assert_array_equal(result.params["f_inducing"][:5], X[:5])
    for name in ("variance", "lengthscale", "noise"):
        assert result.params[name] != more.params[name]
    assert np.abs(result.params["f_inducing"][5:] - more.params["f_inducing"][5:]).min() > 1e-3
    # In minibatches, and with natural gradients, by fit.
    trained = fit(
        KEY, svi, 40, X[SECOND], Y[SECOND], init_params=more.params, batch_size=2, natural=0.1, progress=False
    )
    assert trained.losses[-10:].mean() < trained.losses[:10].mean()


def test_online_bound_refuses_other_inducing_variables():
    old = untrained(two_outputs, InducingPoints(X[:5]), X, Y)
    moved = old.params | {"f_inducing": jnp.asarray(X[1:6])}
    objective = OnlineELBO(old)
    with pytest.raises(ValueError, match="first inducing variables are not those"):
        objective.loss(KEY, moved, two_outputs, old.guide, X, Y)
    assert np.isnan(jax.jit(partial(objective.loss, KEY, model=two_outputs, guide=old.guide))(moved, X=X, Y=Y))
    fewer = {"f_inducing": jnp.asarray(X[:4]), "f_mean": jnp.zeros((4, 2)), "f_scale": jnp.stack([jnp.eye(4)] * 2)}
    with pytest.raises(ValueError, match="remove none"):
        objective.loss(KEY, fewer, two_outputs, old.guide, X, Y)
    with pytest.raises(TypeError, match="trained model"):
        OnlineELBO(two_outputs)


# -- an ordinary trained model -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_result_is_predicted_exported_and_conditioned_again():
    x, y = sine(40)
    start = untrained(regression, kmeans(6), x[:20], y[:20])
    kept = start.condition(KEY, x[:20], y[:20]).add_inducing(KEY, kmeans(6), x[20:]).condition(KEY, x[20:], y[20:])
    assert "float64[20" in str(kept.data) and kept.state is None and kept.losses.shape == (1,)
    again = kept.condition(KEY, x[:3], y[:3])
    assert (again.predict(KEY, x[:3])["f"].variance < kept.predict(KEY, x[:3])["y"].variance).all()
    exported = kept.to_arviz(random.key(1), x[:5], y[:5], num_draws=4)
    assert exported["posterior"]["f_u"].shape == (1, 4, 12)


@pytest.mark.slow
def test_float32_and_no_second_compilation(monkeypatch):
    x, y = sine(64, dtype=np.float32)
    start = untrained(regression, kmeans(10), x, y)
    traced, search = [], updating._Update.search
    monkeypatch.setattr(updating._Update, "search", lambda *args: (traced.append(1), search(*args))[1])
    found = start.condition(KEY, x, y, batch_size=16)
    found = found.condition(KEY, x[:16], y[:16])
    assert len(traced) == 1
    assert found.params["f_scale"].dtype == jnp.float32 and np.isfinite(found.predict(KEY, x)["y"].mean).all()


# -- refused -----------------------------------------------------------------------------------------------------------


def no_process(X, y=None):
    numpyro.sample("y", dist.Normal(numpyro.sample("c", dist.Normal(0.0, 1.0)), 1.0).expand([len(X)]), obs=y)


def fixed_plate(X, y=None):
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
    with numpyro.plate("data", 12, subsample_size=len(X)):
        numpyro.sample("y", Gaussian(f, 0.1), obs=y)


@pytest.mark.slow
def test_what_cannot_be_conditioned_is_refused():
    y = Y[:, 0]
    trained = untrained(regression, kmeans(5), X, y)
    with pytest.raises(ValueError, match=r"rows of \[2\].*rows of \[1\].*columns"):
        trained.condition(KEY, np.ones((4, 2)), np.ones(4))
    with pytest.raises(ValueError, match="Nothing is observed"):
        trained.condition(KEY, X)
    with pytest.raises(ValueError, match="new data count once"):
        trained.condition(KEY, X, y, model_kwargs={"num_data": 100})
    with pytest.raises(ValueError, match="sites"):
        trained.condition(KEY, X, y, sites={"g"})
    with pytest.raises(ValueError, match="num_steps"):
        trained.condition(KEY, X, y, num_steps=0)
    with pytest.raises(ValueError, match="no latent GP site"):
        untrained(no_process, kmeans(3), X, y).condition(KEY, X, y)
    diagonal = untrained(regression, kmeans(5), X, y, covariance="diagonal")
    grid = untrained(regression, InducingGrid(300), X, y)
    for other, name in ((diagonal, "'diagonal'"), (grid, "'low_rank'")):
        for refused in (
            partial(other.condition, KEY, X, y),
            partial(other.add_inducing, KEY, kmeans(2), X),
            partial(OnlineELBO, other),
        ):
            with pytest.raises(ValueError, match=f"'f' has covariance {name}"):
                refused()
    plate = untrained(fixed_plate, kmeans(3), X, y)
    plate.condition(KEY, X, y)
    for rows, options in ((6, {}), (12, {"batch_size": 6})):
        with pytest.raises(ValueError, match="Plate 'data' has 6 of 12 rows"):
            plate.condition(KEY, X[:rows], y[:rows], **options)


def test_what_cannot_be_added_is_refused():
    trained = untrained(regression, kmeans(5), X, Y[:, 0])
    with pytest.raises(ValueError, match="only their number may differ"):
        trained.add_inducing(KEY, InducingPoints(np.ones((3, 2))), X)
    with pytest.raises(TypeError, match="no InducingPatches can be added"):
        trained.add_inducing(KEY, InducingPatches(np.ones((3, 1))), X)
    with pytest.raises(TypeError, match="inducing must be an initialiser"):
        trained.add_inducing(KEY, np.ones((3, 1)), X)
    with pytest.raises(ValueError, match="inducing"):
        trained.add_inducing(KEY, {"g": kmeans(3)}, X)
    with pytest.raises(ValueError, match="only 12 distinct rows"):
        trained.add_inducing(KEY, kmeans(30), X)


@pytest.mark.slow
def test_steps_that_end_too_early_are_said():
    x, y = sine(50)
    with pytest.warns(UserWarning, match="Step 1 on rows 0 to 49 still raised"):
        untrained(labels, kmeans(8), x, (y > 0).astype(float)).condition(KEY, x, (y > 0).astype(float), num_steps=1)
