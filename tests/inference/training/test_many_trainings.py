"""Several trainings as one compiled program: each has the numbers, the end and the errors that it would have alone."""

import os
import re
import signal
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax import lax, random
from numpyro.infer import SVI
from sklearn.datasets import load_diabetes

from gpzoo.errors import FactorisationError
from gpzoo.inducing.initialisers import kmeans
from gpzoo.inducing.variables import InducingPoints
from gpzoo.inference import CheckpointError, GaussianProcessELBO, InducingGuide, NonFiniteError, fit
from gpzoo.inference.programs.gp_sites import Marginals, in_mode
from gpzoo.inference.programs.keys import named_key
from gpzoo.inference.training import fit as training
from gpzoo.inference.training.sources import indices, order_seed
from gpzoo.inference.training.step import Steps
from gpzoo.kernels import RBF
from gpzoo.likelihoods import Gaussian
from gpzoo.models import deep_gp, gp_classification, inner_scales, linear_layers
from gpzoo.processes.process import GaussianProcess
from gpzoo.tables.arrays import ArrayTable
from tests.programs import adam, positive, relaxed, sine, with_model_kwargs

KEY = random.key(0)


def assert_trees_close(one, two, rtol=1e-8, atol=1e-8):
    assert jax.tree.structure(one) == jax.tree.structure(two)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol), one, two)


def assert_same(one, two):
    """The same training to the bit: losses, parameters, and the state that it would go on from."""
    np.testing.assert_array_equal(one.losses, two.losses)
    assert jax.tree.structure(one.state) == jax.tree.structure(two.state)
    for a, b in zip(jax.tree.leaves((one.params, one.state)), jax.tree.leaves((two.params, two.state)), strict=True):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = random.key_data(a), random.key_data(b)
        np.testing.assert_array_equal(a, b)


# -- splits of real data -------------------------------------------------------------------------------------------

SPLITS, ROWS, TESTS, BATCH, STEPS = 3, 150, 60, 30, 60
KEYS = random.split(KEY, SPLITS)


def splits(dtype):
    """Random splits of the diabetes data, ``[SPLITS, rows, ...]``, and the linear mean of the inner layer for each."""
    X, y = load_diabetes(return_X_y=True)
    X, y = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()
    orders = np.stack([np.random.default_rng(k).permutation(len(X)) for k in range(SPLITS)])
    X, y = X[orders].astype(dtype), y[orders].astype(dtype)
    train, test = slice(ROWS), slice(ROWS, ROWS + TESTS)
    layers = (jnp.stack([linear_layers(x, [1])[0] for x in X[:, train]]),)
    return X[:, train], y[:, train], X[:, test], y[:, test], layers


def deep_svi():
    guide = InducingGuide(deep_gp, kmeans(8), initial_scale=inner_scales([1]))
    return SVI(deep_gp, guide, adam(0.03), GaussianProcessELBO())


def together(svi, dtype, steps=STEPS):
    X, y, _, _, layers = splits(dtype)
    program = {"num_data": ROWS, "layers": layers}
    options = {"batch_size": BATCH, "member_kwargs": ["layers"], "progress": False}
    return fit(KEYS, svi, steps, X, y, model_kwargs=program, **options)


def alone(svi, dtype):
    """The same trainings one after another, with NumPyro's own functions: parameters and losses of each."""
    X, y, _, _, layers = splits(dtype)

    @jax.jit
    def train(key, start, X, y, layers):
        with in_mode(Marginals()):
            state = svi.init(named_key(key, "training"), X[0], y[0], init_params=start, layers=layers, num_data=ROWS)

        def update(state, batch):
            return svi.update(state, *batch, layers=layers, num_data=ROWS)

        state, losses = jax.lax.scan(update, state, (X, y))
        return svi.get_params(state), losses

    found = []
    for k, key in enumerate(KEYS):
        own = tuple(w[k] for w in layers)
        start = svi.guide.init_params(
            key, jnp.asarray(X[k]), jnp.asarray(y[k]), model_kwargs={"layers": own, "num_data": ROWS}
        )
        rows = indices(order_seed(key), 0, STEPS, ROWS, BATCH)
        found.append(train(key, start, X[k][rows], y[k][rows], own))
    return found


@pytest.fixture(scope="module")
def many():
    return together(deep_svi(), np.float64)


@pytest.mark.slow
def test_each_of_several_deep_gps_has_the_numbers_that_it_has_alone(many):
    assert many.losses.shape == (SPLITS, STEPS) and np.ptp(many.losses[:, -1]) > 1
    assert many.losses[:, -10:].mean() < many.losses[:, :10].mean() - 10
    for k, (params, losses) in enumerate(alone(deep_svi(), np.float64)):
        member = many.member(k)
        np.testing.assert_allclose(member.losses, losses, rtol=1e-8)
        assert_trees_close(member.params, params)


@pytest.mark.slow
def test_on_an_accelerator_members_step_together_with_the_same_numbers(many, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    vectorised = together(deep_svi(), np.float64)
    np.testing.assert_allclose(vectorised.losses, many.losses, rtol=1e-8)
    assert_trees_close(vectorised.params, many.params)
    # The paths are different programs.
    assert not np.array_equal(vectorised.losses, many.losses)


@pytest.mark.slow
def test_in_single_precision_predictions_agree(monkeypatch):
    svi = deep_svi()
    with monkeypatch.context() as patch:
        # Where members take turns their arithmetic is the same to the bit.
        patch.setattr(jax, "default_backend", lambda: "gpu")
        result = together(svi, np.float32)
    assert {x.dtype for x in result.params.values()} == {jnp.dtype(jnp.float32)}
    _, _, X, y, layers = splits(np.float32)

    def metrics(k, params):
        one = result.member(0).with_params(params)
        program = {"layers": (layers[0][k],)}
        found = one.predict(KEY, X[k], test_data={"y": y[k]}, num_draws=20, model_kwargs=program)["y"]
        return np.sqrt(np.mean((np.asarray(found.mean) - y[k]) ** 2)), np.mean(found.log_density)

    ours = np.array([metrics(k, result.member(k).params) for k in range(SPLITS)])
    theirs = np.array([metrics(k, params) for k, (params, _) in enumerate(alone(deep_svi(), np.float32))])
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-2)
    assert not np.array_equal(ours, theirs)
    assert ours[:, 0].mean() < 0.85 and np.ptp(ours[:, 0]) > 0.02


# -- what members share and what is their own ----------------------------------------------------------------------

RNG = np.random.default_rng(0)
K, N = 3, 12
SLOPES = RNG.standard_normal((K, 2))
X = RNG.standard_normal((K, N, 2))
Y = np.einsum("knd,kd->kn", X, SLOPES) + 0.1 * RNG.standard_normal((K, N))
SOME = random.split(random.key(1), K)


def line(X, y=None, *, num_data=None, prior=1.0, edge=np.inf):
    """Linear regression whose bound breaks where the first slope passes an edge."""
    w = numpyro.sample("w", dist.Normal(jnp.zeros(2), prior).to_event(1))
    numpyro.factor("edge", jnp.where(jnp.abs(numpyro.param("w_loc")[0]) > edge, jnp.nan, 0.0))
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", dist.Normal(X @ w, 0.5), obs=y)


def around(X, y=None, **kwargs):
    """Its guide, which is drawn from, so that keys matter."""
    loc = numpyro.param("w_loc", jnp.zeros(2))
    numpyro.sample("w", dist.Normal(loc, positive("w_scale", 0.3)).to_event(1))


def linear(optimiser=None, model=line):
    return SVI(model, around, optimiser or adam(0.05), GaussianProcessELBO())


def train(steps, *args, svi=None, key=SOME, batch_size=5, num_data=N, **kwargs):
    kwargs |= {} if num_data is None else {"num_data": num_data}
    data = args or (X, Y)
    return fit(key, svi or linear(), steps, *data, batch_size=batch_size, progress=False, **with_model_kwargs(kwargs))


@pytest.fixture(scope="module")
def whole():
    return train(30)


@pytest.mark.slow
def test_members_are_trainings_of_one_key(whole):
    assert whole.losses.shape == (K, 30) and whole.params["w_loc"].shape == (K, 2)
    for k in (0, K - 1):
        one = train(30, X[k], Y[k], key=SOME[k])
        assert one.losses.shape == (30,)
        np.testing.assert_allclose(whole.member(k).losses, one.losses, rtol=1e-12)
        assert_trees_close(whole.member(k).params, one.params, rtol=1e-12)
        assert jax.tree.structure(whole.member(k).state) == jax.tree.structure(one.state)
        np.testing.assert_array_equal(random.key_data(whole.state.rng_key[k]), random.key_data(one.state.rng_key))
    with pytest.raises(IndexError):
        whole.member(K)
    with pytest.raises(ValueError, match="result of one training, which has no members"):
        one.member(0)


@pytest.mark.slow
def test_keys_may_be_of_the_old_kind(whole):
    old = train(6, key=random.key_data(SOME))
    assert old.state.rng_key.dtype == jnp.uint32
    np.testing.assert_allclose(old.losses, whole.losses[:, :6], rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("members", [1, K])
def test_keys_may_share_all_data(members, whole):
    result = train(6, X[0], Y[0], key=SOME[:members], in_axes=None)
    assert result.losses.shape == (members, 6) == (len(np.unique(result.losses[:, 0])), 6)
    np.testing.assert_allclose(result.losses[0], whole.losses[0, :6], rtol=1e-12)


@pytest.fixture(scope="module")
def priors():
    """Trainings of the first and the last member, which share inputs alone."""
    return {k: train(6, X[0], Y[k], key=SOME[k], prior=jnp.array(k + 1.0)) for k in (0, K - 1)}


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_arguments_are_shared_or_of_each(backend, priors, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    mixed = train(6, X[0], Y, in_axes=(None, 0), prior=jnp.arange(1.0, K + 1), member_kwargs="prior")
    for k, one in priors.items():
        np.testing.assert_allclose(mixed.losses[k], one.losses, rtol=1e-10)


@pytest.mark.slow
def test_all_rows_in_every_step_and_starting_values_for_each():
    start = {"w_loc": RNG.standard_normal((K, 2))}
    result = train(6, batch_size=None, num_data=None, init_params=start)
    own = {"w_loc": start["w_loc"][1]}
    one = train(6, X[1], Y[1], key=SOME[1], batch_size=None, num_data=None, init_params=own)
    np.testing.assert_allclose(result.losses[1], one.losses, rtol=1e-12)
    still = train(0, init_params=start)
    np.testing.assert_array_equal(still.params["w_loc"], start["w_loc"])
    assert still.losses.shape == (K, 0)


@pytest.mark.slow
def test_a_callback_sees_all_members(whole):
    seen = []
    watched = train(30, callback=lambda *now: seen.append(now), callback_steps=13)
    assert_same(watched, whole)
    assert [step for step, _, _ in seen] == [13, 26, 30]
    np.testing.assert_array_equal(seen[-1][2]["w_loc"], whole.params["w_loc"])
    alone = train(13, X[2], Y[2], key=SOME[2])
    np.testing.assert_allclose(seen[0][2]["w_loc"][2], alone.params["w_loc"], rtol=1e-12)
    assert 0 < seen[0][1] < seen[1][1] < seen[2][1] <= watched.seconds


# -- members that fail ---------------------------------------------------------------------------------------------

#: The first slope of member 1 passes this in a few steps, that of member 0 later, and that of member 2 never.
EDGES = jnp.array([0.35, 0.12, np.inf])


STEEP = 5 * X[:, :, 0]


def caught(steps, **kwargs):
    with pytest.raises(NonFiniteError) as error:
        train(steps, X, STEEP, edge=EDGES, member_kwargs=["edge"], **kwargs)
    return error.value


@pytest.fixture(scope="module")
def failed():
    return caught(40)


def steps_of(result):
    return np.isfinite(result.losses).sum(axis=1)


@pytest.mark.slow
def test_members_that_fail_stop_and_the_others_go_on(failed):
    result = failed.result
    taken = steps_of(result)
    assert result.losses.shape == (K, 40) and 0 < taken[1] < taken[0] < 40 == taken[2]
    # The step that led to where the bound is not finite is taken back.
    where = rf"0 at step {taken[0] + 2}, 1 at step {taken[1] + 2}; .* Member 0 stopped .*'edge'.*\.result"
    assert re.search(where, str(failed))
    for k in range(K):
        assert np.isnan(result.losses[k, taken[k] :]).all()
        one, steps = alone_until_failure(k, 40)
        assert steps == taken[k]
        np.testing.assert_allclose(result.losses[k, : taken[k]], one.losses, rtol=1e-12)
        assert_trees_close(result.member(k).params, one.params, rtol=1e-12)


def alone_until_failure(k, steps):
    try:
        result = train(steps, X[k], STEEP[k], key=SOME[k], edge=EDGES[k])
    except NonFiniteError as error:
        result = error.result
    return result, len(result.losses)


@pytest.mark.slow
def test_on_an_accelerator_members_that_fail_keep_the_same(failed, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    other = caught(40)
    np.testing.assert_allclose(other.result.losses, failed.result.losses, rtol=1e-10)
    assert_trees_close(other.result.params, failed.result.params, rtol=1e-10)
    assert str(other) == str(failed)


@pytest.mark.slow
def test_a_failed_member_stays_where_it_is_when_the_others_are_resumed(failed, tmp_path):
    first = caught(25, checkpoint=tmp_path)
    assert steps_of(first.result).tolist() == np.minimum(steps_of(failed.result), 25).tolist()
    resumed = caught(40, checkpoint=tmp_path)
    assert_same(resumed.result, failed.result)
    assert str(resumed) == str(failed)


@pytest.mark.slow
def test_when_all_fail_training_ends(tmp_path):
    settings = {"edge": jnp.array([0.35, 0.12, 0.2]), "member_kwargs": ["edge"], "checkpoint": tmp_path}
    errors = []
    for _ in range(2):  # the second goes on from the end of the first
        with pytest.raises(NonFiniteError, match=r"^3 of 3 trainings failed, 0 at .*, 2 at step \d+\. Member 0") as e:
            train(100, X, STEEP, **settings)
        errors.append(e.value)
    assert errors[0].result.losses.shape == (3, max(steps_of(errors[0].result)))
    assert max(steps_of(errors[0].result)) < 40
    assert str(errors[0]) == str(errors[1])
    assert_same(errors[0].result, errors[1].result)


@pytest.mark.slow
def test_a_factorisation_that_fails_is_explained_once_the_others_are_done():
    X, y = sine(12)

    def longer(X, y=None, *, push):
        # A step of gradient ascent makes all inputs the same, where there is a push.
        scale = numpyro.param("scale", jnp.array(1.0))
        numpyro.factor("push", push * scale)
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, jnp.exp(lax.stop_gradient(scale))), X, jitter=0.0))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", Gaussian(f, 0.1), obs=y)

    only = optax.masked(optax.set_to_zero(), lambda params: {name: name != "scale" for name in params})
    optimiser = relaxed(optax.chain(optax.sgd(30.0), only))
    svi = SVI(longer, InducingGuide(longer, InducingPoints(X[::2])), optimiser, GaussianProcessELBO())
    with pytest.raises(NonFiniteError, match=r"Member 1 stopped at step 2.*Kuu of site 'f' failed") as error:
        settings = {"member_kwargs": ["push"], "in_axes": None, "progress": False}
        settings["model_kwargs"] = {"push": jnp.array([0.0, 1.0])}
        fit(SOME[:2], svi, 5, X, y, **settings)
    assert isinstance(error.value.__cause__, FactorisationError)
    assert steps_of(error.value.result).tolist() == [5, 0]


def poisoned(at):
    """Adam whose state is infinite after so many steps, which no loss and no parameter shows."""
    inner = adam(0.05)

    def init(params):
        return inner.init(params), jnp.zeros(()), jnp.zeros(())

    def update(gradients, state, params=None):
        updates, own = inner.update(gradients, state[0], params)
        return updates, (own, state[1] + 1, jnp.where(state[1] + 1 >= at, jnp.inf, 0.0))

    return optax.GradientTransformation(init, update)


@pytest.mark.slow
def test_what_fails_unseen_is_found_at_its_step(whole):
    with pytest.raises(NonFiniteError, match=r"3 of 3 trainings failed, 0 at step 18, 1 .* update is not finite"):
        train(25, svi=linear(poisoned(18)))
    with pytest.raises(NonFiniteError, match=r"^Training stopped at step 18: the ELBO is .*") as error:
        train(25, X[0], Y[0], key=SOME[0], svi=linear(poisoned(18)))
    np.testing.assert_allclose(error.value.result.losses, whole.losses[0, :17], rtol=1e-12)


# -- checkpoints ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_stopped_and_resumed_is_uninterrupted_bit_for_bit(backend, whole, tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    uninterrupted = train(30) if backend == "gpu" else whole
    assert train(13, checkpoint=tmp_path).losses.shape == (K, 13)
    resumed = train(30, checkpoint=tmp_path)
    assert_same(resumed, uninterrupted)
    assert resumed.seconds > 0


@pytest.mark.slow
def test_a_signal_is_raised_once_the_checkpoint_is_written(failed, tmp_path):
    def stop(step, seconds, params):
        os.kill(os.getpid(), signal.SIGTERM)

    # Also where a member has failed by then.
    settings = {"edge": EDGES, "member_kwargs": ["edge"], "checkpoint": tmp_path}
    with pytest.raises(SystemExit, match="its checkpoint is written") as ended:
        train(40, X, STEEP, callback=stop, callback_steps=25, **settings)
    assert ended.value.code == 143
    assert [path.name for path in tmp_path.iterdir()] == ["25.checkpoint"]
    assert_same(caught(40, checkpoint=tmp_path).result, failed.result)


@pytest.mark.slow
def test_a_callback_that_fails_loses_nothing(whole, tmp_path):
    def stop(step, seconds, params):
        raise RuntimeError(f"step {step}")

    with pytest.raises(RuntimeError, match="step 10"):
        train(30, checkpoint=tmp_path, callback=stop, callback_steps=10)
    assert_same(train(30, checkpoint=tmp_path), whole)


@pytest.mark.slow
def test_a_checkpoint_of_other_members_is_refused(tmp_path):
    train(2, checkpoint=tmp_path)
    others = [{"key": SOME[::-1]}, {"in_axes": None}, {"key": SOME[:2]}]
    for other, data in zip(others, [(X, Y), (X[0], Y[0]), (X[:2], Y[:2])], strict=True):
        with pytest.raises(CheckpointError, match="is of another training"):
            train(4, *data, checkpoint=tmp_path, **other)


# -- what is refused -----------------------------------------------------------------------------------------------

PRIOR = {"member_kwargs": ["prior"]}
REFUSED = {
    "too few": ((X[:2], Y[:2]), {}, r"\[3, rows"),
    "shared by mistake": ((X[0], Y[0]), {}, "in_axes=None"),
    "one of them": ((X, Y[0]), {}, r"in_axes=\(None, 0\)"),
    "rows": ((X, Y[:, :5]), {}, r"numbers of rows, \[5, 12\]"),
    "axes too short": ((X, Y), {"in_axes": (0,)}, "in_axes"),
    "axis": ((X, Y), {"in_axes": 1}, "in_axes"),
    "axis of one": ((X, Y), {"in_axes": (0, -1)}, "in_axes"),
    "unknown": ((X, Y), PRIOR, r"member_kwargs names \['prior'\]"),
    "no array": ((X, Y), {"member_kwargs": "prior", "prior": 2.0}, r"member_kwargs names \['prior'\]"),
    "length": ((X, Y), PRIOR | {"prior": jnp.ones(2)}, "member_kwargs .*'prior'"),
    "no axis": ((X, Y), PRIOR | {"prior": jnp.ones(())}, "member_kwargs .*'prior'"),
    "start": ((X, Y), {"init_params": {"w_loc": jnp.zeros(2)}}, "init_params .*'w_loc'"),
    "batch": ((X, Y), {"batch_size": 13}, "batch_size"),
    "one key": ((X[0], Y[0]), PRIOR | {"key": KEY}, "member_kwargs"),
    "no keys": ((X[:0], Y[:0]), {"key": SOME[:0]}, "rng_key"),
    "keys": ((X, Y), {"key": SOME[:, None]}, "rng_key"),
    "table": ((ArrayTable(X[0], Y[0]),), {}, "table"),
    "one key in an array": ((ArrayTable(X[0], Y[0]),), {"key": SOME[:1]}, "table"),
    "table and arrays": ((ArrayTable(X[0]), Y[0]), {"key": KEY}, "table"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused(name):
    args, kwargs, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        train(3, *args, **kwargs)


@pytest.mark.slow_but(scales=[(1.0, 3.0)])
@pytest.mark.parametrize("scales", [(1.0, 3.0), (3.0, 1.0), (2.0, 2.0)])
def test_supports_that_differ_between_members_are_refused(scales):
    """All of them have the transforms of the first one, which would not be their own."""

    def program(X, y=None):
        change = numpyro.sample("change", dist.Uniform(X.min(), X.max()))
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X - change))
        numpyro.sample("y", Gaussian(f, 0.1), obs=y)

    x, y = sine(12)
    svi = SVI(program, InducingGuide(program, kmeans(3), hyperparameters="point"), adam(0.1), GaussianProcessELBO())
    data = jnp.stack([scale * x for scale in scales]), jnp.stack([y, y])
    options = {"batch_size": None, "num_data": None, "key": SOME[:2], "svi": svi}
    if scales[0] == scales[1]:
        assert np.isfinite(train(2, *data, **options).losses).all()
        return
    with pytest.raises(ValueError, match="The support of 'change_loc' depends on the data"):
        train(2, *data, **options)


def test_bad_data_of_a_member_name_it():
    x, y = sine(12)
    svi = SVI(gp_classification, InducingGuide(gp_classification, kmeans(3)), adam(0.1), GaussianProcessELBO())
    labels = jnp.stack([y > 0, y > 1]).astype(jnp.int32).at[1, 3].set(7)
    with pytest.raises(ValueError, match=r"y holds 7 at index \(3,\)") as error:
        fit(SOME[:2], svi, 3, x, labels, in_axes=(None, 0), progress=False)
    assert error.value.__notes__[-1] == "This is member 1 of 2 trainings."
    y = jnp.stack([y, y.at[3].set(jnp.nan)])
    with pytest.raises(ValueError, match=r"y has 1 entries that are not finite, the first at index \(1, 3\)"):
        fit(SOME[:2], svi, 3, x, y, in_axes=(None, 0), progress=False)


@pytest.mark.slow
def test_progress_counts_the_trainings_that_failed(capsys):
    with pytest.raises(NonFiniteError):
        fit(SOME, linear(), 40, X, STEEP, member_kwargs=["edge"], model_kwargs={"edge": EDGES})
    assert "(2 failed)" in " ".join(capsys.readouterr().out.split())


# -- what is compiled ----------------------------------------------------------------------------------------------


def traces(members, steps):
    """Runs of the model with traced inputs, and all runs."""
    calls = []

    def counted(X, y=None, **kwargs):
        calls.append(isinstance(X, jax.core.Tracer))
        return line(X, y, **kwargs)

    train(steps, X[:members], Y[:members], key=SOME[:members], svi=linear(model=counted))
    return sum(calls), len(calls)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_neither_steps_nor_members_retrace(backend, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    few = traces(2, 3)
    assert traces(2, 60) == few
    # The data of another member are checked at set-up, in one run of the model, in which nothing is computed.
    assert traces(K, 3) == (few[0], few[1] + 1)


@pytest.mark.slow_but(most=[4])
@pytest.mark.parametrize("cost, most", [(3.0, 1), (0.25, 4), (0.01, 100)])
def test_the_host_looks_about_once_a_second(cost, most, monkeypatch):
    now, counts, steps = [0.0], [], Steps.take

    def timed(self, state, feed, ends):
        counts.append(int(ends.max()))
        now[0] += cost * counts[-1]
        return steps(self, state, feed, ends)

    monkeypatch.setattr(Steps, "take", timed)
    monkeypatch.setattr(training, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    total, every = 5 * most, 2 * most - most // 2
    result = train(total, callback=lambda *now: None, callback_steps=every)
    expected = []
    while (done := sum(expected)) < total:
        # The first chunk is measured, while the second is prepared.
        size = most if len(expected) > 1 else 1
        expected.append(min(size, total - done, every - done % every))
    # Without a step it is compiled.
    assert counts == [0, *expected] and result.seconds == pytest.approx(cost * total)
