"""Which model do the data prefer? Candidates trained alike, their bounds and test errors side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import optax
from jax import Array
from numpyro.infer import SVI

from gpzoo.inference.elbo import GaussianProcessELBO
from gpzoo.inference.guides import InducingGuide
from gpzoo.inference.prediction import predict
from gpzoo.inference.report import FitResult
from gpzoo.inference.training import fit


@dataclass(frozen=True)
class Candidate:
    """One trained program.

    Attributes:
        bound: evidence lower bound per training row, in nats, the mean over the last twentieth of the steps.
        nlpp: mean negative log predictive density of the test rows, in nats; ``None`` without test data.
        error: of the test rows: the fraction misclassified, or the root mean square error for numbers; or ``None``.
        seconds: of training.
        result: the training's result, with the parameters.
        guide: the trained guide.
    """

    bound: float
    nlpp: float | None
    error: float | None
    seconds: float
    result: FitResult
    guide: InducingGuide


class Comparison(Mapping[str, Candidate]):
    """Trained candidates by name, the one with the highest bound first; printed, a table."""

    def __init__(self, candidates: Mapping[str, Candidate]) -> None:
        self._candidates = dict(sorted(candidates.items(), key=lambda item: -item[1].bound))

    def __getitem__(self, name: str) -> Candidate:
        return self._candidates[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._candidates)

    def __len__(self) -> int:
        return len(self._candidates)

    def __repr__(self) -> str:
        rows = [("", "bound per row", "test nlpp", "test error", "seconds")]
        for name, c in self.items():
            scores = ("-" if x is None else f"{x:.4f}" for x in (c.bound, c.nlpp, c.error))
            rows.append((name, *scores, f"{c.seconds:.0f}"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join([r[0].ljust(widths[0]), *map(str.rjust, r[1:], widths[1:])]) for r in rows)
        return "\n".join(line.rstrip() for line in lines)


def compare(
    rng_key: Array,
    candidates: Mapping[str, tuple[Callable, Any]],
    X: Array,
    y: Array,
    X_test: Array | None = None,
    y_test: Array | None = None,
    *,
    num_steps: int,
    site: str = "y",
    learning_rate: float | optax.Schedule = 0.01,
    batch_size: int | None = None,
    progress: bool = True,
    **kwargs: Any,
) -> Comparison:
    """Train programs alike and compare their bounds on the evidence, which need no test data (learning invariances).

    All see the same rows in the same order, under Adam. A bound compares models only as far as it is tight: give all
    of them enough inducing variables and steps.

    ``compare(key, {"none": (partial(invariant_gp, view=None), random_subset(200)), "rotation":
    (partial(invariant_gp, view=rotation()), unique_patches(200))}, X, y, num_steps=2000, batch_size=200)``

    Args:
        rng_key: key of every training, and of the predictions.
        candidates: by name, a program of ``(X, y, num_data=...)`` and what initialises its inducing variables.
        X: training inputs ``[N, ...]``.
        y: training targets ``[N, ...]``.
        X_test: test inputs, for the test columns.
        y_test: test targets.
        num_steps: updates of each training.
        site: the data site whose predictions are scored.
        learning_rate: for Adam.
        batch_size: rows per minibatch, ``None`` for all.
        progress: whether to show bars.
        **kwargs: further keyword arguments of all programs.

    Raises:
        ValueError: if there are no candidates, only one of the test arrays is given, or no site of that name.
    """
    if not candidates:
        raise ValueError("compare needs candidates, {name: (program, initialiser)}; there are none.")
    if (X_test is None) != (y_test is None):
        raise ValueError("Give compare both X_test and y_test, or neither.")
    found = {}
    for name, (model, inducing) in candidates.items():
        guide = InducingGuide(model, inducing)
        svi = SVI(model, guide, optax.adam(learning_rate), GaussianProcessELBO())
        options = {"batch_size": batch_size, "num_data": len(X), "progress": progress}
        result = fit(svi, rng_key, num_steps, X, y, **options, **kwargs)
        nlpp = error = None
        if X_test is not None:
            test_data = {site: y_test}
            test = predict(rng_key, model, X_test, guide=guide, params=result.params, test_data=test_data, **kwargs)
            nlpp, error = _scores(test[site], np.asarray(y_test))
        bound = -float(np.mean(result.losses[-max(1, num_steps // 20) :])) / len(X)
        found[name] = Candidate(bound, nlpp, error, result.seconds, result, guide)
    return Comparison(found)


def _scores(test: Any, y: np.ndarray) -> tuple[float, float]:
    nlpp = -float(np.mean(test.log_density, dtype=np.float64))
    if test.probs is not None:
        return nlpp, float(np.mean(test.probs.argmax(axis=-1) != y))
    if np.issubdtype(y.dtype, np.integer):
        return nlpp, float(np.mean(np.round(test.mean) != y))
    return nlpp, float(np.sqrt(np.mean((test.mean - y) ** 2, dtype=np.float64)))
