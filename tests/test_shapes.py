"""Are the shapes in annotations checked while the tests run?"""

import importlib
import inspect
import pkgutil

import jax.numpy as jnp
import jaxtyping
import pytest

from gpzoo.inducing import InducingPoints
from gpzoo.inference.fitted.quantiles import mixture_quantiles
from gpzoo.kernels.stationary import squared_distance
from gpzoo.likelihoods.quadrature import weighted_sum
from gpzoo.linalg import matmul
from gpzoo.posteriors.conditional import mean_at
from gpzoo.processes.marginals import standard_deviation
from gpzoo.views._warp import affine_matrix
from tests.conftest import CHECKED

WRONG = {
    "linalg": (lambda: matmul(jnp.ones((2, 3)), jnp.ones((2, 3))), "parameter 'B'"),
    "views": (lambda: affine_matrix(jnp.ones(5)), "parameter 'parameters'"),
    "kernels": (lambda: squared_distance(jnp.ones((3, 1)), jnp.ones((4, 2))), "parameter 'Z'"),
    "inducing": (lambda: InducingPoints(jnp.ones((3, 1))).of(lambda X: X[:, 0]), "the return value"),
    "processes": (lambda: standard_deviation(jnp.arange(3)), "parameter 'variance'"),
    "posteriors": (lambda: mean_at(jnp.ones((2, 3)), jnp.ones((4, 1))), "parameter 'm'"),
    "inference": (lambda: mixture_quantiles(jnp.ones((2, 3)), jnp.ones((2, 4)), (0.5,)), "parameter 'variance'"),
    "likelihoods": (lambda: weighted_sum(jnp.ones(2), jnp.ones((3, 4))), "parameter 'values'"),
}


@pytest.mark.slow  # quick tests run without the checks
@pytest.mark.parametrize("folder", CHECKED)
def test_a_wrong_shape_is_refused(folder):
    call, what = WRONG[folder]
    with pytest.raises(jaxtyping.TypeCheckError, match=what):
        call()


def test_every_shape_can_be_read():
    """One that names what its module does not have would be passed over without a word."""
    read = 0
    for folder in CHECKED:
        package = importlib.import_module(f"gpzoo.{folder}")
        for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            module = importlib.import_module(found.name)
            classes = [x for x in vars(module).values() if inspect.isclass(x) and x.__module__ == found.name]
            for member in [x for owner in (module, *classes) for x in vars(owner).values()]:
                function = inspect.unwrap(member.fget if isinstance(member, property) else member)
                if inspect.isfunction(function) and function.__module__ == found.name:
                    shapes = [hint for hint in function.__annotations__.values() if "[Array" in str(hint)]
                    read += len([eval(hint, function.__globals__) for hint in shapes])
    assert read > 600
