"""What a process holds after 100 different programs: each is trained for 50 steps and predicts, and is then forgotten.

Four kernels, two likelihoods, and other numbers of inducing inputs, so that each is compiled anew. Said are megabytes
after imports and then after every 20 programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from data import regression
from peer import main, work

CASES = {"100 programs": {"whole": True, "programs": 100, "peers": [], "pairs": 1}}


def held() -> float:
    """Memory of this process now, in MB."""
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) / 1024


def run(case: Mapping[str, Any]) -> dict[str, Any]:
    """One program after another."""
    import jax
    import optax
    from numpyro.infer import SVI

    from gpzoo import kernels, kmeans
    from gpzoo.inference import GaussianProcessELBO, InducingGuide, fit
    from gpzoo.models import gp_classification, gp_regression, positive

    X, y = regression(200, "float32")
    megabytes = [held()]
    for i in range(case["programs"]):
        kind = (kernels.RBF, kernels.Matern12, kernels.Matern32, kernels.Matern52)[i % 4]

        def kernel(name: str, X: Any, kind: Any = kind) -> Any:
            return kind(positive("variance", 1.0, X), positive("lengthscale", np.ones(X.shape[1]), X))

        base, data = (gp_regression, y) if i % 8 < 4 else (gp_classification, (y > 0).astype(np.int32))
        model = partial(base, kernel=kernel)
        svi = SVI(model, InducingGuide(model, kmeans(5 + i)), optax.adam(0.01), GaussianProcessELBO())
        fit(jax.random.key(i), svi, 50, X, data, progress=False).predict(jax.random.key(i), X)
        if (i + 1) % 20 == 0:
            megabytes.append(held())
    return {"megabytes": megabytes, "above_imports": megabytes[-1] - megabytes[0]}


if __name__ == "__main__":
    work({"gpzoo": run}) or main(__doc__, {"programs": CASES}, __file__)
