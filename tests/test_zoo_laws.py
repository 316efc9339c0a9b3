"""Laws of all programs of the zoo: batches are the whole, a loaded model is the saved one, float32 is near float64."""

from functools import cache

import jax
import numpy as np
import pytest

from gpzoo.inference import InducingGuide, Trained, load
from tests.programs import KEY
from tests.zoo import OTHERS, PROGRAMS

ZOO = PROGRAMS | OTHERS
#: Programs without draws, which have other numbers in another precision.
UNDRAWN = ("sparse", "not whitened", "convolution", "convolution plus rbf", "patches and places", "colours", "channels")
UNDRAWN += ("classes", "changing noise", "ordered labels", "counts", "outputs")


@cache
def model_of(name):
    """The model of a program with parameters away from their start, its inputs, and the prediction at all of them."""
    program, *args, inducing, options = [*ZOO[name](), {}][:5]
    guide = InducingGuide(program, inducing, **options)
    rng = np.random.default_rng(0)
    params = {
        name: x + rng.standard_normal(x.shape).astype(x.dtype) if name.endswith("_mean") else x
        for name, x in guide.init_params(KEY, *args).items()
    }
    trained = Trained(program, guide, params)
    return trained, args[0], predicted(trained, args[0])


def predicted(trained, inputs, **options):
    found = trained.predict(KEY, inputs, num_draws=3, keep_draws=True, **options)
    return {site: {k: x for k, x in parts._asdict().items() if x is not None} for site, parts in found.items()}


#: Latent variables of rows are drawn anew in every batch.
DRAWN_BY_BATCH = ("latent inputs", "deep with a latent of each row")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ZOO if name not in DRAWN_BY_BATCH])
def test_batches_are_the_whole(name, standard_promotion):
    trained, inputs, whole = model_of(name)
    parts = predicted(trained, inputs, batch_size=5)
    # A variance is a difference from the prior's, which is about 1: no processor gives it closer than a digit of that.
    digit = 2 * np.finfo(np.float32).eps

    def same(part, all_rows):
        np.testing.assert_allclose(part, all_rows, rtol=1e-3, atol=1e-3 * np.abs(all_rows).max() + digit)

    jax.tree.map(same, parts, whole)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(whole))


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_a_loaded_model_is_the_saved_one(name, tmp_path, standard_promotion):
    trained, inputs, whole = model_of(name)
    trained.save(tmp_path / "model")
    loaded = load(tmp_path / "model", trained.model, guide=trained.guide)
    jax.tree.map(np.testing.assert_array_equal, predicted(loaded, inputs), whole)


@pytest.mark.slow
@pytest.mark.parametrize("name", UNDRAWN)
def test_float32_is_near_float64(name, standard_promotion):
    trained, inputs, _ = model_of(name)
    double = jax.tree.map(lambda x: np.asarray(x, np.float64), dict(trained.params))
    single, exact = (
        one.posterior(KEY, x)["f"].marginals()
        for one, x in ((trained, inputs), (trained.with_params(double), inputs.astype(np.float64)))
    )
    for ours, theirs in zip(single, exact, strict=True):
        assert ours.dtype == np.float32 and theirs.dtype == np.float64
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=0.01 * np.abs(theirs).max())
