"""Training from tables: minibatches that are streamed, resumed anywhere, and fail without losing what was computed."""

import threading
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from jax import random
from numpyro.infer import SVI

from gpzoo.errors import DatasetError
from gpzoo.inducing.initialisers import kmeans, random_subset
from gpzoo.inference import CheckpointError, GaussianProcessELBO, InducingGuide, fit
from gpzoo.inference.programs.keys import named_key
from gpzoo.inference.training import sources as minibatches
from gpzoo.inference.training.sources import order_seed
from gpzoo.inference.training.step import Steps
from gpzoo.models import gp_regression
from gpzoo.tables import table as tables
from gpzoo.tables.arrays import ArrayTable
from gpzoo.tables.minibatches import Minibatches
from gpzoo.tables.parquet import ParquetTable
from gpzoo.tables.standardise import Standardised, standardised
from tests.programs import adam, positive, regression, relaxed, sine, with_model_kwargs

KEY = random.key(0)
N, BLOCK, BATCH = 97, 8, 5
PER_EPOCH = N // BATCH
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N, 2)) * [1.0, 3.0] + [0.0, 5.0]
Y = X @ [1.0, -0.5] + 0.1 * RNG.standard_normal(N)


@pytest.fixture(autouse=True)
def no_thread_left():
    """Threads that read tables end with the training, whatever ends it."""
    yield
    assert readers() == []


def readers():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("gpzoo-minibatches")]


@pytest.mark.slow_but(whole=[False])
@pytest.mark.parametrize("of_file", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_names_of_columns_are_those_of_a_later_frame(of_file, whole, tmp_path, standard_promotion):
    """In any order of its columns; and rows of a frame and a Series go by their labels."""
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": Y})
    if of_file:
        frame.to_parquet(tmp_path / "data.parquet")
        table = ParquetTable(tmp_path / "data.parquet", columns=["a", "b"], target="y")
    else:
        table = ArrayTable(frame[["a", "b"]], frame["y"].sample(frac=1.0, random_state=0))
    table = standardised(table, [0]) if whole else table
    svi = SVI(regression, InducingGuide(regression, kmeans(3)), adam(0.02), GaussianProcessELBO())
    trained = fit(KEY, svi, 3, table, batch_size=BATCH, progress=False)
    expected = trained.predict(KEY, X[:4])["f"].mean
    for columns in (["a", "b"], ["b", "a"]):
        np.testing.assert_array_equal(trained.predict(KEY, frame[columns][:4])["f"].mean, expected)
    with pytest.raises(ValueError, match="columns"):
        trained.predict(KEY, frame[["a", "y"]][:4])
    targets = np.concatenate([table.read(block)[1] for block in range(len(table.block_rows))])
    np.testing.assert_allclose(targets, Y, rtol=1e-6)


@pytest.fixture(autouse=True, scope="module")
def small_is_large():
    """Epochs of several windows, chunks of at most four steps and a sample of 20 rows, as large tables have them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpzoo.tables.minibatches.Minibatches", partial(Minibatches, window=24))
        patch.setattr(minibatches, "_MOST_NUMBERS", 4 * BATCH * 3)
        patch.setattr(minibatches, "_SAMPLE_ROWS", 20)
        yield


def line(X, y=None, *, num_data=None):
    w = numpyro.sample("w", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", dist.Normal(X @ w, 0.5), obs=y)


def around(X, y=None, **kwargs):
    loc = numpyro.param("w_loc", jnp.zeros(2))
    numpyro.sample("w", dist.Normal(loc, positive("w_scale", 0.3)).to_event(1))


def train(steps, table=None, *, key=KEY, batch_size=BATCH, num_data=N, **kwargs):
    table = ArrayTable(X, Y, block_size=BLOCK) if table is None else table
    svi = SVI(line, around, adam(0.02), GaussianProcessELBO())
    kwargs |= {"num_data": num_data}
    return fit(key, svi, steps, table, batch_size=batch_size, progress=False, **with_model_kwargs(kwargs))


def assert_same(one, two):
    np.testing.assert_array_equal(one.losses, two.losses)
    jax.tree.map(np.testing.assert_array_equal, one.params, two.params)


@pytest.fixture(scope="module")
def whole():
    return train(50)


# -- what is computed ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_training_takes_the_minibatches_of_its_key(whole):
    with Minibatches(ArrayTable(X, Y, block_size=BLOCK), BATCH, order_seed(KEY), window=24) as drawn:
        batches = drawn.take(0, 50)
    svi = SVI(line, around, adam(0.02), GaussianProcessELBO())

    @jax.jit
    def by_numpyro(X, y):
        state = svi.init(named_key(KEY, "training"), X[0], y[0], num_data=N)
        return jax.lax.scan(lambda state, batch: svi.update(state, *batch, num_data=N), state, (X, y))

    state, losses = by_numpyro(*batches)
    np.testing.assert_allclose(whole.losses, losses, rtol=1e-12)
    np.testing.assert_allclose(whole.params["w_loc"], svi.get_params(state)["w_loc"], rtol=1e-12)
    assert not np.allclose(train(3, key=random.key(1)).losses, whole.losses[:3])


def parquet(tmp_path, X=X, y=Y, **kwargs):
    columns = pa.table({"a": X[:, 0], "b": X[:, 1], "y": y})
    pq.write_table(columns, tmp_path / "rows.parquet", row_group_size=BLOCK)
    return ParquetTable(tmp_path, columns=["a", "b"], target="y", **kwargs)


def mapped(tmp_path):
    rows = np.memmap(tmp_path / "rows", np.float64, "w+", shape=(N, 3))
    rows[:, :2], rows[:, 2] = X, Y
    rows.flush()
    rows = np.memmap(tmp_path / "rows", np.float64, "r", shape=(N, 3))
    return ArrayTable(rows[:, :2], rows[:, 2], block_size=BLOCK)


KINDS = {
    "mapped": mapped,
    "parquet": partial(parquet, dtype=np.float64),
    "standardised": lambda tmp_path: Standardised(
        ArrayTable(2 * X, Y, block_size=BLOCK), ([0, 0], None), ([2, 2], None)
    ),
}


def test_num_data_is_filled_in_with_the_rows_of_the_table(whole):
    np.testing.assert_array_equal(train(3, num_data=None).losses, whole.losses[:3])


@pytest.mark.parametrize("kind", KINDS)
def test_where_the_rows_are_does_not_matter(kind, whole, tmp_path):
    assert_same(train(50, KINDS[kind](tmp_path)), whole)


def test_without_learning_the_losses_of_an_epoch_average_to_the_bound_of_all_rows():
    x, y = sine(40)
    svi = SVI(regression, InducingGuide(regression, random_subset(5)), relaxed(optax.sgd(0.0)), GaussianProcessELBO())
    table = ArrayTable(np.asarray(x), np.asarray(y), block_size=7)
    still = fit(KEY, svi, 16, table, batch_size=5, progress=False, model_kwargs={"num_data": 40})
    bound = jax.jit(lambda params: svi.loss.loss(KEY, params, svi.model, svi.guide, x, y))(still.params)
    for epoch in (still.losses[:8], still.losses[8:]):
        np.testing.assert_allclose(epoch.mean(), bound, rtol=1e-10)
    assert np.ptp(still.losses) > 1 and not np.array_equal(still.losses[:8], still.losses[8:])


@pytest.mark.slow
def test_initial_values_are_found_on_a_sample_and_training_lowers_the_bound():
    x, y = sine(200)
    table = ArrayTable(np.asarray(x), np.asarray(y), block_size=16)
    svi = SVI(regression, InducingGuide(regression, random_subset(5)), adam(0.05), GaussianProcessELBO())
    start = fit(KEY, svi, 0, table, batch_size=10, progress=False, model_kwargs={"num_data": 200})
    assert start.expectations == {"y": "closed form"} and start.losses.shape == (0,)
    with Minibatches(table, 10, order_seed(KEY), window=24) as drawn:
        sample = drawn.take(0, 2)[0].ravel()
    assert set(np.asarray(start.params["f_inducing"]).ravel()) <= set(sample)
    trained = fit(KEY, svi, 100, table, batch_size=10, progress=False, model_kwargs={"num_data": 200})
    bound = jax.jit(lambda params: svi.loss.loss(KEY, params, svi.model, svi.guide, x, y))
    assert bound(trained.params) < bound(start.params) - 100


@pytest.mark.slow
def test_a_standardised_table_in_single_precision(tmp_path):
    table = standardised(parquet(tmp_path, 1e3 * X + 1e6))
    assert [group.dtype for group in table.groups] == [np.float32, np.float32]
    svi = SVI(gp_regression, InducingGuide(gp_regression, kmeans(5)), adam(0.05), GaussianProcessELBO())
    result = fit(KEY, svi, 60, table, batch_size=BATCH, progress=False, model_kwargs={"num_data": N})
    assert {value.dtype for value in result.params.values()} == {np.dtype(np.float32)}
    # Inducing inputs are where standardised inputs are, and the linear function is found.
    assert np.abs(result.params["f_inducing"]).max() < 5
    assert result.losses[-20:].mean() < result.losses[:20].mean() - 20


def test_a_table_may_have_no_target():
    def density(X, *, num_data):
        loc = numpyro.param("loc", jnp.zeros(2))
        with numpyro.plate("data", num_data, subsample_size=len(X)):
            numpyro.sample("x", dist.Normal(loc, 1.0).to_event(1), obs=X)

    svi = SVI(density, lambda X, **kwargs: None, adam(0.5), GaussianProcessELBO())
    result = fit(
        KEY, svi, 100, ArrayTable(X, block_size=BLOCK), batch_size=BATCH, progress=False, model_kwargs={"num_data": N}
    )
    np.testing.assert_allclose(result.params["loc"], X.mean(0), atol=0.8)


# -- what is held --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_device_never_holds_all_rows(monkeypatch):
    rows = 4000
    monkeypatch.setattr(minibatches, "_SAMPLE_ROWS", rows // 2)
    table = ArrayTable(*(np.resize(a, (rows, *a.shape[1:])) for a in (X, Y)), block_size=100)
    held, feed = [], minibatches.Streamed.make_feed
    before = {id(array) for array in jax.live_arrays()}

    def watched(self, start, count):
        made = feed(self, start, count)
        held.append(sum(a.nbytes for a in jax.live_arrays() if id(a) not in before))
        return made

    monkeypatch.setattr(minibatches.Streamed, "make_feed", watched)
    train(2 * rows // BATCH, table, num_data=rows)
    # Two chunks of four minibatches, the state twice, losses: the sample is gone.
    assert len(held) > 300 and max(held) < rows * 3 * 8 / 20


@pytest.mark.slow
def test_the_number_of_steps_does_not_retrace():
    def traces(steps):
        calls = []

        def counted(X, y=None, **kwargs):
            calls.append(None)
            return line(X, y, **kwargs)

        svi = SVI(counted, around, adam(0.02), GaussianProcessELBO())
        fit(
            KEY,
            svi,
            steps,
            ArrayTable(X, Y, block_size=BLOCK),
            batch_size=BATCH,
            progress=False,
            model_kwargs={"num_data": N},
        )
        return len(calls)

    assert traces(1) == traces(30)


# -- checkpoints ---------------------------------------------------------------------------------------------------


@pytest.mark.slow_but(steps=[PER_EPOCH - 8])
@pytest.mark.parametrize("steps", [1, PER_EPOCH - 8, 2 * PER_EPOCH, 2 * PER_EPOCH + 7])
def test_resumed_in_an_epoch_is_uninterrupted_bit_for_bit(steps, whole, tmp_path):
    train(steps, checkpoint=tmp_path)
    assert_same(train(50, checkpoint=tmp_path), whole)


def changed(row):
    other = X.copy()
    other[row] += 1e-9
    return other


OTHERS = {
    "numbers": (ArrayTable(changed(50), Y, block_size=BLOCK), {}, r"table checksum \(all rows\) is"),
    "rows": (ArrayTable(X[:96], Y[:96], block_size=BLOCK), {"num_data": 96}, "table rows is 96 here and 97 there"),
    "blocks": (ArrayTable(X, Y, block_size=9), {}, "table blocks is 11 here and 13 there"),
    "moments": (standardised(ArrayTable(X, Y, block_size=BLOCK)), {}, "table standardised is"),
    "batch": (ArrayTable(X, Y, block_size=BLOCK), {"batch_size": 4}, "batch_size is 4 here and 5 there"),
    "key": (ArrayTable(X, Y, block_size=BLOCK), {"key": random.key(1)}, r"rng_key is \[0, 1\] here"),
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    directory = tmp_path_factory.mktemp("checkpoints")
    train(3, checkpoint=directory)
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_a_checkpoint_of_another_table_is_refused(name, stopped):
    table, changes, message = OTHERS[name]
    with pytest.raises(CheckpointError, match=message):
        train(5, table, checkpoint=stopped, **changes)


# -- rows that cannot be used --------------------------------------------------------------------------------------


@pytest.fixture
def damaged(monkeypatch):
    """A table with a bad row in its last window, which is not of the blocks that are read for the fingerprint."""
    monkeypatch.setattr(tables, "_SEEN_BYTES", 1)
    with Minibatches(ArrayTable(X, Y, block_size=BLOCK), BATCH, order_seed(KEY), window=24) as drawn:
        windows, ends, _ = drawn._order(0)
    last = (N - 1) // BLOCK
    block = next(int(b) for b in windows[-1] if b not in (0, last // 2, last))
    bad = X.copy()
    bad[block * BLOCK + 3, 1] = np.nan
    return ArrayTable(bad, Y, block_size=BLOCK), block, int(ends[-2]) // BATCH


@pytest.mark.slow
def test_rows_that_cannot_be_used_end_training_after_what_was_computed_is_kept(damaged, whole, tmp_path, monkeypatch):
    table, block, first = damaged
    taken, steps = [], Steps.take

    def counted(self, state, feed, ends):
        taken.append(int(ends[0]))
        return steps(self, state, feed, ends)

    monkeypatch.setattr(Steps, "take", counted)
    with pytest.raises(
        ValueError, match=rf"Array 0, column 1, has a value which is not finite, in row 3 of block {block}"
    ):
        train(50, table, checkpoint=tmp_path)
    assert readers() == []
    (written,) = [int(path.stem) for path in tmp_path.iterdir()]
    # All steps that were begun are kept, which are those before the rows, up to a chunk.
    assert written == sum(taken) and first - 4 <= written <= first and written > 4
    assert_same(train(50, checkpoint=tmp_path), whole)


@pytest.mark.slow
def test_rows_that_cannot_be_used_are_an_error_without_a_checkpoint_too(damaged):
    with pytest.raises(ValueError, match="which is not finite"):
        train(50, damaged[0])


@pytest.mark.slow
def test_a_file_that_becomes_shorter_is_an_error(tmp_path, whole):
    table = mapped(tmp_path)
    path = tmp_path / "rows"
    content = path.read_bytes()
    with pytest.raises(DatasetError, match="the file has become shorter") as caught:
        train(50, table, checkpoint=tmp_path / "c", callback=lambda *now: path.write_bytes(b""), callback_steps=6)
    assert readers() == []
    kept = caught.value.result.losses
    np.testing.assert_array_equal(kept, whole.losses[: len(kept)])
    assert 6 <= len(kept) < 50
    path.write_bytes(content)
    assert_same(train(50, mapped(tmp_path), checkpoint=tmp_path / "c"), whole)


@pytest.mark.slow
def test_a_callback_that_fails_leaves_no_thread():
    def fail(step, seconds, params):
        raise RuntimeError(f"step {step}")

    with pytest.raises(RuntimeError, match="step 3"):
        train(50, callback=fail, callback_steps=3)
    assert readers() == []


# -- what is refused -----------------------------------------------------------------------------------------------


def test_bad_arguments_are_refused():
    for changes, message in [
        ({"batch_size": None}, "A table needs minibatches: give fit a batch_size"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1, got 0"),
        ({"batch_size": 98}, "batch_size must be between 1 and the number of rows, 97; got 98"),
        ({"num_data": 96}, "num_data is 96, but there are 97 rows: pass num_data=97"),
        ({"num_data": 98}, "Plate 'data' has size 98, but there are 97 rows"),
    ]:
        with pytest.raises(ValueError, match=message):
            train(3, **changes)
    with pytest.raises(ValueError, match="Array 1 has a value which is not finite, in row 0 of block 0"):
        train(3, ArrayTable(X, np.full(N, np.nan)))
