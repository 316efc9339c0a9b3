"""What the zoo exports is finite in float32, and ArviZ takes it, for inputs that repeat and inducing variables too."""

import os
import warnings

import jax.numpy as jnp
import numpy as np
import pytest

from gpzoo.inference import InducingGuide, Trained
from tests.programs import KEY, trained
from tests.zoo import PROGRAMS

#: Programs that make what others make too.
ALIKE = (
    *("classes", "convolution", "colours", "invariant regression"),
    *("changing noise", "ordered labels", "counts", "outputs"),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.stress) if n in ALIKE else n for n in PROGRAMS])
def test_an_export_is_finite_and_complete(name, standard_promotion):
    if name in ALIKE and not os.environ.get("GPZOO_STRESS"):
        pytest.skip("make stress runs it")
    program, inputs, data, inducing, *options = PROGRAMS[name]()
    guide = InducingGuide(program, inducing, **(options[0] if options else {}))
    # Untrained, a draw of changing noise has a row 1,000 nats worse than the others, whose weights are then 0.
    steps = 200 if name == "changing noise" else 0
    params = trained(program, guide, inputs, data, steps=steps)
    found = Trained(program, guide, params).to_arviz(KEY, inputs, data, num_draws=60, new_args=(inputs[:3],))
    for group in GROUPS:
        assert found[group].data_vars
        for variable, values in found[group].data_vars.items():
            assert np.isfinite(values).all(), (group, variable)
            # Of constants and of deterministic sites, such as affine_low, ArviZ names the axes.
            named = not [axis for axis in values.dims if "_dim_" in axis]
            assert named or "constant" in group or variable.startswith("affine_"), (group, variable)
    assert found["observed_data"]["y"].dtype.kind == found["posterior_predictive"]["y"].dtype.kind
    f = np.asarray(found["posterior"]["f"])
    assert f.dtype == jnp.float32 and f.shape[2] == 12
    # Equal inputs have equal values in every draw, but for the white noise of variance 1e-3 of convolutional programs.
    noise = 5 * np.sqrt(2e-3) if name in ("convolution", "convolution plus rbf", "colours", "patches and places") else 0
    np.testing.assert_allclose(f[:, :, ::2], f[:, :, 1::2], atol=0.1 * f.std() + noise)
    only_of_arviz(found, ordered=data.dtype.kind == "f", counts=name == "counts")


GROUPS = (
    *("posterior", "posterior_predictive", "predictions", "prior", "prior_predictive", "log_likelihood"),
    *("sample_stats", "observed_data", "constant_data", "predictions_constant_data"),
)


def is_of_arviz(warning):
    """Pareto k; and what ArviZ 0.23 does that later versions of Matplotlib do not like."""
    return "shape parameter of Pareto" in str(warning.message) or warning.category.__name__.startswith("Matplotlib")


def asked_of_arviz(data, ordered, names=("f_u",), counts=False):
    """What users ask, in either series, of some variables and of two entries along their first axis."""
    az = pytest.importorskip("arviz")
    plt = pytest.importorskip("matplotlib.pyplot")
    names, posterior = list(names), data["posterior"]
    axes = [posterior[name].dims[2:] for name in names]
    two = {axis: [0, 1] if i == 0 else [0] for own in axes for i, axis in enumerate(own)}
    some = {"var_names": names, "coords": two}
    both = [name for name in names if name in data["prior"].data_vars] or ["f"]
    few = {"var_names": both, "coords": {axis: [0] for name in both for axis in posterior[name].dims[2:]}}
    table = az.summary(data, kind="stats", var_names=names)
    assert np.isfinite(table["mean"].astype(float)).all()
    rows, old = data["observed_data"]["y"].shape[0], "InferenceData" in vars(az)
    logs = np.asarray(data["log_likelihood"]["y"]).reshape(-1, rows)
    # Robust-max gives a label one of two probabilities; where a tail has one of them, ArviZ 1.3 refuses it.
    several = old or all(len(np.unique(each)) > 2 for each in logs.T)
    if several:
        assert az.loo(data).n_data_points == rows
    az.plot_forest(data, **some)
    az.plot_pair(data, **some)
    stats, draws = data["sample_stats"], posterior.sizes["draw"]
    if old:
        if "log_q" in stats:
            assert az.psislw(np.asarray(stats["log_p"] - stats["log_q"])[0])[0].shape == (draws,)
        az.plot_ppc(data)
        az.plot_ppc(data, group="prior")
        az.plot_dist_comparison(data, **few)
        if ordered:
            az.plot_loo_pit(data, y="y")
    else:
        if "log_q" in stats and several:
            found = az.loo_approximate_posterior(data, log_p=stats["log_p"], log_q=stats["log_q"])
            assert found.n_data_points == rows
        if counts:
            az.plot_ppc_rootogram(data)
        elif ordered:
            az.plot_ppc_dist(data, num_samples=20)
            az.plot_ppc_dist(data, group="prior_predictive", num_samples=20)
        elif set(np.unique(data["observed_data"]["y"])) <= {0, 1}:  # labels of more classes have no plot of their own
            az.plot_ppc_pava(data)
        az.plot_prior_posterior(data, **few)
        if ordered:
            az.plot_loo_pit(data)
    plt.close("all")


def only_of_arviz(data, ordered, names=("f_u",), counts=False):
    """:func:`asked_of_arviz`, whose warnings are all ArviZ's own."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        asked_of_arviz(data, ordered, names, counts)
    assert not {str(w.message) for w in seen if not is_of_arviz(w)}
