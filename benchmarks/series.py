"""Values and gradients of time series in float64, by state-space forms.

The log evidence of a Matern-3/2 plus a damped oscillator in noise, at times that are drawn at random, beside tinygp's
quasiseparable solver: derivatives by two variances, a lengthscale, a frequency, a quality and the noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from peer import Timed, main, work
from steps import values_by_jax, versions_of

DTYPE = "float64"

CASES = {
    f"{rows:,} rows": {"rows": rows, "dtype": DTYPE, "peers": ["tinygp"]} for rows in (1000, 10_000, 100_000, 1_000_000)
}

LOGS = {"variance": 0.0, "lengthscale": 1.0, "height": -1.0, "frequency": -1.0, "quality": 1.0, "noise": -2.0}


def data(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Ten rows a unit of time, at random, in order."""
    rng = np.random.default_rng(0)
    times = np.sort(rng.uniform(0, rows / 10, rows))
    return times[:, None], np.sin(times) + 0.4 * rng.standard_normal(rows)


def gpzoo_steps(case: Mapping[str, Any]) -> Timed:
    """Ours, ``marginal(program, state_space=True)`` by NumPyro's ``log_density``."""
    import jax.numpy as jnp
    import numpyro
    from numpyro.infer.util import log_density

    from gpzoo import GaussianProcess
    from gpzoo.inference import marginal
    from gpzoo.kernels import SHO, Matern32
    from gpzoo.likelihoods import Gaussian

    numpyro.enable_x64(True)

    def value(logs: Mapping[str, Any], X: Any, y: Any) -> Any:
        at = {name: jnp.exp(x) for name, x in logs.items()}

        def program(X: Any, y: Any) -> None:
            kernel = Matern32(at["variance"], at["lengthscale"]) + SHO(at["height"], at["frequency"], at["quality"])
            numpyro.sample("y", Gaussian(numpyro.sample("f", GaussianProcess(kernel, X)), at["noise"]), obs=y)

        return log_density(marginal(program, state_space=True), (X, y), {}, {})[0]

    logs = {name: jnp.asarray(x) for name, x in LOGS.items()}
    return values_by_jax(value, logs, *data(case["rows"]), versions=versions_of("jax", "numpyro"))


def tinygp_steps(case: Mapping[str, Any]) -> Timed:
    """tinygp, whose oscillator has an angular frequency and a standard deviation."""
    import jax
    import jax.numpy as jnp
    import tinygp
    from tinygp.kernels import quasisep

    jax.config.update("jax_enable_x64", True)

    def value(logs: Mapping[str, Any], X: Any, y: Any) -> Any:
        at = {name: jnp.exp(x) for name, x in logs.items()}
        kernel = quasisep.Matern32(scale=at["lengthscale"], sigma=jnp.sqrt(at["variance"]))
        kernel += quasisep.SHO(2 * jnp.pi * at["frequency"], at["quality"], jnp.sqrt(at["height"]))
        return tinygp.GaussianProcess(kernel, X, diag=at["noise"], assume_sorted=True).log_probability(y)

    X, y = data(case["rows"])
    logs = {name: jnp.asarray(x) for name, x in LOGS.items()}
    return values_by_jax(value, logs, X[:, 0], y, versions=versions_of("tinygp", "jax"))


STEPS = {"gpzoo": gpzoo_steps, "tinygp": tinygp_steps}

if __name__ == "__main__":
    work(STEPS) or main(__doc__, {"series": CASES}, __file__)
