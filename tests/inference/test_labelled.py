"""Datasets of xarray and frames of pandas as arguments: rows of all dimensions, and their names in results."""

import re

import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro import handlers
from numpyro.infer import SVI
from numpyro.infer.util import log_density

from gpzoo import GaussianProcess, kmeans
from gpzoo.inference import (
    GaussianProcessELBO,
    InducingGuide,
    Trained,
    compare,
    diagnose,
    fit,
    load,
    marginal,
    plots,
    predict,
    report,
    whitened,
)
from gpzoo.inference.programs.arguments import arguments
from gpzoo.inference.programs.labelled import columns_of, columns_of_inputs, unlabelled
from gpzoo.kernels import RBF
from gpzoo.likelihoods import Gaussian
from gpzoo.models import gp_regression
from tests.programs import KEY, adam, program_of

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


def svi_of(program):
    return SVI(program, InducingGuide(program, kmeans(6)), adam(0.05), GaussianProcessELBO())


def trained(program, *data, steps=30, **options):
    return fit(KEY, svi_of(program), steps, *data, **options, progress=False)


@pytest.fixture(scope="module")
def of_grid():
    return trained(climate, DATA)


@pytest.mark.slow
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


@pytest.mark.slow
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
    with pytest.raises(ValueError, match="X alone has height, and the training alone has time"):
        of_grid.predict(KEY, other.rename(time="height"))
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": GRID[:, 0], "b": GRID[:, 1], "c": GRID[:, 2]})
    model = trained(gp_regression, frame, FIELD.ravel())
    again = model.predict(KEY, frame[["c", "a", "b"]])["f"].mean
    np.testing.assert_array_equal(again, model.predict(KEY, frame)["f"].mean)
    with pytest.raises(ValueError, match="columns"):
        model.predict(KEY, frame.rename(columns={"a": "A"}))
    # Columns of targets are no inputs.
    assert columns_of_inputs(gp_regression, columns_of(gp_regression, (GRID, frame))) == ("X", [])


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


# -- labels of pandas and of DataArrays --------------------------------------------------------------------------------

ROWS, COLUMNS = 12, ["age", "dose", "year"]
INDEXES = {
    "words": lambda pandas: [f"patient {i}" for i in range(ROWS)],
    "dates": lambda pandas: pandas.date_range("2020-01-01", periods=ROWS),
    "numbers": lambda pandas: np.arange(ROWS)[::-1] * 3,
    "counted": lambda pandas: pandas.RangeIndex(ROWS),
    "levels": lambda pandas: pandas.MultiIndex.from_product([range(3), list("abcd")], names=["ward", "bed"]),
}


def table(index="words", dtype=float):
    pandas = pytest.importorskip("pandas")
    X = pandas.DataFrame(GRID[:ROWS], INDEXES[index](pandas), COLUMNS).astype(dtype)
    return X, X["age"] - 2 * X["dose"] + X["year"]


def mixed(x):
    return x.sample(frac=1, random_state=1)


def as_array(x):
    dims = ("row", "column")[: x.ndim]
    return xarray.DataArray(x.to_numpy(), dict(zip(dims, x.axes, strict=False)), dims)


@pytest.mark.parametrize("form", [lambda x: x, as_array], ids=["pandas", "xarray"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
@pytest.mark.parametrize("index", INDEXES)
def test_rows_go_by_their_labels(index, dtype, form):
    """In the order of the first argument that has labels, wherever the others are; others go by position."""
    X, y = table(index, dtype)
    for first, second in ((X, mixed(y)), (mixed(X), y), (mixed(X), y[::-1])):
        for given in (form(second), {"of": [form(second)]}):
            (inputs, found), _ = arguments(gp_regression, (form(first), given))
            np.testing.assert_array_equal(inputs, first)
            np.testing.assert_array_equal(found["of"][0] if isinstance(given, dict) else found, y[first.index])
            assert inputs.dtype == dtype
    np.testing.assert_array_equal(arguments(gp_regression, (X.to_numpy(), mixed(y)))[0][1], mixed(y))


@pytest.mark.parametrize("form", [lambda x: x, as_array], ids=["pandas", "xarray"])
@pytest.mark.parametrize("index", ["words", "numbers", "levels"])
def test_a_keyword_with_the_labels_of_rows_is_refused_in_another_order(index, form):
    X, y = table(index)
    for same in (y, y[:5], y.set_axis(range(100, 100 + ROWS))):
        np.testing.assert_array_equal(arguments(gp_regression, (X,), {"weights": form(same)})[1]["weights"], same)
    for other in (mixed(y), y[::-1], mixed(X)):
        for given, name in ((form(other), ""), ({"of": [form(other)]}, r"\['of'\]\[0\]")):
            with pytest.raises(ValueError, match=rf"model_kwargs\['weights'\]{name} has the labels of the rows in"):
                arguments(gp_regression, (form(X),), {"weights": given})


@pytest.fixture(scope="module")
def of_table():
    return trained(gp_regression, *table(), steps=3)


def exported(found):
    return np.stack([found["log_likelihood"]["y"].values, found["posterior_predictive"]["y"].values])


def exact(X, y=None):
    numpyro.sample("y", GaussianProcess(RBF(1.0, np.array([1.0, 2.0, 4.0])), X), obs=y)


#: Calls with inputs and data, each of which gives numbers by row, or numbers of all of them.
PLACES = {
    "fit": lambda model, X, y: trained(gp_regression, X, y, steps=3).losses,
    "test_data": lambda model, X, y: model.predict(KEY, X, test_data={"y": y})["y"].log_density,
    "with_params": lambda model, X, y: (
        model.with_params(model.params).predict(KEY, X, test_data={"y": y})["y"].log_density
    ),
    "condition": lambda model, X, y: model.condition(KEY, X, y, num_steps=2).params["f_mean"],
    "to_arviz": lambda model, X, y: exported(model.to_arviz(KEY, X, y, num_draws=3)),
    "diagnose": lambda model, X, y: diagnose(KEY, model, X, y).arrays["y_log_density"],
    "functions": lambda model, X, y: model.functions(KEY, X, num_draws=2)["f"],
    "function": lambda model, X, y: model.function(KEY)(X)["f"],
    "exact": lambda model, X, y: (
        predict(KEY, exact, X, train_args=(table()[0], mixed(table()[1])), test_data={"y": y}, params={})[
            "y"
        ].log_density
    ),
    "train_args": lambda model, X, y: predict(KEY, exact, table()[0], train_args=(X, y), params={})["y"].mean,
    "compare": lambda model, X, y: (
        compare(KEY, {"one": svi_of(gp_regression)}, *table(), X, y, num_steps=2, progress=False)["one"].nlpp
    ),
}


@pytest.mark.slow_but(place=["test_data", "train_args"])
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("place", PLACES)
def test_labels_are_put_in_order_everywhere(of_table, place):
    (X, y), call = table(), PLACES[place]
    found = call(of_table, X, y)
    np.testing.assert_array_equal(call(of_table, X, mixed(y)), found)
    if place not in ("fit", "train_args"):  # whose columns say the order
        np.testing.assert_array_equal(call(of_table, X[["year", "age", "dose"]], y), found)
        with pytest.raises(ValueError, match="X alone has weight, and the training alone has age"):
            call(of_table, X.rename(columns={"age": "weight"}), y)
        with pytest.raises(ValueError, match="the training alone has dose"):
            call(of_table, X[["year", "age"]], y)
    if "function" not in place:
        with pytest.raises(ValueError, match=r"alone has patient 33, and .* alone has patient 3\."):
            call(of_table, X, y.rename({"patient 3": "patient 33"}))


@pytest.mark.slow_but(rewritten=[marginal])
@pytest.mark.parametrize("rewritten", [whitened, marginal])
def test_programs_for_mcmc_put_rows_in_order(rewritten):
    X, y = table()

    def program(X, y):
        gp_regression(jnp.asarray(X), jnp.asarray(y))

    def density(X, y):
        return float(log_density(handlers.seed(rewritten(program), 0), (X, y), {}, {})[0])

    expected = density(X, y)
    for other in (mixed(y), y[::-1]):
        assert density(X, other) == pytest.approx(expected, abs=1e-6)
    with pytest.raises(ValueError, match="alone has patient 33"):
        density(X, y.rename({"patient 3": "patient 33"}))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_compared_models_know_the_names_of_columns():
    X, y = table()
    model = compare(KEY, {"one": svi_of(gp_regression)}, X, y, num_steps=2, progress=False)["one"].trained
    for order in (["year", "age", "dose"], ["dose", "year", "age"]):
        np.testing.assert_array_equal(model.predict(KEY, X[order])["f"].mean, model.predict(KEY, X)["f"].mean)
    with pytest.raises(ValueError, match="X alone has weight"):
        model.predict(KEY, X.rename(columns={"age": "weight"}))


def test_labels_of_an_export_are_those_of_its_rows(of_table):
    pytest.importorskip("arviz")
    X, y = table()
    found = of_table.to_arviz(KEY, X, mixed(y), num_draws=3)
    np.testing.assert_array_equal(found["observed_data"]["y"], y)
    np.testing.assert_array_equal(found["observed_data"]["y"]["index"], y.index)


@pytest.mark.parametrize("first, step", [(0, 1), (118, 1), (0, 2), (11, -1), (-3, 1)])
def test_an_export_has_the_labels_of_counted_rows_and_of_columns(of_table, first, step):
    pandas, _ = pytest.importorskip("pandas"), pytest.importorskip("arviz")
    counted = pandas.RangeIndex(first, first + step * ROWS, step)
    plain, cut = (tuple(x.set_axis(at) for x in table()) for at in (pandas.RangeIndex(ROWS), counted))
    for (X, y), (new, _) in ((plain, cut), (cut, plain), ((cut[0], cut[1].to_numpy()), cut)):
        found = of_table.to_arviz(KEY, X, y, num_draws=3, new_args=(new,))
        for group, index in {"observed_data": X, "predictions": new, "predictions_constant_data": new}.items():
            coords = found[group].coords
            assert ("index" in coords) == (not index.index.equals(plain[0].index))
            if "index" in coords:
                np.testing.assert_array_equal(coords["index"], counted)
        for group in ("constant_data", "predictions_constant_data"):
            assert list(found[group].X_column.values) == COLUMNS


@pytest.mark.slow
def test_columns_of_targets_go_by_their_names():
    X, _ = table()
    model = trained(wide, X, Y := X[["age", "dose"]], steps=3)
    for swapped in (Y[["dose", "age"]], mixed(Y[["dose", "age"]])):
        found = [model.predict(KEY, X, test_data={"y": y})["y"].log_density for y in (Y, swapped)]
        np.testing.assert_array_equal(*found)
        found = [model.condition(KEY, X, y, num_steps=2).params["f_mean"] for y in (Y, swapped)]
        np.testing.assert_array_equal(*found)
    updated = model.condition(KEY, X, Y, num_steps=2)
    swapped = X[["year", "age", "dose"]]
    np.testing.assert_array_equal(updated.predict(KEY, swapped)["f"].mean, updated.predict(KEY, X)["f"].mean)


wide = program_of(lambda f: Gaussian(f, 0.1), RBF(1.0, np.array([1.0, 2.0, 4.0])), num_outputs=2)


def test_labels_that_are_not_unique_are_refused_in_another_order():
    X, y = table()
    twice = {"patient 1": "patient 0"}
    X, y = X.rename(twice), y.rename(twice)
    np.testing.assert_array_equal(arguments(gp_regression, (X, y))[0][1], y)
    for other in (mixed(y), y.rename({"patient 0": "patient 1"}), table()[1]):
        with pytest.raises(ValueError, match="rows of y"):
            arguments(gp_regression, (X, other))
    frame, order = X.set_axis(["age", "age", "year"], axis=1), {"argument X columns": '["age", "age", "year"]'}
    np.testing.assert_array_equal(arguments(gp_regression, (frame,), described=order)[0][0], frame)
    with pytest.raises(ValueError, match=r"columns of X .* not unique"):
        arguments(gp_regression, (frame.iloc[:, ::-1],), described=order)


def test_test_data_of_a_dataset_have_its_labels(of_grid):
    series = DATA["warmth"].to_series()
    want = of_grid.predict(KEY, DATA, test_data={"y": FIELD.ravel()})["y"].log_density
    found = of_grid.predict(KEY, DATA, test_data={"y": mixed(series)})["y"].log_density
    np.testing.assert_array_equal(found, want)
    for other in (DATA["warmth"][1:], DATA["warmth"].assign_coords(time=[0.0, 7.0])):
        with pytest.raises(ValueError, match="alone has"):
            of_grid.predict(KEY, DATA, test_data={"y": other})


# -- whose rows a site has ---------------------------------------------------------------------------------------------


def of_two(X, y=None, Z=None, z=None):
    """The second function stands at rows of its own, of any number."""
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
    g = numpyro.sample("g", GaussianProcess(RBF(1.0, 1.0), Z))
    with numpyro.plate("anchors", len(Z)):
        numpyro.sample("z", Gaussian(g, 0.1), obs=z)
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(f, 0.1), obs=y)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [ROWS - 5, ROWS, ROWS + 1])
def test_a_site_at_other_rows_has_no_labels(rows):
    """However many they are."""
    days = np.arange(float(ROWS))
    data, Z = xarray.Dataset({"y": ("day", np.sin(days))}, {"day": days}), np.linspace(0, 1, rows)[:, None]
    known = {"Z": Z, "z": Z[:, 0]}
    model = trained(of_two, data, steps=2, model_kwargs=known)
    of_sites = model.predict(KEY, data, model_kwargs=known, keep_draws=True, quantiles=(0.5,))
    assert of_sites["f"].mean.dims == of_sites["y"].mean.dims == ("day",)
    assert not any(hasattr(x, "dims") for x in (*of_sites["g"], *of_sites["z"]))


@pytest.mark.slow
def test_a_site_at_other_rows_has_no_labels_in_functions_and_exports():
    days = np.arange(float(ROWS))
    data, Z = xarray.Dataset({"y": ("day", np.sin(days))}, {"day": days}), np.linspace(0, 1, ROWS)[:, None]
    known = {"Z": Z, "z": Z[:, 0]}
    model = trained(of_two, data, steps=2, model_kwargs=known)
    functions = model.functions(KEY, data, num_draws=2, model_kwargs=known)
    assert functions["f"].dims == ("draw", "day") and not hasattr(functions["g"], "dims")
    found = model.to_arviz(KEY, data, num_draws=2, new_args=(data[["day"]],), model_kwargs=known)
    for group in ("posterior", "observed_data", "prior", "predictions"):
        for site in set(found[group].data_vars) & {"f", "y", "g", "z"}:
            assert ("day" in found[group][site].coords) == (site in "fy"), (group, site)


@pytest.mark.slow
def test_rows_of_a_program_of_one_size_keep_their_labels():
    """Such a program is not asked how it grows."""

    def fixed(X, y=None):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
        with numpyro.plate("data", ROWS):
            numpyro.sample("y", Gaussian(f, 0.1), obs=y)

    days = np.arange(float(ROWS))
    data = xarray.Dataset({"y": ("day", np.sin(days))}, {"day": days})
    found = trained(fixed, data, steps=2).predict(KEY, data)
    assert found["f"].mean.dims == found["y"].mean.dims == ("day",)
