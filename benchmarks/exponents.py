"""Seconds and memory against rows, inducing inputs, patches, layers, outputs and draws, with fitted exponents.

    python benchmarks/exponents.py [--only rows ...] [--output benchmarks/results/exponents.json]

Each curve varies one number and leaves the others as they are. Every point has a process of its own, which takes the
median of several steps and tells the memory that it came to hold after its imports, compilation included. An exponent
is the slope of a line through the logarithms of the largest three sizes; of memory, beyond that of the smallest size.
Beside it stands what the largest term of the arithmetic has; smaller terms, and what does not depend on the size, make
a slope less than that.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import exact
import sparse
from data import JITTER, images, patches, regression
from peer import Timed, resident
from recorded import keep
from steps import by_fit

DTYPE = "float32"
#: Points of a line, and megabytes by which memory must have grown to be one of them.
LAST, GROWTH = 3, 50


def exact_rows(rows: int) -> Timed:
    """Value and gradient of an exact evidence, in float64."""
    return exact.gpzoo_steps({"rows": rows, "M": 0, "integrated": True})


def rows(batch: int) -> Timed:
    """A step of sparse regression with 100 inducing inputs, all rows in it."""
    return _sparse(100, batch)


def inducing(count: int) -> Timed:
    """A step of sparse regression of 256 rows."""
    return _sparse(count, 256)


def patch_places(side: int) -> Timed:
    """A step of an invariant convolution of 5 x 5 patches, 100 of them inducing, of 32 images."""
    from gpzoo import InducingPatches
    from gpzoo.models import convolutional_gp

    X, y = images(400, DTYPE, 2, side)
    options = {"patch_shape": (5, 5), "weighted": False, "lengthscale": 1.5, "white": 0.0}
    return _fit(convolutional_gp, InducingPatches(patches(X, 100, 5)), X[..., None], y, 32, 5, options)


def layers(count: int) -> Timed:
    """A step of a deep GP of 256 rows, 50 inducing inputs and five columns in every layer."""
    from gpzoo import InducingPoints
    from gpzoo.models import deep_gp, linear_layers

    X, y = regression(2000, DTYPE, columns=5)
    options = {"layers": linear_layers(X, [5] * (count - 1))}
    return _fit(deep_gp, InducingPoints(X[:50]), X, y, 256, 20, options)


def outputs(count: int) -> Timed:
    """A step of a classifier of 256 rows by softmax with 100 inducing inputs, one function for each class."""
    from gpzoo import InducingPoints
    from gpzoo.likelihoods import Softmax
    from gpzoo.models import gp_classification

    X, _ = regression(2000, DTYPE)
    y = np.arange(len(X)) % count
    options = {"num_classes": count, "likelihood": partial(Softmax, num_draws=5)}
    return _fit(gp_classification, InducingPoints(X[:100]), X, y, 256, 20, options)


def draws(count: int) -> Timed:
    """Predictions of 2,000 rows by draws of a deep GP of two layers."""
    import jax

    from gpzoo import InducingPoints
    from gpzoo.inference import InducingGuide, Trained
    from gpzoo.models import deep_gp, linear_layers

    X, y = regression(2000, DTYPE, columns=5)
    options = {"layers": linear_layers(X, [5])}
    guide = InducingGuide(deep_gp, InducingPoints(X[:100]))
    trained = Trained(deep_gp, guide, guide.init_params(jax.random.key(0), X, y, model_kwargs=options))

    def predict() -> float:
        found = trained.predict(jax.random.key(1), X, num_draws=count, model_kwargs=options)
        return float(found["y"].mean.sum())

    return Timed.of(predict, "", None)


#: By curve: what makes its steps, its sizes, the number that counts of a size, and the exponents of time and memory.
CURVES: dict[str, tuple[Callable[[int], Timed], tuple[int, ...], Callable[[int], int], float, float]] = {
    "rows, exact": (exact_rows, (250, 500, 1000, 2000, 4000), lambda n: n, 3, 2),
    "rows": (rows, (250, 1000, 4000, 16_000, 64_000), lambda n: n, 1, 1),
    "inducing inputs": (inducing, (100, 200, 400, 800, 1600), lambda n: n, 3, 2),
    "patches": (patch_places, (12, 16, 20, 28, 36, 44), lambda side: (side - 4) ** 2, 2, 1),
    "layers": (layers, (2, 4, 8, 16), lambda n: n, 1, 1),
    "outputs": (outputs, (4, 8, 16, 32, 64), lambda n: n, 1, 1),
    "draws": (draws, (10, 20, 40, 80, 160), lambda n: n, 1, 1),
}


def _sparse(count: int, batch: int) -> Timed:
    import optax
    from numpyro.infer import SVI

    from gpzoo.inference import GaussianProcessELBO

    X, y = regression(max(batch, 2 * count), DTYPE)
    model, guide, params, options = sparse.gpzoo_model(count, X, y)
    svi = SVI(model, guide, optax.adam(0.01), GaussianProcessELBO())
    return by_fit(svi, params, X, y, batch=batch, block=10, **options)


def _fit(model: Any, points: Any, X: Any, y: Any, batch: int, block: int, options: Mapping[str, Any]) -> Timed:
    import jax
    import optax
    from numpyro.infer import SVI

    from gpzoo.inference import GaussianProcessELBO, InducingGuide

    options = {"jitter": JITTER[DTYPE]} | dict(options)
    guide = InducingGuide(model, points)
    params = guide.init_params(jax.random.key(0), X[:batch], y[:batch], model_kwargs=options)
    svi = SVI(model, guide, optax.adam(1e-3), GaussianProcessELBO())
    return by_fit(svi, params, X, y, batch=batch, block=block, **options)


def point(curve: str, size: int) -> dict[str, float]:
    """Seconds of a step and megabytes of one size, in this process."""
    import gpzoo.models  # noqa: F401  its memory is not counted

    make, _, counted, _, _ = CURVES[curve]
    before = resident()
    timed = make(size)
    once = timed.seconds(1)[0]
    seconds = [timed.seconds(max(1, round(0.3 / once)))[0] for _ in range(5)]
    return {"size": counted(size), "seconds": statistics.median(seconds), "megabytes": resident() - before}


def exponent(sizes: list[float], numbers: list[float]) -> float:
    """The slope of the logarithms at the largest sizes."""
    return float(np.polyfit(np.log(sizes[-LAST:]), np.log(numbers[-LAST:]), 1)[0])


def exponents(points: list[dict[str, float]], expected: float) -> dict[str, float | None]:
    """Of time, and of the memory beyond that of the smallest size, where it grew.

    That of the memory is fitted to what ``size**expected`` is beyond the smallest, so that it is right where it is the
    ``expected`` one.
    """
    size, seconds, megabytes = ([each[name] for each in points] for name in ("size", "seconds", "megabytes"))
    grown = [(n**expected - size[0] ** expected, more - megabytes[0]) for n, more in zip(size, megabytes, strict=True)]
    seen = [pair for pair in grown if pair[1] > GROWTH]
    memory = expected * exponent(*map(list, zip(*seen, strict=True))) if len(seen) > 1 else None
    return {"seconds": exponent(size, seconds), "megabytes": memory}


def said(what: str, curve: Mapping[str, Any]) -> str:
    """An exponent beside the expected one, in words."""
    found = curve["exponents"][what]
    return f"{what} {'hardly grow' if found is None else format(found, '.2f')} for {curve['expected'][what]}"


def main() -> None:
    """Read the command line and measure."""
    if sys.argv[1:2] == ["--point"]:
        print(json.dumps(point(sys.argv[2], int(sys.argv[3]))), flush=True)
        os._exit(0)  # a training in a thread may have steps left
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(CURVES), choices=list(CURVES))
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    curves = {}
    for name in arguments.only:
        _, sizes, _, time, memory = CURVES[name]
        points = []
        for size in sizes:
            command = [sys.executable, __file__, "--point", name, str(size)]
            points.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        own = {"points": points, "expected": {"seconds": time, "megabytes": memory}}
        own["exponents"] = exponents(points, memory)
        curves[name] = own
        print(f"{name}: {', '.join(said(what, own) for what in own['expected'])}", flush=True)
        if arguments.output:
            options = [] if arguments.only == list(CURVES) else ["--only", *arguments.only]
            keep(arguments.output, __file__, options, curves=curves)


if __name__ == "__main__":
    main()
