"""Natural gradients: one step is exact where it can be, other steps go along the metric, none leaves the cone."""

import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
import scipy.special
import scipy.stats
from jax import random
from jax.flatten_util import ravel_pytree
from numpyro import handlers
from numpyro.infer import SVI
from numpyro.optim import Minimize

from gpzoo.errors import NonFiniteError
from gpzoo.inducing.grid import InducingGrid
from gpzoo.inducing.initialisers import kmeans, unique_patches
from gpzoo.inducing.variables import InducingPoints
from gpzoo.inference import GaussianProcessELBO, InducingGuide, NaturalGradients, fit
from gpzoo.inference.diagnosis.approximation import course
from gpzoo.inference.training.finished import end_of
from gpzoo.kernels import RBF
from gpzoo.likelihoods import Bernoulli, Expected, Gaussian, RobustMax, Softmax
from gpzoo.models import invariant_gp, rotation
from gpzoo.posteriors import forms
from gpzoo.processes.process import GaussianProcess
from tests.programs import KEY, adam, deep, positive, program_of, regression, sine
from tests.reference import collapsed_bound, pairs, rbf

RNG = np.random.default_rng(0)
X = np.linspace(-3, 3, 12)[:, None]
Y = np.stack([np.sin(2 * X[:, 0]), np.cos(X[:, 0])], 1) + 0.1 * RNG.standard_normal((12, 2))
NOISE = 0.05


def two_outputs(X, Y=None):
    f = numpyro.sample("f", GaussianProcess(RBF(1.3, 0.4), X, num_outputs=2, jitter=0.0))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(f, NOISE), obs=Y)


def covariance(A, B):
    return rbf(*pairs(A, B), 1.3, 0.4)


def exact_evidence():
    K = covariance(X, X) + NOISE * np.eye(len(X))
    return sum(scipy.stats.multivariate_normal(cov=K).logpdf(y) for y in Y.T)


def collapsed(Z):
    return sum(collapsed_bound(covariance(Z, Z), covariance(Z, X), 1.3, y, NOISE) for y in Y.T)


# -- exact where it can be ---------------------------------------------------------------------------------------------


@pytest.mark.slow_but(whiten=[False], evidence=[exact_evidence])
@pytest.mark.parametrize("whiten", [True, False])
@pytest.mark.parametrize(("Z", "evidence"), [(X, exact_evidence), (X[::2], partial(collapsed, X[::2]))])
def test_one_step_from_anywhere_is_the_optimum(Z, evidence, whiten):
    assert np.linalg.cond(covariance(X, X)) < 1e6
    guide = InducingGuide(two_outputs, InducingPoints(Z), whiten=whiten)
    svi = SVI(two_outputs, guide, NaturalGradients(optax.sgd(0.0), guide, 1.0), GaussianProcessELBO())
    fixed = svi.init(KEY, X, Y)

    @jax.jit
    def after_a_step(mean, scale):
        others, mine, *rest = fixed.optim_state[1]
        state = fixed._replace(
            optim_state=(fixed.optim_state[0], (others, mine | {"f_mean": mean, "f_scale": scale}, *rest))
        )
        state, _ = svi.update(state, X, Y)
        return svi.evaluate(state, X, Y), svi.optim.get_params(state.optim_state)["f_inducing"]

    rng = np.random.default_rng(1)
    for size in (1e-2, 1.0, 3.0):
        M = len(Z)
        scale = np.tril(rng.standard_normal((2, M, M)) / M) + np.eye(M)
        loss, inducing = after_a_step(size * rng.standard_normal((M, 2)), size * scale)
        np.testing.assert_allclose(-loss, evidence(), rtol=1e-8)
        np.testing.assert_array_equal(inducing, Z)


# -- along the metric --------------------------------------------------------------------------------------------------

FORMS = {
    "full": forms.Full(RNG.standard_normal((2, 4, 4)) * 0.3 + np.eye(4)),
    "block_diagonal": forms.BlockDiagonal((np.tril(RNG.standard_normal((3, 3))) + 2 * np.eye(3), np.ones((1, 1)))),
    "kronecker": forms.Kronecker(tuple(np.tril(RNG.standard_normal((2, 2))) + 2 * np.eye(2) for _ in range(2))),
    "diagonal": forms.Diagonal(np.array([0.3, 1.0, 2.0, 0.7])),
}


@pytest.mark.slow_but(name=["diagonal", "kronecker"])
@pytest.mark.parametrize("name", FORMS)
def test_small_steps_are_steepest_in_the_metric_of_the_divergence(name):
    # Of q(u), by the second derivative of its divergence from itself: nothing here knows a form's algebra.
    form = jax.tree.map(jnp.asarray, FORMS[name])
    outputs = 2 if name == "full" else None
    mean = jnp.asarray(RNG.standard_normal((4, 2) if outputs else 4))
    C = jnp.asarray(np.cov(RNG.standard_normal((4, 9))))

    def lower(form):
        return form if name == "diagonal" else jax.tree.map(jnp.tril, form)

    def dense(form):
        R = form.by_output(4, outputs).root()
        R = R.dense() if hasattr(R, "dense") else R
        return R @ R.mT

    def divergence(q, p):
        (m, S), (n, P) = ((q[0].reshape(4, -1).T, dense(q[1])), (p[0].reshape(4, -1).T, dense(p[1])))
        solved = jnp.linalg.solve(P, S)
        square = jnp.einsum("dm,dmn,dn->", m - n, jnp.linalg.inv(P), m - n)
        return (jnp.sum(jnp.trace(solved, axis1=1, axis2=2) - jnp.linalg.slogdet(solved)[1]) + square) / 2

    def loss(q):
        m = q[0].reshape(4, -1).T
        return jnp.sum(jnp.sin(m)) + jnp.einsum("mn,dmn->", C, dense(q[1])) + jnp.einsum("dm,dmm->", m, dense(q[1]))

    @jax.jit
    def both(mean, form, step):
        flat, unflatten = ravel_pytree((mean, lower(form)))
        kept = ravel_pytree((jnp.ones_like(mean), lower(jax.tree.map(jnp.ones_like, form))))[0] == 1
        if name == "kronecker":  # the factors take turns
            scale = tuple(jnp.full_like(L, (step % 2) == i) for i, L in enumerate(form.scale))
            kept &= ravel_pytree((jnp.ones_like(mean), forms.Kronecker(scale)))[0] == 1
        metric = jax.hessian(lambda x: divergence(unflatten(x), (mean, form)))(flat)
        inside = kept[:, None] & kept
        metric = jnp.where(inside, metric, jnp.eye(len(flat)))
        slope = jax.grad(lambda x: loss(unflatten(x)))(flat)
        g_mean, g_form = unflatten(slope)
        rate = 1e-7
        new_mean, new_form, shortened = form.natural_step(mean, g_mean, g_form, jnp.asarray(rate), step)
        moved = (ravel_pytree((new_mean, lower(new_form)))[0] - flat) / rate
        return moved, -jnp.linalg.solve(metric, jnp.where(kept, slope, 0)), shortened

    for step in (0, 1):
        moved, expected, shortened = both(mean, form, step)
        np.testing.assert_allclose(moved, expected, rtol=2e-5, atol=2e-5)
        assert shortened == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_step_that_leaves_the_cone_is_shortened_where_it_does(dtype):
    # 1 + rate * 2 g S is [3, -1]: the first variance is exact, the second grows fourfold.
    L, g = np.array([[1.0, 0.0], [0.0, 2.0]], dtype), np.array([[2.0, 0.0], [0.0, -1.0]], dtype)
    zero = np.zeros(2, dtype)
    for form, slopes in ((forms.Full(L), forms.Full(g)), (forms.Diagonal(np.diag(L)), forms.Diagonal(np.diag(g)))):
        _, after, shortened = jax.jit(form.natural_step)(zero, zero, slopes, dtype(1.0), 0)
        S = np.asarray(after.by_output(2, None).root()[0], float) @ np.asarray(after.by_output(2, None).root()[0]).T
        np.testing.assert_allclose(S, np.diag([1 / 3, 16.0]), rtol=1e-6, atol=1e-6)
        assert shortened == 1


@pytest.mark.slow
def test_large_variances_in_single_precision_stay_finite():
    rows = np.linspace(0, 1, 60, dtype=np.float32)[:, None]
    labels = (rows[:, 0] > 0.5).astype(np.int32)
    steep = program_of(Bernoulli, RBF(np.float32(1e4), np.float32(0.3)))
    with jax.numpy_dtype_promotion("standard"):
        svi = SVI(steep, InducingGuide(steep, kmeans(20)), adam(1e-3), GaussianProcessELBO())
        with pytest.warns(UserWarning, match="natural steps of site 'f' were shortened"):
            found = fit(KEY, svi, 30, rows, labels, natural=1.0, progress=False)
    assert np.isfinite(found.losses).all() and found.losses[-1] < found.losses[0] / 10000


# -- in training -------------------------------------------------------------------------------------------------------


def classes(X, y=None, num_data=None):
    variance = positive("variance", 4.0)
    f = numpyro.sample("f", GaussianProcess(RBF(variance, 0.5), X))
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", Bernoulli(f), obs=y)


def labelled(num_rows=200):
    inputs = np.random.default_rng(2).uniform(-2, 2, (num_rows, 1))
    chance = scipy.special.expit(6 * np.sin(3 * inputs[:, 0]))
    return inputs, (np.random.default_rng(3).uniform(size=num_rows) < chance).astype(int)


def training(program, natural, steps, *data, guide=None, **options):
    guide = guide or InducingGuide(program, kmeans(15))
    svi = SVI(program, guide, adam(0.02), GaussianProcessELBO())
    return fit(KEY, svi, steps, *data, natural=natural, progress=False, **options)


@pytest.mark.slow
def test_ten_steps_do_what_adam_does_not_in_two_hundred():
    rows, labels = labelled()
    fixed = handlers.substitute(classes, {"variance": 4.0})
    natural = training(fixed, 0.5, 10, rows, labels)
    by_adam = training(fixed, None, 200, rows, labels)
    assert natural.losses[-1] < by_adam.losses[-1]
    assert natural.backed_off == {"f": 0} and by_adam.backed_off == {}


@pytest.mark.slow
def test_a_step_of_plain_svi_is_compiled_once():
    rows, labels = labelled(20)
    guide = InducingGuide(classes, kmeans(5))
    svi = SVI(classes, guide, NaturalGradients(adam(0.02), guide, 0.1), GaussianProcessELBO())
    state, traces = svi.init(KEY, rows, labels), []

    @jax.jit
    def update(state):
        traces.append(1)
        return svi.update(state, rows, labels)[0]

    for _ in range(3):
        state = update(state)
    assert len(traces) == 1


@pytest.mark.slow
def test_minibatches_schedules_several_keys_and_resumption(tmp_path):
    rows, labels = labelled(100)
    options = {"natural": {"f": optax.linear_schedule(0.01, 0.1, 10)}, "batch_size": 50}
    keys = random.split(KEY, 2)

    def several(steps, **more):
        guide = InducingGuide(classes, kmeans(15))
        svi = SVI(classes, guide, adam(0.02), GaussianProcessELBO())
        return fit(keys, svi, steps, rows, labels, in_axes=None, progress=False, **options, **more)

    whole = several(8)
    several(5, checkpoint=tmp_path)
    resumed = several(8, checkpoint=tmp_path)
    np.testing.assert_array_equal(resumed.losses, whole.losses)
    assert (whole.params["variance"] != 4).all()  # by the other optimiser
    assert whole.backed_off["f"].shape == (2,) and whole.member(1).backed_off == {"f": 0}


def heavy(family):
    return lambda f: Expected(lambda f: family(f, 0.1), f)


# -- steps that would lower the bound ----------------------------------------------------------------------------------

OUTLIERS = np.where(np.arange(40) % 7 == 3, 8.0, 0.0) + np.sin(3 * np.linspace(-3, 3, 40))
THIRDS = np.digitize(np.sin(2 * np.linspace(-3, 3, 40)), [-0.5, 0.5])

FAR_FROM_QUADRATIC = {
    "Student-t": (heavy(partial(dist.StudentT, 3.0)), OUTLIERS, None),
    "Cauchy": (heavy(dist.Cauchy), OUTLIERS, None),
    "softmax": (Softmax, THIRDS, 3),
    "robust-max": (RobustMax, THIRDS, 3),
}


def far_from_quadratic(name):
    likelihood, y, outputs = FAR_FROM_QUADRATIC[name]

    def program(X, y=None, num_data=None):
        options = {} if outputs is None else {"num_outputs": outputs}
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 0.4), X, **options))
        with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
            numpyro.sample("y", likelihood(f), obs=y)

    return program, np.linspace(-3, 3, 40)[:, None], y


@pytest.mark.parametrize("sharpness, kept", [(1e4, False), (0.1, True)])
def test_a_step_that_raises_the_loss_is_taken_back(sharpness, kept):
    guide = InducingGuide(regression, InducingPoints(np.zeros((3, 1))), covariance="diagonal")
    start = {"f_mean": jnp.full(3, 2.0), "f_scale": jnp.zeros(3)}
    guide.setup(*sine(4))
    optimiser = NaturalGradients(optax.sgd(0.1), guide, 1.0)
    state = optimiser.init(start)

    @jax.jit
    def step(state):
        loss = lambda params: (jnp.sum(jnp.sqrt(1 + sharpness * jnp.square(params["f_mean"]))), None)  # noqa: E731
        (before, _), after = optimiser.eval_and_update(loss, state)
        return before, loss(optimiser.get_params(after))[0], after

    before, found, after = step(state)
    assert found < before if kept else found == before
    assert optimiser.backed_off(after)["f"] == (not kept)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [1.0, 0.1])
@pytest.mark.parametrize("name", FAR_FROM_QUADRATIC)
def test_no_training_ends_below_where_it_began(name, rate):
    program, rows, y = far_from_quadratic(name)
    guide, keys = InducingGuide(program, kmeans(8)), random.split(KEY, 5)
    start = guide.init_params(KEY, rows, y)
    means = [size * random.normal(key, start["f_mean"].shape) for key, size in zip(keys, range(5), strict=True)]
    starts = {name: jnp.stack([x] * 5) for name, x in start.items()} | {"f_mean": jnp.stack(means)}
    svi = SVI(program, guide, adam(1e-3), GaussianProcessELBO())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = fit(keys, svi, 20, rows, y, natural=rate, in_axes=None, init_params=starts, progress=False)
    precise = GaussianProcessELBO(num_particles=100)
    loss = jax.jit(jax.vmap(lambda params: precise.loss(KEY, params, program, guide, rows, y)))
    assert (loss(found.params) < loss(starts)).all()
    if name != "softmax":  # whose bound is of other draws at each step
        assert (np.diff(found.losses) <= 1e-3).all()  # the other optimiser's steps are no part of what is judged
    assert (2 * found.backed_off["f"].max() > 20) == any(
        "natural steps of site 'f' were shortened" in str(w.message) for w in said
    )


@pytest.mark.slow
def test_damped_steps_go_on_from_a_checkpoint_with_the_same_bits(tmp_path):
    program, rows, y = far_from_quadratic("Student-t")

    def several(steps, **more):
        svi = SVI(program, InducingGuide(program, kmeans(8)), adam(0.02), GaussianProcessELBO())
        with pytest.warns(UserWarning, match="natural steps of site 'f' were shortened"):
            return fit(
                random.split(KEY, 2),
                svi,
                steps,
                rows,
                y,
                natural=1.0,
                batch_size=20,
                in_axes=None,
                progress=False,
                **more,
            )

    whole = several(12)
    several(7, checkpoint=tmp_path)
    resumed = several(12, checkpoint=tmp_path)
    np.testing.assert_array_equal(resumed.losses, whole.losses)
    np.testing.assert_array_equal(resumed.backed_off["f"], whole.backed_off["f"])
    assert (whole.backed_off["f"] > 0).all()


@pytest.mark.slow
def test_the_stable_update_of_svi_judges_steps_too():
    program, rows, y = far_from_quadratic("robust-max")
    guide = InducingGuide(program, kmeans(8))
    svi = SVI(program, guide, NaturalGradients(adam(0.02), guide, 1.0), GaussianProcessELBO())
    first = svi.init(KEY, rows, y)
    ends = [
        jax.lax.fori_loop(0, 10, lambda i, s, update=u: update(s, rows, y)[0], first)
        for u in (svi.update, svi.stable_update)
    ]
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-9), *(s.optim_state for s in ends))
    assert svi.optim.backed_off(ends[0].optim_state)["f"] > 0


def test_diagnosis_says_that_most_steps_were_shortened():
    said = [finding.name for finding in course(np.zeros(40), 10, {"f": 21, "g": 20}, end_of(np.zeros(40), 10)).findings]
    assert said == ["natural steps shortened"]


@pytest.mark.slow
def test_too_long_steps_under_sampled_views_tell_the_way_out(standard_promotion):
    images = np.random.default_rng(1).uniform(size=(2000, 6, 6, 1)).astype(np.float32)
    model = partial(invariant_gp, view=rotation(180.0, num_views=2), noise_variance=0.01)
    guide = InducingGuide(model, unique_patches(8))
    svi = SVI(model, guide, optax.adam(0.1), GaussianProcessELBO())
    options = {"batch_size": 5, "natural": 0.5, "progress": False}
    with pytest.raises(NonFiniteError, match="where a kernel samples views, leave natural out") as caught:
        fit(KEY, svi, 200, images, np.sign(images.mean(axis=(1, 2, 3)) - 0.5), **options)
    assert np.isfinite(caught.value.result.params["f_mean"]).all()


@pytest.mark.slow
def test_inner_layers_have_natural_gradients_by_name_only():
    rows, y = sine(20)
    guide = InducingGuide(deep, kmeans(5))
    guide.setup(rows, y)
    assert set(NaturalGradients(adam(0.01), guide, 0.1)._rates()) == {"f"}
    with pytest.warns(UserWarning, match="Natural gradients of h, on which other GP sites depend"):
        found = training(deep, {"h": 1e-3, "f": 0.1}, 3, rows, y, guide=guide)
    assert np.isfinite(found.losses).all() and set(found.backed_off) == {"h", "f"}


on_a_grid = program_of(lambda f: Gaussian(f, 0.1), RBF(1.0, 0.5))


@pytest.mark.parametrize("covariance", ["low_rank", "diagonal"])
def test_grids_without_a_factor_are_refused(covariance):
    guide = InducingGuide(on_a_grid, InducingGrid(20, (-4.0, 4.0)), covariance=covariance)
    with pytest.raises(ValueError, match=r"Site 'f' has no natural gradients.* on a grid"):
        training(on_a_grid, 0.1, 1, X, Y[:, 0], guide=guide)


def test_schedules_may_begin_and_end_at_nothing_or_at_the_whole_step():
    guide = InducingGuide(regression, kmeans(3))
    whole = optax.exponential_decay(1e-3, 3, 10.0, end_value=1.0)
    for rate in (optax.linear_schedule(0.0, 1.0, 9), optax.cosine_decay_schedule(1.0, 9), whole, lambda step: 0.1):
        NaturalGradients(adam(0.1), guide, rate).refuse_at(9)


def of_rate(rate, of=regression, optimiser=None):
    return lambda: NaturalGradients(optimiser or adam(0.1), InducingGuide(of, kmeans(3)) if of else regression, rate)


def trained_at(rate):
    return lambda: training(regression, rate, 10, *sine(6), guide=InducingGuide(regression, kmeans(3)))


TOO_LONG = optax.linear_schedule(0.1, 2.0, 9)
#: A call, the error that it raises, and what this names.
REFUSED = {
    "nothing": (of_rate({"f": 0.0}), ValueError, r"natural\['f'\]"),
    "too long": (of_rate(1e30), ValueError, "natural .*at most 1"),
    "too long in fit": (trained_at(1e30), ValueError, "natural .*at most 1"),
    "too long by schedule": (trained_at(lambda step: 1e30), ValueError, "natural .*at most 1"),
    "too long by site": (trained_at({"f": lambda step: 1e30}), ValueError, r"natural\['f'\] .*at most 1"),
    "several": (of_rate(lambda step: jnp.full(2, 0.1)), ValueError, "natural at step 0"),
    "not a number": (of_rate(lambda step: jnp.nan), ValueError, "natural at step 0"),
    "too long at last": (trained_at(TOO_LONG), ValueError, "natural .*at most 1, .*step 9"),
    "too long at last, by site": (trained_at({"f": TOO_LONG}), ValueError, r"natural\['f'\] .*at most 1, .*step 9"),
    "another guide": (of_rate(0.1, None), TypeError, "InducingGuide"),
    "another optimiser": (of_rate(0.1, optimiser=Minimize()), ValueError, "Minimize"),
    "twice": (lambda: of_rate(0.1, optimiser=of_rate(0.1)())(), ValueError, "natural gradients already"),
    "an unknown site": (trained_at({"g": 0.1}), ValueError, "'g'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_rate_guide_or_optimiser_is_refused(case):
    call, error, named = REFUSED[case]
    with pytest.raises(error, match=named):
        call()
