"""Trainings that are finished, and trainings cut at a tenth: what is said of each under four schedules.

    python benchmarks/finished.py [--seed 1] [--output benchmarks/results/finished.json]

Sparse regression, the same in minibatches of a tenth, counts, and a deep GP, each under a constant rate, a cosine, an
exponential decay, and a warm-up before a cosine, which are as long as the training: 32 trainings. Beside the finding
stands what is missing to the highest bound that any training of the same data, or 2,000 more steps, reached.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.distributions import constraints
from numpyro.infer import SVI
from numpyro.optim import Adam
from recorded import keep

from gpzoo import GaussianProcess, kmeans
from gpzoo.inference import GaussianProcessELBO, InducingGuide, Trained, fit
from gpzoo.inference.training.finished import end_of, gain_of_more_steps
from gpzoo.kernels import RBF
from gpzoo.likelihoods import Expected, Gaussian

SCHEDULES: dict[str, Callable[[int], Any]] = {
    "constant": lambda steps: 0.02,
    "cosine": lambda steps: optax.cosine_decay_schedule(0.02, steps),
    "exponential": lambda steps: optax.exponential_decay(0.02, steps, 0.01),
    "warm-up": lambda steps: optax.warmup_cosine_decay_schedule(0.0, 0.04, steps // 5, steps),
}


def positive(name: str, value: float) -> Any:
    return numpyro.param(name, jnp.asarray(value, float), constraint=constraints.positive)


def regression(X: Any, y: Any = None, *, num_data: int | None = None) -> None:
    f = numpyro.sample("f", GaussianProcess(RBF(positive("variance", 1.0), positive("lengthscale", 1.0)), X))
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", Gaussian(f, positive("noise", 0.5)), obs=y)


def negative_binomial(f: Any, concentration: Any) -> dist.Distribution:
    return dist.NegativeBinomial2(jnp.exp(f), concentration)


def counts(X: Any, y: Any = None) -> None:
    kernel = RBF(positive("variance", 1.0), positive("lengthscale", 1.0))
    f = numpyro.sample("f", GaussianProcess(kernel, X, mean=numpyro.param("level", jnp.asarray(1.0))))
    numpyro.sample("y", Expected(negative_binomial, f, positive("concentration", 1.0)), obs=y)


def deep(X: Any, y: Any = None) -> None:
    inner = RBF(positive("inner_variance", 0.1), positive("inner_lengthscale", 1.0))
    h = numpyro.sample("h", GaussianProcess(inner, X, mean=X, num_outputs=1))
    f = numpyro.sample("f", GaussianProcess(RBF(positive("variance", 1.0), positive("lengthscale", 1.0)), h))
    numpyro.sample("y", Gaussian(f, positive("noise", 0.1)), obs=y)


class Task(NamedTuple):
    """A program with its data, and how long it is trained."""

    program: Callable
    data: tuple
    steps: int
    batch_size: int | None = None


def tasks(seed: int) -> dict[str, Task]:
    """The programs with data, by name."""
    rng = np.random.default_rng(seed)
    X = np.sort(rng.uniform(0, 10, (500, 1)), axis=0)
    wave, noise, every = np.sin(2 * X[:, 0]), rng.standard_normal(500), slice(None, None, 4)
    many = rng.negative_binomial(3, 3 / (3 + np.exp(2 + 1.5 * wave))).astype(float)
    return {
        "regression": Task(regression, (X[every], (wave + 0.2 * noise)[every]), 2000),
        "minibatches": Task(regression, (X, wave + 0.2 * noise), 2500, 50),
        "counts": Task(counts, (X[every], many[every]), 2000),
        "deep": Task(deep, (X[every], (np.sign(wave) + 0.1 * noise)[every]), 4000),
    }


def bound(trained: Trained, data: tuple) -> float:
    """The mean of 40 estimates of the bound, with the same draws for all trainings."""
    svi = SVI(trained.model, trained.guide, Adam(0.0), GaussianProcessELBO())
    return -float(fit(jax.random.key(2), svi, 40, *data, init_params=trained.params, progress=False).losses.mean())


def judged(task: Task, schedule: Any, steps: int, seed: int) -> tuple[dict[str, Any], Trained]:
    """What is said of a training, and the training."""
    svi = SVI(task.program, InducingGuide(task.program, kmeans(20)), optax.adam(schedule), GaussianProcessELBO())
    trained = fit(jax.random.key(seed), svi, steps, *task.data, batch_size=task.batch_size, progress=False)
    more = lambda: gain_of_more_steps(jax.random.key(1), svi, trained.params, task.data, task.batch_size)  # noqa: E731
    end = end_of(trained.losses, len(task.data[0]), more)
    return {"steps": steps, "said": end.unfinished, "gain per row": end.gain.nats / len(task.data[0])}, trained


def of_task(name: str, task: Task, seed: int) -> list[Mapping[str, Any]]:
    """What is said of the eight trainings of a program, with what each is short of."""
    found, bounds = [], []
    for schedule, rate in SCHEDULES.items():
        for steps in (task.steps, task.steps // 10):
            said, trained = judged(task, rate(steps), steps, seed)
            found.append({"task": name, "schedule": schedule, "cut": steps < task.steps} | said)
            bounds.append(bound(trained, task.data))
    svi = SVI(task.program, trained.guide, optax.adam(SCHEDULES["cosine"](2000)), GaussianProcessELBO())
    further = fit(jax.random.key(3), svi, 2000, *task.data, init_params=trained.params, progress=False)
    best = max(*bounds, bound(further, task.data))
    for each, reached in zip(found, bounds, strict=True):
        each["missing per row"] = (best - reached) / len(task.data[0])
        print(*(f"{x:.4f}" if isinstance(x, float) else x for x in each.values()), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    numpyro.enable_x64()
    found = []
    for name, task in tasks(given.seed).items():
        found += of_task(name, task, given.seed)
    wrong = sum(bool(each["said"]) != each["cut"] for each in found)
    print(f"{wrong} of {len(found)} are wrong")
    assert all(math.isfinite(each["missing per row"]) for each in found)
    if given.output is not None:
        keep(given.output, __file__, ["--seed", given.seed], wrong=wrong, trainings=found)


if __name__ == "__main__":
    main()
