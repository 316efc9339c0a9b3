"""Callbacks of a training: the loss that they are given, an early end, and a log."""

import numpy as np
import pytest
from numpyro.infer import SVI

from gpzoo import kmeans
from gpzoo.inference import EarlyStopping, GaussianProcessELBO, InducingGuide, Log, StopTraining, fit
from gpzoo.inference.training.callbacks import joined
from tests.programs import KEY, adam, regression, sine

GUIDE = InducingGuide(regression, kmeans(5))


def train(callback, steps=25, **options):
    svi = SVI(regression, GUIDE, adam(0.02), GaussianProcessELBO())
    return fit(KEY, svi, steps, *sine(20), callback=callback, callback_steps=10, progress=False, **options)


def test_callbacks_get_the_mean_loss_since_the_look_before_and_old_ones_do_not():
    seen, old = [], []

    def note(step, seconds, params, loss):
        seen.append((step, loss))

    log = Log(show=False)
    trained = train([note, lambda *now: old.append(now), log])
    expected = [trained.losses[:10].mean(), trained.losses[10:20].mean(), trained.losses[20:].mean()]
    assert [step for step, _ in seen] == [10, 20, 25]
    np.testing.assert_allclose([loss for _, loss in seen], expected)
    assert [len(now) for now in old] == [3, 3, 3]
    assert [row["loss"] for row in log.rows] == [loss for _, loss in seen]


def test_a_training_ends_early_with_its_model_and_goes_on_from_there(tmp_path):
    values = {10: 2.0, 20: 1.0, 30: 1.5, 40: 1.2}
    now = []
    stopping = EarlyStopping(lambda params: values[now[-1]], patience=2, min_gain=0.1)
    after = Log(show=False)
    trained = train([lambda step, *_: now.append(step), stopping, after], 100, checkpoint=tmp_path)
    assert len(trained.losses) == 40 and (stopping.step, stopping.best) == (20, 1.0)
    assert [row["step"] for row in after.rows] == now  # the last look is everyone's
    best = trained.with_params(stopping.params).params["lengthscale"]
    np.testing.assert_array_equal(best, train(None, 20).params["lengthscale"])
    assert len(train(None, 50, checkpoint=tmp_path).losses) == 50
    least = EarlyStopping(patience=3, min_gain=1.0)
    with pytest.raises(StopTraining):
        for step, loss in enumerate([2.0, 1.5, 1.2, 1.1, 0.0], start=1):
            least(step, 0.0, {"a": loss}, loss=loss)
    assert (least.step, least.params) == (4, {"a": 1.1})
    now.append(10)
    stopping(10, 0.0, {"a": 1.0})  # of another training
    assert stopping.step == 10


def test_early_stopping_begins_anew_with_every_training():
    """Also if the next training is first looked at after more steps than the last one took."""
    stopping = EarlyStopping(lambda params: losses.pop(0), patience=2)
    losses = [1.0, 2.0, 3.0]
    assert len(train(stopping, 40).losses) == 30 and stopping.step == 10
    losses = [9.0, 8.0, 7.0]
    svi = SVI(regression, GUIDE, adam(0.02), GaussianProcessELBO())
    trained = fit(KEY, svi, 120, *sine(20), callback=stopping, callback_steps=40, progress=False)
    assert len(trained.losses) == 120 and (stopping.step, stopping.best) == (120, 7.0)


REFUSED = {
    "patience": (lambda: EarlyStopping(patience=0), ValueError, "patience"),
    "gain": (lambda: EarlyStopping(min_gain=-1.0), ValueError, "min_gain"),
    "several": (lambda: EarlyStopping()(1, 0.0, {}, loss=np.ones(2)), ValueError, "one training"),
    "no number": (lambda: EarlyStopping()(1, 0.0, {}, loss=np.nan), ValueError, "nan"),
    "no function": (lambda: joined([3]), TypeError, "callback"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_callback_can_be_is_refused(name):
    call, error, words = REFUSED[name]
    with pytest.raises(error, match=words):
        call()


def test_any_callback_may_end_a_training():
    def stop(step, seconds, params):
        raise StopTraining

    assert len(train(stop).losses) == 10
