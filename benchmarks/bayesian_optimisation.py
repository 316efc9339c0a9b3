"""How far is the best point from the optimum when gpzoo's exact GP proposes points, and when BoTorch's does?

    python benchmarks/bayesian_optimisation.py [--seeds 20] [--output benchmarks/results/bayesian_optimisation.json]

Branin and Hartmann's function of six variables are maximised from the same initial points, by BoTorch's qLogEI with the
same options, once with ``SingleTaskGP`` and once with a gpzoo model of the same priors, through
``gpzoo.adapters.botorch``. Random search measures as often. Regret is the distance from the optimum to the best point.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import torch
from botorch.acquisition import qLogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from botorch.test_functions import Branin, Hartmann
from gpytorch.mlls import ExactMarginalLogLikelihood
from numpyro.infer import SVI, init_to_value
from recorded import keep
from scipy.stats import wilcoxon

from gpzoo import GaussianProcess, kernels, random_subset
from gpzoo.adapters.botorch import FunctionsModel
from gpzoo.inference import CollapsedELBO, InducingGuide, fit, lbfgs
from gpzoo.likelihoods import Gaussian

#: Function, initial points, rounds, and points of a round.
CASES = {"Branin": (Branin, 6, 6, 2), "Hartmann6": (Hartmann, 12, 7, 3)}
ACQUISITION = {"num_restarts": 5, "raw_samples": 128, "options": {"maxiter": 200}}
STEPS = 100


def program(X: Any, y: Any = None) -> None:
    """The model of ``SingleTaskGP``: lengthscales that grow with the number of inputs (Hvarfner et al. 2024)."""
    d = X.shape[1]
    lengthscale = numpyro.sample("lengthscale", dist.LogNormal(2**0.5 + np.log(d) / 2, 3**0.5).expand([d]).to_event(1))
    noise = numpyro.sample("noise", dist.LogNormal(-4.0, 1.0))
    mean = numpyro.param("mean", 0.0) * np.ones(len(X))
    f = numpyro.sample("f", GaussianProcess(kernels.RBF(1.0, lengthscale), X, mean=mean))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(f, noise, missing="mask"), obs=y)


def by_gpzoo(rows: int, d: int) -> Callable[[np.ndarray, np.ndarray, int], tuple[Any, float]]:
    """Trains on the first of so many rows; the others are anywhere, and have no targets, so that shapes stay."""
    mode = {"lengthscale": np.full(d, np.exp(2**0.5 + np.log(d) / 2 - 3)), "noise": np.exp(-5.0)}  # of the priors
    guide = InducingGuide(program, random_subset(rows), init_loc_fn=init_to_value(values=mode))
    svi = SVI(program, guide, lbfgs(), CollapsedELBO())
    elsewhere = np.random.default_rng(0).uniform(size=(rows, d))

    def model(X: np.ndarray, y: np.ndarray, seed: int) -> tuple[Any, float]:
        everywhere, targets = elsewhere.copy(), np.full(rows, np.nan)
        everywhere[: len(X)], targets[: len(X)] = X, (y - y.mean()) / y.std()
        key = jax.random.key(seed)
        trained = fit(key, svi, STEPS, everywhere, targets, progress=False)
        return FunctionsModel(key, trained, everywhere), float(np.nanmax(targets))

    return model


def by_botorch(rows: int, d: int) -> Callable[[np.ndarray, np.ndarray, int], tuple[Any, float]]:
    """Trains ``SingleTaskGP`` with its defaults."""

    def model(X: np.ndarray, y: np.ndarray, seed: int) -> tuple[Any, float]:
        gp = SingleTaskGP(torch.tensor(X), torch.tensor(y)[:, None])
        fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
        return gp, float(y.max())

    return model


MODELS = {"gpzoo": by_gpzoo, "SingleTaskGP": by_botorch}


def optimise(case: str, model: Callable, seed: int) -> dict[str, Any]:
    """The regrets after each round, and the seconds of all models and of all acquisitions."""
    make, initial, rounds, q = CASES[case]
    function = make(negate=True)
    low, high = (x.numpy() for x in function.bounds.double())
    measure = lambda X: function(torch.tensor(low + (high - low) * X)).numpy()  # noqa: E731
    X = torch.quasirandom.SobolEngine(len(low), scramble=True, seed=seed).draw(initial, dtype=torch.double).numpy()
    y, regrets, modelling, acquiring = measure(X), [], 0.0, 0.0
    box = torch.tensor([[0.0] * len(low), [1.0] * len(low)], dtype=torch.double)
    for turn in range(rounds):
        torch.manual_seed(1000 * seed + turn)
        started = time.perf_counter()
        surrogate, best = model(X, y, 1000 * seed + turn)
        modelled = time.perf_counter()
        found, _ = optimize_acqf(qLogExpectedImprovement(surrogate, best), box, q, **ACQUISITION)
        modelling, acquiring = modelling + modelled - started, acquiring + time.perf_counter() - modelled
        X, y = np.vstack([X, found.numpy()]), np.append(y, measure(found.numpy()))
        regrets.append(function.optimal_value - y.max())
    return {"regrets": regrets, "modelling_seconds": modelling, "acquiring_seconds": acquiring}


def at_random(case: str, seed: int) -> float:
    """The regret of random search."""
    make, initial, rounds, q = CASES[case]
    function = make(negate=True)
    low, high = function.bounds.double()
    X = torch.rand(initial + rounds * q, len(low), dtype=torch.double, generator=torch.Generator().manual_seed(seed))
    return float(function.optimal_value - function(low + (high - low) * X).max())


def summary(runs: dict[str, list[dict[str, Any]]], random: list[float]) -> dict[str, Any]:
    """Quartiles of the last regret of each model, and Wilcoxon's signed-rank test of their logarithms."""
    last = {name: np.array([run["regrets"][-1] for run in of]) for name, of in runs.items()} | {"random": random}
    ours, theirs = (np.log(last[name]) for name in MODELS)
    return {
        "quartiles": {name: np.quantile(x, (0.25, 0.5, 0.75)).tolist() for name, x in last.items()},
        "better_seeds": int(np.sum(ours < theirs)),
        "wilcoxon_p": float(wilcoxon(ours, theirs).pvalue),
        "random": random,
        "runs": runs,
    }


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    numpyro.enable_x64()
    torch.set_num_threads(1)  # of tensors so small, more take longer
    versions = {name: version(name) for name in ("torch", "botorch", "gpytorch")}
    found: dict[str, Any] = {}
    for case, (make, initial, rounds, q) in CASES.items():
        models = {name: made(initial + rounds * q, make().dim) for name, made in MODELS.items()}
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in MODELS}
        for seed in range(arguments.seeds):
            for name, model in models.items():
                runs[name].append(optimise(case, model, seed))
                last = runs[name][-1]
                seconds = f"{last['modelling_seconds']:.1f} s and {last['acquiring_seconds']:.1f} s"
                print(f"{case} seed {seed} {name:12s} regret {last['regrets'][-1]:.2e}, {seconds}", flush=True)
            found[case] = summary(runs, [at_random(case, seed) for seed in range(seed + 1)])
            found[case] |= {"initial": initial, "rounds": rounds, "points_a_round": q}
            if arguments.output:
                settings = {"seeds": arguments.seeds, "acquisition": ACQUISITION, "training_steps": STEPS}
                keep(
                    arguments.output,
                    __file__,
                    ["--seeds", arguments.seeds],
                    settings=settings,
                    peers=versions,
                    cases=found,
                )
        said = {name: "{:.1e} {:.1e} {:.1e}".format(*x) for name, x in found[case]["quartiles"].items()}
        print(case, said, f"p = {found[case]['wilcoxon_p']:.2f}")


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Optimization failed")  # BoTorch's, of a start that is tried again
        main()
