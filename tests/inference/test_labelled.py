"""Datasets of xarray and frames of pandas as arguments: rows of all dimensions, and their names in results."""

import re

import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro.infer import SVI

from gpzoo import GaussianProcess, kmeans
from gpzoo.inference import GaussianProcessELBO, InducingGuide, Trained, diagnose, fit, load, plots, report
from gpzoo.inference.programs.labelled import columns_of, unlabelled
from gpzoo.kernels import RBF
from gpzoo.likelihoods import Gaussian
from gpzoo.models import gp_regression
from tests.programs import KEY, adam

xarray = pytest.importorskip("xarray")

LATITUDE, LONGITUDE, TIME = np.linspace(0, 3, 4), np.linspace(0, 2, 3), np.arange(2.0)
FIELD = np.sin(LATITUDE)[:, None, None] + np.cos(LONGITUDE)[:, None] + 0.1 * TIME
GRID = np.stack([x.ravel() for x in np.meshgrid(LATITUDE, LONGITUDE, TIME, indexing="ij")], axis=1)
COORDS = {"latitude": LATITUDE, "longitude": LONGITUDE, "time": TIME}
DATA = xarray.Dataset({"warmth": (tuple(COORDS), FIELD)}, COORDS)


def climate(X, warmth=None):
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, np.array([2.0, 2.0, 5.0])), X))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(f, 0.1), obs=warmth)


def masked(X, warmth=None, mask=True):
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
    with numpyro.plate("data", len(X)), numpyro.handlers.mask(mask=mask):
        numpyro.sample("y", Gaussian(f, 0.1), obs=warmth)


def by_name(time, latitude, longitude, warmth=None):
    climate(jnp.stack([latitude, longitude, time], axis=1), warmth)


def trained(program, *data, steps=30):
    svi = SVI(program, InducingGuide(program, kmeans(6)), adam(0.05), GaussianProcessELBO())
    return fit(KEY, svi, steps, *data, progress=False)


@pytest.fixture(scope="module")
def of_grid():
    return trained(climate, DATA)


def test_a_grid_goes_in_and_comes_out_with_its_coordinates(of_grid):
    plain = trained(climate, GRID, FIELD.ravel())
    np.testing.assert_array_equal(of_grid.losses, plain.losses)
    options = {"quantiles": (0.1, 0.9), "keep_draws": True, "num_draws": 5, "batch_size": 7}
    found = of_grid.predict(KEY, DATA, test_data={"y": FIELD.ravel()}, **options)["y"]
    rows = plain.predict(KEY, GRID, test_data={"y": FIELD.ravel()}, **options)["y"]
    assert found.mean.dims == ("latitude", "longitude", "time")
    assert found.quantiles.dims == ("quantile", *found.mean.dims) and found.draws.dims == ("draw", *found.mean.dims)
    assert of_grid.predict(KEY, DATA, test_data={"y": DATA["warmth"].transpose("time", ...)[:, ::-1]}, **options)[
        "y"
    ].log_density.equals(found.log_density)
    for name in ("mean", "variance", "log_density"):
        np.testing.assert_array_equal(getattr(found, name).values.ravel(), getattr(rows, name))
    np.testing.assert_array_equal(found.mean.longitude, LONGITUDE)
    functions = of_grid.functions(KEY, DATA, num_draws=2)["f"]
    assert functions.dims == ("draw", "latitude", "longitude", "time")


@pytest.mark.slow
def test_a_field_alone_is_its_dataset(of_grid):
    of_field = trained(climate, DATA["warmth"])
    np.testing.assert_array_equal(of_field.losses, of_grid.losses)
    there = xarray.Dataset(coords={"latitude": [1.0, 2.0], "longitude": [0.5], "time": [0.0]})
    assert of_grid.predict(KEY, there)["f"].mean.shape == (2, 1, 1)


@pytest.mark.slow
def test_arguments_take_coordinates_by_name(of_grid):
    again = trained(by_name, DATA)
    np.testing.assert_allclose(again.losses, of_grid.losses)


def test_rows_of_several_coordinates_stay_rows(of_grid):
    some = DATA.stack(row=("latitude", "longitude", "time")).isel(row=slice(0, 10))
    found = of_grid.predict(KEY, some)["y"].mean
    assert found.dims == ("row",) and found.unstack("row").dims == ("latitude", "longitude", "time")
    np.testing.assert_allclose(found, of_grid.predict(KEY, GRID[:10])["y"].mean)


@pytest.mark.slow
def test_exports_have_the_coordinates_of_rows(of_grid):
    found = of_grid.to_arviz(KEY, DATA, num_draws=3)["posterior"]["f"]
    np.testing.assert_array_equal(found["longitude"], GRID[:, 1])
    back = found.set_index(data=["latitude", "longitude", "time"]).unstack("data")
    assert dict(back.sizes) == {"chain": 1, "draw": 3, "latitude": 4, "longitude": 3, "time": 2}
    assert diagnose(KEY, of_grid, DATA).sections


def test_an_array_with_names_is_an_array(of_grid):
    X = xarray.DataArray(GRID, {"feature": list(COORDS)}, ("row", "feature"), "X")
    np.testing.assert_array_equal(of_grid.predict(KEY, X)["f"].mean, of_grid.predict(KEY, GRID)["f"].mean)


def test_a_dimension_without_a_coordinate_is_refused(of_grid):
    with pytest.raises(ValueError, match="Dimension 'time' of the Dataset has no coordinate"):
        of_grid.predict(KEY, DATA.drop_vars("time"))


@pytest.mark.slow
def test_columns_of_a_frame_keep_their_names(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"age": GRID[:, 0], "dose": GRID[:, 1], "year": GRID[:, 2]})
    model = trained(gp_regression, frame, FIELD.ravel())
    found = model.to_arviz(KEY, frame, FIELD.ravel(), num_draws=3, params=True)
    for group in ("posterior", "constant_data"):
        assert list(found[group]["f_lengthscale"]["X_column"].values) == ["age", "dose", "year"]
    model.save(tmp_path / "model.gpzoo")
    for each in (model, load(tmp_path / "model.gpzoo", gp_regression)):
        ticks = plots.lengthscales(each, frame, FIELD.ravel()).get_yticklabels()
        assert [tick.get_text() for tick in ticks] == ["age", "dose", "year"]
    page = report(KEY, model, frame, FIELD.ravel(), path=tmp_path / "report.html").read_text()
    assert re.search(r"age [0-9.]+, dose [0-9.]+, year [0-9.]+", page)
    assert list(found["constant_data"]["X"]["X_column"].values) == ["age", "dose", "year"]
    nameless = Trained(model.model, model.guide, model.params)
    assert plots.lengthscales(nameless, GRID, FIELD.ravel()).get_yticklabels()[0].get_text() == "column 0"


@pytest.mark.slow
def test_an_export_labels_new_rows_and_matches_their_columns(of_grid):
    """Labels of new rows are theirs, and their columns are put in the order of the training's."""
    new = xarray.Dataset(coords={name: COORDS[name][:2] for name in ("time", "longitude", "latitude")})
    found = of_grid.to_arviz(KEY, DATA, num_draws=400, new_args=(new,))["predictions"]["f"]
    back = found.set_index(data=list(new.coords)).unstack("data").mean(("chain", "draw"))
    want = of_grid.predict(KEY, new)["f"].mean
    np.testing.assert_allclose(back.transpose(*want.dims).sel(want.coords), want, atol=0.05)
    pandas = pytest.importorskip("pandas")
    days = pandas.date_range("2020-01-01", periods=len(GRID), name="day")
    frame = pandas.DataFrame(GRID, days, ["a", "b", "c"])
    model = trained(gp_regression, frame, FIELD.ravel())
    mixed = frame[["c", "a", "b"]][5:9]
    found = model.to_arviz(KEY, frame, FIELD.ravel(), num_draws=400, new_args=(mixed,))
    mean = found["predictions"]["f"].mean(("chain", "draw"))
    np.testing.assert_allclose(mean, model.predict(KEY, frame[5:9])["f"].mean, atol=0.05)
    for group, of in (("posterior", days), ("predictions", days[5:9])):
        np.testing.assert_array_equal(found[group]["f"]["day"], of.values)
    with pytest.raises(ValueError, match="columns"):
        model.to_arviz(KEY, frame, FIELD.ravel(), new_args=(frame.rename(columns={"a": "A"}),))


@pytest.mark.slow
def test_a_dataset_may_be_a_table():
    """Inputs ``[row, column]`` and data of the rows."""
    names = {"feature": ["age", "dose", "year"], "patient": np.arange(len(GRID))}
    table = xarray.Dataset({"X": (("patient", "feature"), GRID), "y": ("patient", FIELD.ravel())}, names)
    model = trained(gp_regression, table)
    np.testing.assert_array_equal(model.losses, trained(gp_regression, GRID, FIELD.ravel()).losses)
    found = model.predict(KEY, table[["X"]].isel(feature=[2, 0, 1], patient=slice(5)))["f"].mean
    assert found.dims == ("patient",)
    np.testing.assert_array_equal(found, model.predict(KEY, GRID[:5])["f"].mean)


@pytest.mark.slow
def test_rows_that_are_masked_keep_their_labels():
    data = DATA.assign(mask=DATA["warmth"] > 0.5)
    model = trained(masked, data)
    found = model.to_arviz(KEY, data, num_draws=3)["log_likelihood"]["y"]
    assert found.sizes["y_observed"] < len(GRID)
    np.testing.assert_array_equal(found["latitude"], GRID[FIELD.ravel() > 0.5, 0])


# -- what would be misread ---------------------------------------------------------------------------------------------


def test_columns_go_by_their_names(of_grid):
    """A Dataset or frame that has them in another order is put in that of the training; other columns are refused."""
    other = xarray.Dataset(coords={name: COORDS[name] for name in ("time", "longitude", "latitude")})
    found = of_grid.predict(KEY, other)["f"].mean
    assert found.dims == ("time", "longitude", "latitude")
    np.testing.assert_allclose(found.transpose(*COORDS), of_grid.predict(KEY, DATA)["f"].mean)
    with pytest.raises(ValueError, match=r"columns .*'height'.*, and those of training .*'time'"):
        of_grid.predict(KEY, other.rename(time="height"))
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": GRID[:, 0], "b": GRID[:, 1], "c": GRID[:, 2]})
    model = trained(gp_regression, frame, FIELD.ravel())
    again = model.predict(KEY, frame[["c", "a", "b"]])["f"].mean
    np.testing.assert_array_equal(again, model.predict(KEY, frame)["f"].mean)
    with pytest.raises(ValueError, match="columns"):
        model.predict(KEY, frame.rename(columns={"a": "A"}))
    # Names are those of the inputs: columns of targets are no inputs.
    assert not columns_of(gp_regression, (GRID, frame))


def of_regions(year, code, deaths=None):
    X = jnp.stack([year, code], axis=1)
    numpyro.sample("y", Gaussian(numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X)), 0.1), obs=deaths)


def of_population(population, deaths=None):
    of_regions(population, population, deaths)


def test_rows_are_in_the_order_of_the_variable_with_all_dimensions():
    """Whatever argument comes first; and words that data share are no names of columns."""
    years, numbers = np.arange(4.0), np.arange(8.0).reshape(4, 2)
    data = xarray.Dataset({"deaths": (("year", "region"), numbers)}, {"year": years, "region": ["north", "south"]})
    data = data.assign(code=("region", np.arange(2.0)), population=data["deaths"] + 1)
    (year, code, deaths), (population, _) = unlabelled(of_regions, (data,)), unlabelled(of_population, (data,))
    np.testing.assert_array_equal(deaths, numbers.ravel())
    np.testing.assert_array_equal(year, np.repeat(years, 2))
    np.testing.assert_array_equal(code, np.tile([0.0, 1.0], 4))
    np.testing.assert_array_equal(population, 1 + numbers.ravel())


@pytest.mark.slow
def test_other_variables_add_no_rows():
    """A dimension of variables that the program does not take, as climate files have."""
    more = DATA.assign(monthly=("month", np.arange(12.0))).assign_coords(month=np.arange(12))
    np.testing.assert_array_equal(trained(climate, more, steps=3).losses, trained(climate, DATA, steps=3).losses)


def program_of_y(X, y=None):
    climate(X, y)


def of_height(X, height, warmth=None):
    climate(X, warmth)


FLAT = DATA.assign(height=DATA["warmth"], warmth=DATA["warmth"].isel(time=0, drop=True))
MISREAD = {
    "a coordinate is no data": (program_of_y, (DATA.rename(latitude="y"),), "has no data|no data"),
    "data without a dimension": (of_height, (FLAT,), "'warmth' has no dimension .'time'.*count several times"),
    "beside others": (climate, (DATA, FIELD.ravel()), "stands for all positional arguments"),
    "dates": (climate, (DATA.assign_coords(time=np.array(["2020", "2021"], "M8[ns]")),), "days since the first date"),
    "columns of one label": (
        climate,
        (xarray.Dataset({"X": (("row", "f"), GRID)}, {"f": ["a", "b", "a"], "row": np.arange(len(GRID))}),),
        "have the same label",
    ),
    "no rows": (climate, (xarray.Dataset({"warmth": 1.0}),), "no dimensions"),
}


@pytest.mark.parametrize("case", MISREAD)
def test_what_would_be_misread_is_refused(case):
    program, data, said = MISREAD[case]
    with pytest.raises(ValueError, match=said):
        trained(program, *data, steps=1)


@pytest.mark.slow
def test_a_report_takes_a_dataset(of_grid, tmp_path):
    assert report(KEY, of_grid, DATA, path=tmp_path / "report.html").stat().st_size > 10_000
