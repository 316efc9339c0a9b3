"""Programs that one process compiled are read by the next, give the same bits, and come from nobody else."""

import json
import os
import stat
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from gpzoo import _compiled

PROGRAM = """
import json, jax, numpy as np, numpyro, numpyro.distributions as dist, optax
from jax import monitoring
from numpyro.infer import SVI
from gpzoo import GaussianProcess, kernels, kmeans
from gpzoo.inference import GaussianProcessELBO, InducingGuide, Trained, fit, marginal
from gpzoo.likelihoods import Gaussian

found = {"hits": 0, "misses": 0}
def count(event, **kwargs):
    for name in found:
        found[name] += event == f"/jax/compilation_cache/cache_{name}"
monitoring.register_event_listener(count)
X = np.linspace(0, 3, 30, dtype=np.float32)[:, None]
y, key = np.sin(X[:, 0]), jax.random.key(0)
float(jax.numpy.sum(jax.numpy.asarray(X)))  # JAX has compiled before

def program(X, y=None):  # several sites of each kind, which no set may put into an order of its own
    a, b, c, noise = (numpyro.sample(name, dist.LogNormal(0, 0.1)) for name in ("a", "b", "c", "noise"))
    trend = numpyro.sample("trend", GaussianProcess(kernels.RBF(a, b), X))
    rest = numpyro.sample("rest", GaussianProcess(kernels.Matern32(a, c), X))
    numpyro.sample("y", Gaussian(trend + rest, noise), obs=y)

svi = SVI(program, InducingGuide(program, kmeans(4)), optax.adam(0.01), GaussianProcessELBO())
trained = fit(key, svi, 5, X, y, progress=False)
draws = {name: np.full((1, 4), 0.7, np.float32) for name in ("a", "b", "c", "noise")}
found_bits = [trained.losses]
for each in (trained, Trained.of_draws(key, draws, X, y, program=marginal(program))):
    found_bits.append(np.asarray(each.predict(key, X)["trend"].mean))
    found_bits.append(each.to_arviz(key, X, y, num_draws=4)["posterior"]["rest"].values)
bits = "".join(x.tobytes().hex() for x in found_bits)
print(json.dumps(found | {"folder": jax.config.jax_compilation_cache_dir, "bits": bits}))
"""


def run(**variables):
    environment = {name: x for name, x in os.environ.items() if not name.startswith("JAX_")} | variables
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_what_was_compiled_is_kept_for_the_next_process(tmp_path):
    first, second = (run(GPZOO_COMPILED=str(tmp_path), PYTHONHASHSEED=seed) for seed in ("1", "2"))
    assert first["misses"] > 20
    assert second["misses"] == 0
    assert first["bits"] == second["bits"]
    folder = tmp_path / "compiled"
    assert first["folder"].startswith(str(folder)) and not list(folder.rglob("*.running"))
    assert stat.S_IMODE(next(folder.iterdir()).stat().st_mode) == 0o700
    without = run(GPZOO_COMPILED="off")
    assert without["folder"] is None and without["bits"] == first["bits"]


@pytest.fixture
def asked(monkeypatch):
    """A process that has not been asked yet; its JAX has no folder, and is told of none."""
    told = {}
    config = SimpleNamespace(jax_compilation_cache_dir=None, jax_enable_compilation_cache=True, update=told.__setitem__)
    monkeypatch.setattr(_compiled, "jax", SimpleNamespace(config=config))
    monkeypatch.setattr(_compiled.atexit, "register", lambda *args, **kwargs: None)
    monkeypatch.setattr("jax.experimental.compilation_cache.compilation_cache.reset_cache", lambda: None)
    return lambda: (_compiled.keep_compiled.__wrapped__(), told.get("jax_compilation_cache_dir"))[1]


def test_a_folder_that_others_may_write_to_is_not_used(asked, monkeypatch, tmp_path):
    monkeypatch.setenv(_compiled.VARIABLE, str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.warns(UserWarning, match="belongs to somebody else"):
        assert asked() is None


def test_a_folder_that_cannot_be_made_is_done_without(asked, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv(_compiled.VARIABLE, str(tmp_path / "file"))
    assert asked() is None


def test_leftovers_of_killed_processes_and_the_oldest_programs_are_removed(asked, monkeypatch, tmp_path):
    monkeypatch.setenv(_compiled.VARIABLE, str(tmp_path))
    folder = asked()
    now = time.time()
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for name, age in (("old-cache", 300), ("new-cache", 200), (f"{dead.pid}.running", 100), ("half-cache", 50)):
        path = os.path.join(folder, name)
        with open(path, "wb") as file:
            file.write(b"x" * 10)
        os.utime(path, (now - age, now - age))
    asked()
    left = {name for name in os.listdir(folder) if not name.startswith(str(os.getpid()))}
    assert left == {"old-cache", "new-cache"}
    monkeypatch.setattr(_compiled, "_MOST", 15)
    asked()
    left = {name for name in os.listdir(folder) if not name.startswith(str(os.getpid()))}
    assert left == set() or left == {"new-cache"}
