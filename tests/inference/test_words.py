"""What JAX, NumPyro, optax or a file would refuse in words of theirs is refused in ours, before anything runs."""

import datetime

import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pandas as pd
import pytest
from jax import numpy as jnp
from numpyro.infer import SVI, Trace_ELBO

from gpzoo import GaussianProcess, InducingPoints
from gpzoo.inference import GaussianProcessELBO, InducingGuide, Trained, check, fit, lbfgs, predict
from gpzoo.kernels import RBF, White
from gpzoo.likelihoods import Gaussian
from tests.programs import KEY, adam, regression, sine

X, Y = map(np.asarray, sine(7))
GUIDE = InducingGuide(regression, InducingPoints(X[::2]))


def exact(X, y=None):
    numpyro.sample("y", GaussianProcess(RBF(1.0, 1.0) + White(0.1), X), obs=y)


def train(program, *args, optimiser=None, guide=None, loss=None):
    guide = guide or InducingGuide(program, InducingPoints(X[::2]))
    svi = SVI(program, guide, optimiser or adam(0.01), loss or GaussianProcessELBO())
    return fit(KEY, svi, 2, *args, progress=False)


@pytest.mark.parametrize("optimiser", [adam(0.01), lbfgs(), optax.sgd(0.1)])
def test_a_training_of_nothing_is_refused(optimiser):
    with pytest.raises(ValueError, match=r"nothing to train: .* predict\(key, program"):
        train(exact, X, Y, optimiser=optimiser)
    with pytest.raises(ValueError, match="nothing to train"):
        train(exact, X, Y, optimiser=optimiser, guide=lambda X, y: None, loss=Trace_ELBO())


@pytest.mark.parametrize("sizes", [(7, 5), (5, 7), (7, 1)])
def test_plates_of_one_name_have_one_size(sizes):
    def program(X, y=None):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
        numpyro.sample("y", Gaussian(f, numpyro.param("noise", 0.1)), obs=y)
        for i, size in enumerate(sizes):
            with numpyro.plate("rows", size):
                numpyro.sample(f"z{i}", dist.Normal(jnp.zeros(size), 1.0), obs=np.zeros(size))

    said = f"'rows' have the sizes {sizes[0]} and {sizes[1]}"
    with pytest.raises(ValueError, match=said):
        train(program, X, Y)
    assert said in check(program, X, Y)[0].text


@pytest.mark.parametrize("observed", [True, False])
@pytest.mark.parametrize("size", [7, 3])
def test_white_noise_for_each_row_is_refused(observed, size):
    def program(X, y=None):
        f = numpyro.sample(
            "f", GaussianProcess(RBF(1.0, 1.0) + White(np.arange(1.0, 1 + len(X))), X), obs=y if observed else None
        )
        if not observed:
            numpyro.sample("y", Gaussian(f, 0.1), obs=y)

    (found,) = check(program, X[:size], Y[:size])
    assert f"{size} variances for {size} rows" in found.text and f"noise_variance [{size}]" in found.text
    outputs = GaussianProcess(RBF(1.0, 1.0) + White(np.ones(7)), X, num_outputs=7)
    assert outputs.event_shape == (7, 7)
    assert GaussianProcess(RBF(1.0, 1.0) + White(np.ones(3)), X).event_shape == (7, 3)


@pytest.mark.parametrize("columns", [(1, 2), (3, 1)])
def test_exact_regression_names_the_columns_of_its_data(columns):
    old, new = (np.repeat(X, d, axis=1) for d in columns)
    with pytest.raises(
        ValueError, match=rf"\(7, {columns[1]}\).* inputs of its data.*\(7, {columns[0]}\): .* same columns"
    ):
        predict(KEY, exact, new, train_args=(old, Y))


def objects(column, row, value):
    found = np.repeat(X, 3, axis=1).astype(object)
    found[row, column] = value
    return found


@pytest.mark.parametrize(
    "inputs, said",
    [
        (objects(2, 4, "wet"), "'wet' in row 4 of column 2"),
        (objects(0, 6, None), "None in row 6 of column 0"),
        (pd.DataFrame(objects(1, 3, "wet"), columns=["a", "soil", "c"]), "'wet' in row 3 of column 'soil'"),
        (pd.DataFrame({"a": X[:, 0], "b": X[:, 0].astype(object)}), r"its column\(s\) 'b'"),
        (pd.Series(objects(0, 1, "dry")[:, 0], name="soil"), "'dry' in row 1"),
    ],
)
def test_an_entry_that_is_no_number_is_named(inputs, said):
    with pytest.raises(TypeError, match=said):
        train(regression, inputs, Y)


DAYS = [datetime.date(2020, 1, 1 + i) for i in range(7)]


#: Labels, and of those that no file holds the type.
LABELS = {
    "dates": (DAYS, "date"),
    "a time zone": (pd.DatetimeIndex(DAYS, tz="UTC"), "Timestamp"),
    "months": (pd.period_range("2020-01", periods=7, freq="M"), "Period"),
    "NumPy's dates": (np.array(DAYS, "datetime64[ns]"), None),
    "times": ([datetime.datetime(2020, 1, 1 + i) for i in range(7)], None),
    "an index": (pd.DatetimeIndex(DAYS), None),
    "words": (list("abcdefg"), None),
}


@pytest.mark.slow_but(name=["dates"])
@pytest.mark.parametrize("name", LABELS)
def test_labels_that_no_file_holds_are_refused(name, tmp_path):
    labels, kind = LABELS[name]
    start = Trained(regression, GUIDE, GUIDE.init_params(KEY, X, Y))
    export = lambda: start.to_arviz(KEY, X, Y, num_draws=2, coords={"day": labels}, dims={"y": ["day"]})  # noqa: E731
    if kind is None:
        export().to_netcdf(tmp_path / "draws.nc")
    else:
        with pytest.raises(TypeError, match=rf"coords\['day'\] holds .* \({kind}\)"):
            export()
