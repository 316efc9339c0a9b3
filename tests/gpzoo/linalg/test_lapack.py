"""LAPACK on a CPU: no program waits for itself, whatever it factorises, and SciPy's BLAS has one thread."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.linalg import solve_triangular

import gpzoo.linalg  # noqa: F401  prepares LAPACK


def lines_of(code: str, **variables: str) -> list[str]:
    """What a process prints that has two minutes."""
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env=environment | variables, capture_output=True, text=True, timeout=120, check=False
    )
    assert not done.returncode, done.stderr
    return done.stdout.split()


FACTORISED = """
import jax, jax.numpy as jnp
import gpzoo.linalg

def several(factorise):
    def program(a):
        return [factorise(a + i * jnp.eye(10)) for i in range(6)]
    return jax.jit(program)

a = jnp.broadcast_to(2 * jnp.eye(10), (1000, 10, 10))
for factorise in (jnp.linalg.cholesky, jnp.linalg.eigh, jnp.linalg.inv):
    program = several(factorise)
    for _ in range(300 if factorise is jnp.linalg.cholesky else 3):
        jax.block_until_ready(program(a))
print("ended")
"""

DRAWN = """
import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
from numpyro.infer import Predictive
from gpzoo import GaussianProcess
from gpzoo.kernels import RBF

def program(X):
    for i in range(6):
        lengthscale = numpyro.sample(f"lengthscale_{i}", dist.LogNormal())
        numpyro.sample(f"f_{i}", GaussianProcess(RBF(1.0, lengthscale), X))

draws = jax.jit(Predictive(program, num_samples=2000, parallel=True))
for seed in range(20):
    jax.block_until_ready(draws(jax.random.key(seed), jnp.arange(10.0)[:, None]))
print("ended")
"""


@pytest.mark.slow
@pytest.mark.parametrize("code", [FACTORISED, DRAWN], ids=["batches", "draws"])
def test_several_batches_of_factorisations_end_on_two_threads(code):
    """A batch that is split over XLA's threads is waited for on one of them: two of them would wait for each other."""
    assert lines_of(code, NPROC="2") == ["ended"]


FACTORISATIONS = {
    "cholesky": lambda A: jnp.linalg.cholesky(A, symmetrize_input=False),
    "solve lower": lambda A: solve_triangular(A, A[..., :7], lower=True),
    "eigh": lambda A: jnp.linalg.eigh(A)[0],
    "inv": jnp.linalg.inv,
    "qr": lambda A: jnp.linalg.qr(A, mode="r"),
    "svd": lambda A: jnp.linalg.svd(A, compute_uv=False),
}


@pytest.mark.slow_but(batch=[(2, 3), (0,)])
@pytest.mark.parametrize("factorise", FACTORISATIONS.values(), ids=FACTORISATIONS)
@pytest.mark.parametrize("batch, rows", [((), 60), ((2, 3), 60), ((23,), 60), ((0,), 60), ((4001,), 10)])
def test_a_batch_is_its_matrices_one_by_one(factorise, batch, rows):
    """Side by side, in a loop, and in a loop of groups, each with a rest."""
    root = np.random.default_rng(0).standard_normal((*batch, rows, rows))
    A = jnp.asarray(root @ np.swapaxes(root, -1, -2) + rows * np.eye(rows))
    found = jax.jit(factorise)(A)
    some = np.ndindex(batch) if np.prod(batch) < 100 else [(0,), (2000,), (4000,)]
    alone = jax.jit(factorise)
    for i in some:
        np.testing.assert_allclose(found[i], alone(A[i]), rtol=1e-12, atol=1e-12)
    assert found.shape[: len(batch)] == batch


def test_a_failed_factor_of_a_batch_is_nan_and_the_others_are_not():
    A = jnp.stack([jnp.eye(60), -jnp.eye(60), jnp.eye(60)])
    np.testing.assert_array_equal(jnp.isnan(jnp.linalg.cholesky(A)).any((1, 2)), [False, True, False])


THREADS = """
import scipy.linalg, threadpoolctl
from pathlib import Path
threadpoolctl.threadpool_limits(3)
import gpzoo.kernels, numpy
for library in threadpoolctl.threadpool_info():
    if library["user_api"] == "blas":
        print(Path(library["filepath"]).parent.name.partition(".")[0], library["num_threads"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("named, threads", [({}, "1"), ({"OPENBLAS_NUM_THREADS": "3"}, "3")])
def test_the_blas_that_jax_borrows_has_one_thread_or_what_the_user_named(named, threads):
    found = lines_of(THREADS, **named)
    found = dict(zip(found[::2], found[1::2], strict=True))
    if "scipy" not in found or "numpy" not in found:
        pytest.skip(f"NumPy and SciPy have no BLAS each, as in their wheels: {found}")
    assert found == {"scipy": threads, "numpy": "3"}
