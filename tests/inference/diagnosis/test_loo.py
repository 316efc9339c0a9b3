"""Left-out data by weights: right where they are reliable, refused where not, and what ArviZ says of the export."""

import warnings

import arviz
import numpy as np
import pytest
from scipy import stats

from gpzoo.inference import diagnose
from gpzoo.inference.fitted.psis import largest_k, leave_one_out, pareto
from tests.inference.diagnosis.planted_fits import fits_with_fixed_noise, waves
from tests.programs import KEY

SEED = 303


def test_densities_of_left_out_data_are_those_of_a_normal_model():
    """Of data with variance 1 around a mean with a flat prior; the draws have another spread than its posterior."""
    rng = np.random.default_rng(0)
    y, S = rng.standard_normal(12), 4000
    posterior = stats.norm(y.mean(), 12**-0.5)
    others = (y.sum() - y) / 11
    exact = stats.norm(others, np.sqrt(1 + 1 / 11)).logpdf(y)
    for factor, right in ((1.3, True), (0.15, False)):
        q = stats.norm(y.mean(), factor * 12**-0.5)
        draws = q.rvs(S, random_state=rng)
        log_ratio = posterior.logpdf(draws) - q.logpdf(draws)
        found = leave_one_out(stats.norm(draws[:, None], 1).logpdf(y), log_ratio)
        assert (pareto(log_ratio)[1] < largest_k(S)) == right
        assert (np.abs(found.elpd - exact).max() < 0.02) == right
        # Taken for draws of the posterior, both pass.
        assert not found.warns and found.above == 0


def test_thresholds_grow_with_the_number_of_draws():
    assert largest_k(100) == pytest.approx(0.5) and largest_k(10**5) == 0.7


@pytest.mark.slow
@pytest.mark.parametrize("k, warns", [(0, True), (1, False)], ids=["warns", "silent"])
def test_arviz_says_the_same_of_the_export(k, warns):
    trained, new, kwargs, _ = fits_with_fixed_noise(SEED)[k]
    X, y, *_ = waves(SEED)
    found = diagnose(KEY, trained, *new, train_args=(X, y), model_kwargs=kwargs)
    (section,) = (section for section in found.sections if section.title == "Leave-one-out")
    row = dict(zip(section.columns, section.rows[0], strict=True))
    export = trained.to_arviz(KEY, X, y, model_kwargs=kwargs)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        arviz.loo(export)
    assert any("shape parameter" in str(w.message) for w in seen) == warns
    assert row["az.loo"].endswith("(warns)" if warns else "(silent)")
    stats = export["sample_stats"]
    whole = pareto(np.ravel(stats["log_p"] - stats["log_q"]))[1]
    assert row["k-hat"] == pytest.approx(whole, abs=1e-3) and row["entries"] == 20
    reliable = whole <= largest_k(500)
    assert row["by"] == ("LOO" if reliable else "held-out rows")
    if not reliable:
        assert row["nlpp"] == pytest.approx(-found.arrays["y_log_density"].mean())
