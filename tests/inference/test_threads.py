"""Trainings off the main thread, and several calls at once, give what they give alone."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from jax import random
from numpyro.infer import SVI

from gpzoo import kmeans
from gpzoo.inference import GaussianProcessELBO, InducingGuide, fit
from gpzoo.models import gp_regression
from tests.programs import KEY, adam

pytestmark = pytest.mark.slow

X = np.linspace(0, 6, 30)[:, None]
y = np.sin(X[:, 0])


def trained(folder=None):
    svi = SVI(gp_regression, InducingGuide(gp_regression, kmeans(5)), adam(0.05), GaussianProcessELBO())
    return fit(KEY, svi, 30, X, y, checkpoint=folder, progress=False)


def test_a_training_off_the_main_thread_is_the_same(tmp_path):
    """With a checkpoint, whose signals only the main thread may take."""
    with ThreadPoolExecutor(1) as pool:
        elsewhere = pool.submit(trained, tmp_path / "run").result()
    np.testing.assert_array_equal(elsewhere.losses, trained().losses)
    assert any((tmp_path / "run").iterdir())


def test_predictions_at_once_are_those_made_one_by_one():
    """Of one model, whose compiled programs the threads share: with first calls of several shapes among them."""
    model, alone = trained(), trained()
    calls = [(random.key(k), X[: 5 + 5 * (k % 3)]) for k in range(12)]

    def draws(of, key, X):
        return of.predict(key, X, keep_draws=True, num_draws=4)["y"].draws

    with ThreadPoolExecutor(6) as pool:
        at_once = list(pool.map(lambda call: draws(model, *call), calls))
    for found, call in zip(at_once, calls, strict=True):
        np.testing.assert_array_equal(found, draws(alone, *call))


def test_a_prediction_need_not_wait_for_the_end_of_a_training():
    model, began, predicted = trained(), threading.Event(), threading.Event()

    def wait(step, seconds, params):
        began.set()
        assert predicted.wait(60)

    svi = SVI(gp_regression, InducingGuide(gp_regression, kmeans(5)), adam(0.05), GaussianProcessELBO())
    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(fit, KEY, svi, 30, X, y, callback=wait, callback_steps=10, progress=False)
        assert began.wait(60)
        model.predict(KEY, X[:7])
        predicted.set()
        np.testing.assert_array_equal(training.result().losses, model.losses)
