"""Three models in the shape of the package bayesian_benchmarks, and its regression task, beside its published numbers.

    python benchmarks/regression_tasks.py [--sets boston energy naval power protein] [--models sgpr sgpr-one dgp2]
        [--splits 10] [--output benchmarks/results/regression_tasks.json]

A model has ``fit(X, Y)``, ``predict(Xs)`` and ``sample(Xs, S)`` of standardised arrays ``[N, D]`` and ``[N, 1]``. The
task trains it on nine tenths of the rows and scores the normal distribution of its mean and variance on the rest, in
the target's units (github.com/hughsalimbeni/bayesian_benchmarks, tasks/regression.py; its splits are others). Kernels
have a lengthscale per column, and SGPR takes 1,000 steps; ``sgpr-one`` has one lengthscale and takes 10,000, as the
package's does. A split that the output holds is not run again. Test log likelihoods are printed as mean and standard
error.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from numpyro.infer import SVI
from recorded import keep, made_by
from scipy.stats import norm

from gpzoo import kmeans
from gpzoo.inference import CollapsedELBO, GaussianProcessELBO, InducingGuide, Trained, fit, lbfgs
from gpzoo.models import deep_gp, gp_regression, inner_scales, linear_layers, rbf
from gpzoo.reproductions import datasets

#: Test log likelihoods, and their spread, of the package's results/view_results.ipynb.
PUBLISHED = {
    "sgpr": {
        "boston": (-2.398, 0.064),
        "energy": (-1.084, 0.042),
        "naval": (9.353, 0.015),
        "power": (-2.799, 0.036),
        "protein": (-2.901, 0.008),
    },
    "dgp2": {
        "boston": (-2.408, 0.052),
        "energy": (-0.721, 0.106),
        "naval": (6.746, 0.224),
        "power": (-2.790, 0.037),
        "protein": (-2.846, 0.009),
    },
}

PUBLISHED["sgpr-one"] = PUBLISHED["sgpr"]

#: Inducing points of all.
M = 100


def scaled(name: str, h: jax.Array, ard: bool = True) -> Any:
    """RBF with a lengthscale per column, or one for all, which starts at the root of their number."""
    return rbf(name, h, lengthscale=float(h.shape[-1]) ** 0.5, ard=ard)


class Regression:
    """What all models share; ``trained`` is the gpzoo model after ``fit``."""

    trained: Trained
    kwargs: dict[str, Any]

    def __init__(self, seed: int = 0) -> None:
        self.key = jax.random.key(seed)

    def predict(self, Xs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of y, ``[N, 1]``."""
        y = self.trained.predict(self.key, Xs.astype(self.dtype), model_kwargs=self.kwargs)["y"]
        return y.mean[:, None], y.variance[:, None]

    def sample(self, Xs: np.ndarray, S: int) -> np.ndarray:
        """Draws of y, ``[S, N, 1]``."""
        Xs = Xs.astype(self.dtype)
        y = self.trained.predict(self.key, Xs, num_draws=S, keep_draws=True, model_kwargs=self.kwargs)["y"]
        return y.draws[..., None]


class SGPR(Regression):
    """One layer with the optimal q(u), by L-BFGS on the collapsed bound, in float64."""

    dtype = np.float64
    ard, steps = True, 1_000

    def fit(self, X: np.ndarray, Y: np.ndarray) -> None:
        """Train."""
        self.kwargs = {"kernel": partial(scaled, ard=self.ard), "noise_variance": 0.01, "jitter": 1e-8}
        guide = InducingGuide(gp_regression, kmeans(min(M, len(X))))
        svi = SVI(gp_regression, guide, lbfgs(), CollapsedELBO())
        with jax.enable_x64(True):
            self.trained = fit(self.key, svi, self.steps, X, Y[:, 0], progress=False, model_kwargs=self.kwargs)

    def predict(self, Xs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See :meth:`Regression.predict`."""
        with jax.enable_x64(True):
            return super().predict(Xs)


class OneLengthscale(SGPR):
    """The same, with one lengthscale for all columns and more steps."""

    ard, steps = False, 10_000


class DeepGP(Regression):
    """Two layers: Adam 0.01, with natural steps of 0.1 on the last layer, minibatches of 1,000, 10,000 steps."""

    dtype = np.float32

    def fit(self, X: np.ndarray, Y: np.ndarray) -> None:
        """Train."""
        X, y = X.astype(self.dtype), Y[:, 0].astype(self.dtype)
        self.kwargs = {"layers": linear_layers(X, [min(30, X.shape[1])]), "kernel": scaled}
        guide = InducingGuide(deep_gp, kmeans(min(M, len(X))), initial_scale=inner_scales(range(1)))
        svi = SVI(deep_gp, guide, optax.adam(0.01), GaussianProcessELBO())
        batch = {"batch_size": 1000} if len(X) > 1000 else {}
        options = {"natural": 0.1, "progress": False, "model_kwargs": self.kwargs} | batch
        self.trained = fit(self.key, svi, 10_000, X, y, **options)


MODELS = {"sgpr": SGPR, "sgpr-one": OneLengthscale, "dgp2": DeepGP}


def task(model: Regression, name: str, split: int) -> dict[str, float]:
    """The regression task on one split."""
    data = datasets.load(f"uci/{name}", split=split).standardised()
    began = time.perf_counter()
    model.fit(np.asarray(data.X_train, np.float64), np.asarray(data.y_train, np.float64)[:, None])
    seconds = time.perf_counter() - began
    mean, variance = model.predict(np.asarray(data.X_test))
    y = np.asarray(data.y_test, np.float64)[:, None]
    density = norm.logpdf(y, mean, np.sqrt(variance)) - np.log(data.y_std)
    return {
        "test_log_likelihood": float(np.mean(density)),
        "rmse": float(np.sqrt(np.mean(np.square(y - mean))) * data.y_std),
        "seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=list(PUBLISHED["sgpr"]))
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "regression_tasks.json")
    given = parser.parse_args()
    found = json.loads(given.output.read_text())["scores"] if given.output.exists() else {}
    options = ["--sets", *given.sets, "--models", *given.models, "--splits", given.splits]
    for name in given.sets:
        for which in given.models:
            scores = found.setdefault(which, {}).setdefault(name, [])
            for split in range(len(scores), min(given.splits, 5 if name == "protein" else 20)):
                # The file's own commit is that of the last split.
                scores.append(task(MODELS[which](split), name, split) | made_by(__file__, options))
                keep(given.output, __file__, options, scores=found, published=PUBLISHED)
            values = [score["test_log_likelihood"] for score in scores]
            error = np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else float("nan")
            mean, spread = PUBLISHED[which].get(name, (None, None))
            beside = "no published number" if mean is None else f"published {mean} ({spread})"
            print(
                f"{name:10} {which:8} {np.mean(values):8.3f} ({error:.3f}), {len(values)} splits; {beside}", flush=True
            )


if __name__ == "__main__":
    main()
