"""What users pass in is checked where it comes in: data, options, names and shapes of parameters, precision."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from jax import random
from numpyro import handlers
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoDelta

from gpzoo import _checks as checks
from gpzoo import draws
from gpzoo.errors import PrecisionWarning
from gpzoo.inducing.grid import InducingGrid
from gpzoo.inducing.initialisers import kmeans
from gpzoo.inducing.variables import InducingPoints
from gpzoo.inference import GaussianProcessELBO, InducingGuide, Trained, compare, fit, predict
from gpzoo.inference.training._mesh import HERE
from gpzoo.inference.training.sources import Streamed
from gpzoo.kernels import RBF, Kernel, Matern32
from gpzoo.likelihoods import Gaussian, Softmax
from gpzoo.posteriors import InducingPosterior, Projection, forms
from gpzoo.processes.process import GaussianProcess
from gpzoo.tables.arrays import ArrayTable
from gpzoo.tables.standardise import standardised
from gpzoo.views.orbits import Orbit
from tests.programs import KEY, adam, bayesian_regression, regression, sine, with_model_kwargs

X, y = sine(6)


def prepared(program=regression, *args, inducing=None, **options):
    guide = InducingGuide(program, inducing or kmeans(3), **options)
    return guide, guide.init_params(KEY, *(args or (X, y)))


def train(svi, steps, *args, **kwargs):
    return fit(KEY, svi, steps, *args, progress=False, **with_model_kwargs(kwargs))


def svi_of(program, **options):
    return SVI(program, InducingGuide(program, kmeans(3), **options), adam(0.01), GaussianProcessELBO())


# -- data --------------------------------------------------------------------------------------------------------------


def test_arrays_are_neither_copied_nor_moved():
    host, device = np.ones((4, 2)), jnp.ones((4, 2))
    assert checks.data("X", host) is host and checks.data("X", device) is device
    assert isinstance(checks.data("X", pd.Series([1, 2])), np.ndarray)
    swapped = checks.data("X", host.astype(">f4"))
    assert swapped.dtype == np.float32 and swapped.dtype.isnative
    for dtype in ("int8", "uint16", "int64", "bool"):
        assert checks.data("y", np.zeros(3, dtype)).dtype == dtype


def test_tracers_pass_and_what_they_stand_for_is_not_looked_at():
    jax.jit(lambda x: checks.data("X", x))(jnp.full(3, jnp.nan))


def test_numbers_that_32_bits_do_not_hold_are_refused():
    with jax.enable_x64(False):
        for values in (np.array([1e39, 0.0]), np.array([2**40]), np.array([2**33], np.uint64)):
            with pytest.raises(ValueError, match=r"X has .*enable_x64\(\) first"):
                checks.data("X", values)
        checks.data("X", np.array([2**31 - 1]))
    checks.data("X", np.array([1e39, 0.0]))


@pytest.mark.slow_but(x64=[False])
@pytest.mark.parametrize("x64", [True, False])
@pytest.mark.parametrize(
    "as_given", [np.asarray, np.ndarray.tolist, pd.DataFrame, lambda x: x.astype(np.uint64), lambda x: x.tolist()[0]]
)
def test_whole_numbers_beyond_32_bits_keep_their_size(as_given, x64):
    """Time stamps in milliseconds, 50 days apart: JAX would keep the last 32 bits of each, which are the same."""
    times = np.array([[1_700_000_000_000], [1_700_000_000_000 + 2**32]])
    given = as_given(times)
    wanted = times[: len(given)].reshape(np.shape(given))
    with jax.enable_x64(x64):
        found = checks.floating("x", given)
        assert found.dtype == (np.float64 if x64 else np.float32)
        np.testing.assert_allclose(found, wanted, rtol=1e-7)
        assert RBF(1.0, given[0] if np.ndim(given) == 1 else 1e9).lengthscale > 1e8
        if np.ndim(given) == 2:
            assert abs(RBF(1.0, 1e9)(given)[0, 1] - np.exp(-((2**32 / 1e9) ** 2) / 2)) < 1e-3
            assert GaussianProcess(RBF(), given).X.min() > 1e12


#: Columns that are not numbers, and what the refusal advises for an expression of Python.
COLUMNS = {
    "categories": (pd.Series([3, 2, 3], dtype="category"), "{}.cat.codes"),
    "words": (pd.Series(list("aba"), dtype="category"), "{}.cat.codes"),
    "dates": (pd.Series(pd.date_range("2020", periods=3)), "days since"),
    "dates of a zone": (pd.Series(pd.date_range("2020", periods=3, tz="UTC")), "days since"),
    "times": (pd.Series(pd.to_timedelta([0, 1, 2], "h")), "days since"),
}


@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.parametrize("bad", [["g"], [3], ["cat", ("a", 1)]])
@pytest.mark.parametrize("good", [[], ["x"], ["x", "z"]])
def test_columns_that_are_no_numbers_are_named_with_a_way_out(kind, bad, good):
    column, way_out = COLUMNS[kind]
    for order in (good + bad, bad + good):
        X = pd.DataFrame({i: column if label in bad else [0.0, 1.0, 2.0] for i, label in enumerate(order)})
        X.columns = pd.Index(order, tupleize_cols=False)
        with pytest.raises(TypeError) as refused:
            checks.data("X", X)
        for label in bad:
            assert f"X[{label!r}]" in str(refused.value)
            assert way_out.format(f"X[{label!r}]") in str(refused.value)
            if "codes" in way_out:
                X[label] = eval(way_out.format(f"X[{label!r}]"), {"X": X})
        if "codes" in way_out:
            assert checks.data("X", X).shape == (3, len(order))
    for x in (column, column.array):
        with pytest.raises(TypeError, match=r"^X must"):
            checks.data("X", x)


def test_inducing_inputs_are_data():
    with pytest.raises(TypeError, match=r"Z must hold real numbers.*float16.*convert it"):
        InducingPoints(np.ones((3, 1), np.float16))
    with pytest.raises(TypeError, match="a random key"):
        InducingPoints(random.split(random.key(0), (3, 1)))
    with jax.enable_x64(False), pytest.raises(ValueError, match=r"Z has whole numbers .* more than int32 holds"):
        InducingPoints(np.full((3, 1), 2**40))


def test_arguments_have_the_names_that_the_program_gives_them():
    def counts_of(years, counts=None, *more):
        """Never run."""

    bad = np.array(["a"])
    for program in (counts_of, handlers.seed(counts_of, 0)):
        for position, name in enumerate(("years", "counts", r"args\[2\]")):
            args = [np.ones(1)] * 3
            args[position] = bad
            with pytest.raises(TypeError, match=f"^{name} must hold real numbers"):
                checks.arguments(program, tuple(args), {})
    with pytest.raises(TypeError, match=r"^years\['left'\]\[1\] must hold real numbers"):
        checks.arguments(counts_of, ({"left": (np.ones(1), bad)},), {})
    for nothing_at_all in (None, {}):
        with pytest.raises(TypeError, match=r"^years must be an array of .*, got"):
            checks.arguments(counts_of, (nothing_at_all,), {})
    checks.arguments(counts_of, (np.ones(1), None), {})
    with pytest.raises(TypeError, match=r"^years is a generator, which is empty after the program's first run"):
        checks.arguments(counts_of, ((x for x in ()),), {})
    with pytest.raises(ValueError, match="observed is a masked array"):
        checks.arguments(counts_of, (), {"observed": np.ma.masked_array([True])})
    other = {"observed": np.array([True]), "subsets": [[0, 1]], "name": "a", "none": None, "scale": np.float64(3)}
    with pytest.raises(ValueError, match=r"edges has 1 entries that are not finite, the first at index \(1,\) \(nan\)"):
        checks.arguments(counts_of, (), {"edges": np.array([-np.inf, np.nan])})
    checks.arguments(counts_of, (), {"edges": np.array([-np.inf, 0.0])})
    args, kept = checks.arguments(counts_of, (), dict(other))
    assert all(kept[name] is other[name] for name in other)


def test_masks_of_single_outputs_are_told_how():
    f, observed = jnp.zeros((4, 2)), jnp.ones((4, 2), bool)
    with pytest.raises(ValueError, match=r"a mask of shape \(4, 2\) does not go with 4 data.*observed\[:, d\]"):
        Softmax(f).mask(observed)
    with pytest.raises(ValueError, match=r"a mask of shape \(4, 3\) does not go with y of shape \(4, 2\)"):
        Gaussian(f, 0.1).mask(jnp.ones((4, 3), bool))

    def program(X, y, observed):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X, num_outputs=2))
        with numpyro.plate("data", len(X)):
            for d in range(2):
                with handlers.mask(mask=observed[:, d]):
                    numpyro.sample(f"y_{d}", Gaussian(f[:, d], 0.1), obs=y[:, d])

    targets = jnp.stack([y, y], axis=1)
    InducingGuide(program, kmeans(3)).setup(X, targets, jnp.ones((6, 2), bool))


# -- precision ---------------------------------------------------------------------------------------------------------


def far(name):
    return pytest.warns(
        UserWarning, match=rf"{name} lies between .*so far from zero .*subtract the mean \(standardise\)"
    )


def test_numbers_far_from_zero_are_warned_of_once():
    inputs = np.asarray(X, np.float32)
    with jax.enable_x64(False):
        with far("column 0 of X") as caught:
            checks.arguments(regression, (inputs + np.float32(1e6), y), {})
        assert len(caught) == 1 and caught[0].filename == __file__
        with far("y") as caught:
            checks.arguments(regression, (np.asarray(X) + 1e6, np.asarray(y) + 1e6), {})
        assert len(caught) == 1 and "column 0 of X" in str(caught[0].message)
        # float64 and integers that have digits enough, years, labels, counts and columns that are constant.
        labels = np.arange(6) + 1_000_000
        years = 2000 + np.linspace(0, 20, 6)
        for fine in (labels, labels.astype(float), years, np.full(6, 1e7), np.asarray(y) + 100):
            checks.arguments(regression, (X, fine), {})
    checks.arguments(regression, (np.asarray(X) + 1e6, np.asarray(y) + 1e6), {})


@pytest.mark.parametrize("double", [False, True])
def test_a_table_far_from_zero_is_warned_of(double):
    times = ArrayTable(1.7e9 + np.arange(6.0)[:, None], np.asarray(y), dtype=np.float32)
    with jax.enable_x64(double):
        with far("column 0 of array 0 of the table"):
            checks.arguments(regression, (times,), {}, tables=True)
        checks.arguments(regression, (standardised(times),), {}, tables=True)


def test_float32_inputs_are_warned_of_where_float64_is_wanted():
    inputs = np.asarray(X, np.float32)
    with pytest.warns(
        UserWarning, match=r"X is float32 .* in float32, although float64 .*X.astype\('float64'\)"
    ) as found:
        InducingGuide(regression, kmeans(3)).setup(inputs, y)
    assert len(found) == 1
    # Targets take the precision of the inputs.
    InducingGuide(regression, kmeans(3)).setup(X, np.asarray(y, np.float32))


@pytest.mark.slow
def test_a_comparison_warns_once(monkeypatch):
    inputs = np.asarray(X, np.float32) + np.float32(1e6)
    programs = {"one": (regression, kmeans(2)), "two": (regression, kmeans(2))}
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"), far("column 0 of X") as caught:
        compare(KEY, programs, inputs, np.asarray(y, np.float32), num_steps=1, progress=False)
    assert len(caught) == 1


# -- num_data ----------------------------------------------------------------------------------------------------------


def test_num_data_is_checked_without_minibatches():
    svi = svi_of(regression)
    with pytest.raises(ValueError, match=r"Plate 'data' has size 600, but there are 6 rows: each would count 100"):
        train(svi, 2, X, y, num_data=600)
    for wrong in (-5, 0, "40", 40.0, True):
        with pytest.raises(ValueError, match=f"num_data must be an integer of at least 1, got {wrong!r}"):
            train(svi, 2, X, y, num_data=wrong)


@pytest.mark.slow
def test_a_program_may_take_minibatches_itself():
    def program(X, y=None):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
        with numpyro.plate("data", len(X), subsample_size=3) as rows:
            numpyro.sample("y", Gaussian(f[rows], 0.1), obs=None if y is None else y[rows])

    trained = train(svi_of(program), 1, X, y)
    # Then its predictions are of rows that nobody knows.
    for batch_size in (None, 4):
        with pytest.raises(ValueError, match=r"Plate 'data' takes 3 of the . rows at random"):
            trained.predict(KEY, X, batch_size=batch_size)
    with pytest.raises(ValueError, match="Plate 'data' takes 3 of the 6 rows at random"):
        trained.to_arviz(KEY, X, y, num_draws=2)


# -- parameters --------------------------------------------------------------------------------------------------------


def test_values_given_for_sites_do_not_broadcast():
    guide, params = prepared()
    with pytest.raises(ValueError, match=r"value given for 'f' has shape \(1,\), but the site has shape \(6,\) here"):
        Trained(guide.model, guide, params | {"f": jnp.ones(1)}).posterior(KEY, X, y)
    Trained(guide.model, guide, params | {"f": jnp.ones(6)}).posterior(KEY, X, y)
    with pytest.raises(ValueError, match=r"value given for 'f' has shape \(5, 1\), but the site has shape \(6,\)"):
        predict(KEY, regression, X, posterior_samples={"f": np.ones((4, 5, 1))}, params=params, train_args=(X, y))


def test_shapes_of_parameters_are_checked():
    guide, params = prepared()
    with pytest.raises(ValueError, match=r"params\['noise'\] has shape \[1\], but the program's has \[\]"):
        Trained(guide.model, guide, params | {"noise": jnp.ones(1)}).posterior(KEY, X, y)
    with pytest.raises(ValueError, match=r"init_params\['noise'\] has shape \[2\]"):
        train(svi_of(regression), 1, X, y, init_params={"noise": jnp.ones(2)})
    with pytest.raises(ValueError, match=r"init_params names \['nois'\]"):
        train(svi_of(regression), 1, X, y, init_params={"nois": jnp.ones(())})


def test_names_of_initial_values_are_checked_for_any_guide():
    def program(X, y=None):
        f = numpyro.sample("f", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(f * numpyro.param("w", 0.5) + 0 * X, 1.0), obs=y)

    svi = SVI(program, AutoDelta(program), adam(0.01), Trace_ELBO())
    with pytest.raises(ValueError, match=r"init_params names \['typo'\], but the parameters are .*'w'"):
        train(svi, 1, X[:1, 0], y[:1], init_params={"typo": 1.0})
    assert float(train(svi, 1, X[:1, 0], y[:1], init_params={"w": 2.0}).params["w"]) == pytest.approx(2.0, abs=0.1)


@pytest.mark.slow
def test_parameters_of_another_run_of_the_program_are_known():
    """Their shapes may depend on arguments, but not their names."""

    def program(X, y=None, *, more=False, extra=False):
        scale = numpyro.param("scale", jnp.ones(2 if more else ())) * numpyro.param("extra" if extra else "usual", 1.0)
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", Gaussian(f, 0.1 + 0 * jnp.sum(scale)), obs=y)

    guide, params = prepared(program)
    other = guide.init_params(KEY, X, y, model_kwargs={"more": True})
    assert other["scale"].shape == (2,) and set(other) == set(params)
    Trained(guide.model, guide, other).posterior(KEY, X, y, model_kwargs={"more": True})
    with pytest.raises(ValueError, match=r"the site\(s\) \['extra'\], of which the guide knows nothing"):
        guide.init_params(KEY, X, y, model_kwargs={"extra": True})


@pytest.mark.slow
def test_values_that_the_user_substitutes_need_no_parameter():
    fixed = handlers.substitute(regression, data={"noise": jnp.asarray(0.2)})
    guide, params = prepared(fixed)
    rest = {name: value for name, value in params.items() if name != "noise"}
    loss = GaussianProcessELBO().loss
    np.testing.assert_allclose(loss(KEY, rest, fixed, guide, X, y), loss(KEY, params, fixed, guide, X, y))
    Trained(guide.model, guide, rest).posterior(KEY, X, y)
    Trained(fixed, guide, rest).predict(KEY, X)
    with pytest.raises(ValueError, match=r"objective's params has no value for \['variance'\]"):
        loss(KEY, {name: value for name, value in rest.items() if name != "variance"}, fixed, guide, X, y)


@pytest.mark.slow
def test_factors_of_low_rank_are_parameters_of_the_guide():
    inducing = InducingGrid(8, (-3.0, 3.0))
    guide, params = prepared(regression, inducing=inducing, covariance=forms.LowRank(rank=2))
    assert {"f_mean", "f_scale", "f_factor"} == guide.variational_parameters() & set(params)
    constants = Trained(regression, guide, params).to_arviz(KEY, X, y, num_draws=2)["constant_data"]
    assert "f_factor" not in constants and "noise" in constants
    with pytest.raises(ValueError, match=r"no value for \['f_factor'\]"):
        Trained(guide.model, guide, {name: value for name, value in params.items() if name != "f_factor"}).posterior(
            KEY, X
        )

    def clash(X, y=None):
        numpyro.param("f_factor", 1.0)
        regression(X, y)

    with pytest.raises(ValueError, match=r"parameters would be named \['f_factor'\]"):
        InducingGuide(clash, inducing, covariance="low_rank").setup(X, y)


@pytest.mark.slow
def test_latents_per_row_are_told_that_the_rows_have_changed():
    def program(y):
        x = numpyro.sample("x", dist.Normal(jnp.zeros((len(y), 1)), 1.0).to_event(2))
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), x))
        with numpyro.plate("data", 6, subsample_size=len(y)):
            numpyro.sample("y", Gaussian(f, 0.1), obs=y)

    guide, params = prepared(program, y, inducing=InducingPoints(X[:3]))
    with pytest.raises(ValueError, match=r"'x_loc' has shape \(6, 1\), but the site has shape \(4, 1\) here.*per row"):
        Trained(guide.model, guide, params).posterior(KEY, y[:4])
    svi = SVI(program, InducingGuide(program, kmeans(3)), adam(0.01), GaussianProcessELBO())
    with pytest.raises(ValueError, match=r"'x_loc' has shape .* per row"):
        train(svi, 1, y, batch_size=3)


# -- options -----------------------------------------------------------------------------------------------------------


def test_old_keys_and_new_are_keys():
    guide, params = prepared()
    for key in (random.PRNGKey(3), np.asarray(random.PRNGKey(3)), random.key(3)):
        Trained(guide.model, guide, params).posterior(key, X, y)
    with pytest.raises(TypeError, match=r"rng_key must be a key such as jax.random.key\(0\), got int 0"):
        Trained(guide.model, guide, params).posterior(0, X, y)
    with pytest.raises(ValueError, match=r"rng_key must be one key .* got keys of shape \(2,\)"):
        Trained(guide.model, guide, params).posterior(random.split(KEY), X, y)


def test_a_program_without_sites_is_told_what_it_lacks():
    with pytest.raises(ValueError, match=r"'nothing' has no numpyro\.sample site"):
        InducingGuide(nothing, kmeans(2)).setup(X, y)


def nothing(X, y=None):
    numpyro.param("a", 1.0)


# -- parts of programs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.inf, np.nan, [1.0, np.inf]])
def test_hyperparameters_are_finite(value):
    with pytest.raises(ValueError, match="variance must be positive"):
        RBF(value)
    with pytest.raises(ValueError, match="lengthscale must be positive"):
        Matern32(1.0, value)
    with pytest.raises(ValueError, match="noise_variance must be positive and finite"):
        Gaussian(jnp.zeros((3, 2)), value)


def test_orbits_are_of_permutations():
    with pytest.raises(ValueError, match=r"row 1, \[0 0\], has an entry twice"):
        Orbit([[0, 1], [0, 0]])
    assert Orbit([[0, -1], [-1, -1]]).num_views == 2


class Scaled(Kernel):
    """A user's kernel, which forgets that its variance may be one per output."""

    variance: jax.Array

    def __init__(self, variance):
        self.variance = jnp.asarray(variance)

    def cross(self, X, Z):
        return self.variance * jnp.exp(-jnp.abs(X - Z.T))

    def variances(self, X):
        return self.variance * jnp.ones(len(X))


def test_kernels_that_forget_outputs_are_told():
    assert Scaled(2.0)(X).shape == (6, 6)
    with pytest.raises(ValueError, match=r"Scaled cannot be evaluated at inputs of \(6,\) rows.*\(2,\).*Elementary"):
        Scaled([1.0, 2.0])(X)
    with pytest.raises(ValueError, match=r"Scaled gave an array of shape \(2,\) at inputs of \(1,\) rows.*Elementary"):
        Scaled([1.0, 2.0]).diag(X[:1])


def test_columns_are_not_spread_over_rows():
    with pytest.raises(ValueError, match=r"value of shape \(6, 1\) was given to a GP site of shape \(6,\).*y\[:, 0\]"):
        GaussianProcess(RBF(), X).log_prob(y[:, None])

    def program(X, y=None):
        f = numpyro.sample("f", GaussianProcess(RBF(), X))
        numpyro.sample("y", dist.Normal(draws(f), 0.1), obs=y)

    with pytest.raises(ValueError, match=r"data of site 'y' have shape \(6, 1\), but the site has shape \(6,\): drop"):
        InducingGuide(program, kmeans(3)).setup(X, y[:, None])
    InducingGuide(program, kmeans(3)).setup(X, y)


@pytest.mark.parametrize("rows", [1, 6])
def test_data_that_a_plate_would_repeat_are_refused(rows):
    """Draws of one output are [N, 1], which a plate over rows spreads to [N, N]: each datum would count N times."""

    def program(X, y=None, by=lambda f: f):
        f = numpyro.sample("f", GaussianProcess(RBF(), X, num_outputs=1))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", dist.Normal(by(draws(f)), 0.1), obs=y)

    def repeated(X, y=None):
        f = numpyro.sample("f", GaussianProcess(RBF(), X))
        with numpyro.plate("times", 3, dim=-2), numpyro.plate("data", len(X), dim=-1):
            numpyro.sample("y", dist.Normal(draws(f), 0.1), obs=y)

    if rows > 1:
        with pytest.raises(ValueError, match=r"shape \(6,\), but the site has shape \(6, 6\).*count 6 times.*no plate"):
            InducingGuide(program, kmeans(3)).setup(X, y)
        with pytest.raises(ValueError, match="no plate"):
            train(svi_of(program), 1, X, y)
    first = lambda f: f[:, 0]  # noqa: E731
    InducingGuide(program, kmeans(1)).setup(X[:rows], y[:rows], model_kwargs={"by": first})
    InducingGuide(repeated, kmeans(1)).setup(X[:rows], y[:rows])


def test_a_tuple_of_factors_is_told_what_it_should_be():
    with pytest.raises(TypeError, match=r"form of q\(u\) of site 'f' must be .*BlockDiagonal\(blocks\).* got tuple"):
        at = Projection(GaussianProcess(RBF(), X), InducingPoints(X[:2]))
        InducingPosterior(at, jnp.zeros(2), (jnp.eye(1), jnp.eye(1)))


# -- compiled programs -------------------------------------------------------------------------------------------------


class Mean:
    """Options of a program that all print alike."""

    def __init__(self, value):
        self.value = value

    def __repr__(self):
        return "Mean"


@pytest.mark.slow
def test_a_trained_model_tells_apart_what_prints_alike():
    runs = []

    def program(X, y=None, *, mean=Mean(0.0), extra=()):  # noqa: B008
        runs.append(extra)
        f = numpyro.sample("f", GaussianProcess(RBF(), X, jnp.full(len(X), mean.value)))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", Gaussian(f, 0.1), obs=y)

    guide, params = prepared(program)
    trained = Trained(program, guide, params)
    for value in (0.0, 5.0):
        found = trained.predict(KEY, X, model_kwargs={"mean": Mean(value)})["f"].mean
        np.testing.assert_allclose(found, value, atol=1e-12)
    mean, known = Mean(1.0), []
    for extra in ([1, 2], [1, True], [1.0, 2], [1, {3}], [1, np.arange(2), "a"]):
        for again in (False, True):
            runs.clear()
            trained.predict(KEY, X, model_kwargs={"mean": mean, "extra": list(extra)})
            known.append(bool(runs) != again)
    assert all(known)


# -- beside the arrays -------------------------------------------------------------------------------------------------


def test_tables_take_what_arrays_do():
    with pytest.raises(ValueError, match=r"Array 1 is a masked array, whose mask would be lost"):
        ArrayTable(np.ones((4, 1)), np.ma.masked_array(np.ones(4), np.arange(4) < 2))
    with pytest.raises(TypeError, match=r"Array 0 has dtype float16.*dtype=numpy\.float32"):
        ArrayTable(np.ones((4, 1), np.float16))
    jax.config.update("jax_enable_x64", False)
    try:
        for array, message in (
            (2**33 + np.arange(4), "whole numbers from 8589934592"),
            (np.full(4, 1e300), "1e\\+300"),
        ):
            source = Streamed(ArrayTable(np.ones((4, 1), np.float32), array), 2, 0, HERE)
            with pytest.raises(ValueError, match=f"Array 1 of the table has .*{message}"):
                source.batch(0, 0)
            source.close()
    finally:
        jax.config.update("jax_enable_x64", True)


def test_new_inputs_may_lie_close_together():
    near = np.array([[2.5], [2.5005]], np.float32)
    with jax.enable_x64(False):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            checks.arguments(("X",), (near,), {}, new=True)
        with pytest.warns(PrecisionWarning, match=r"column 0 of X lies between 2\.5 and 2\.500"):
            checks.arguments(("X",), (near,), {})


def test_values_outside_their_constraint_are_refused():
    guide = InducingGuide(bayesian_regression, InducingPoints(X[:3]), hyperparameters="normal")
    params = guide.init_params(KEY, X, y)
    for name, value, message in (
        ("noise_scale", -1.0, "is -1.0, outside its constraint"),
        ("noise_scale", np.ones(1), "has shape \\(1,\\), but the site has shape \\(\\)"),
        ("lengthscale", -5.0, "is -5.0, outside its constraint"),
    ):
        with pytest.raises(ValueError, match=f"{name}.*{message}"):
            Trained(guide.model, guide, params | {name: jnp.asarray(value)}).posterior(KEY, X)
    own = InducingGuide(regression, InducingPoints(X[:3]))
    params = own.init_params(KEY, X, y)
    with pytest.raises(ValueError, match=r"params\['lengthscale'\] is 0.0, outside its constraint"):
        Trained(regression, own, params | {"lengthscale": jnp.array(0.0)}).predict(KEY, X)


def test_draws_of_different_numbers_are_refused():
    samples = {"lengthscale": np.ones(3), "noise": np.ones(3), "f": np.ones((4, len(X)))}
    with pytest.raises(ValueError, match=r"posterior_samples must have one number of draws, got .*'f': 4"):
        predict(KEY, bayesian_regression, X, posterior_samples=samples, train_args=(X, y))
