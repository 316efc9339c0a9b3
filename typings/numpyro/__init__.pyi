"""NumPyro's primitives as a program sees them while a handler runs it.

NumPyro's own annotations say what holds outside handlers as well: a parameter may be ``None``, and a draw a number of
Python. No program is run there, so that none need ask. The modules are NumPyro's; of its other names only those that
gpzoo uses are here.
"""

from collections.abc import Callable
from typing import Any, TypeVar, overload

import numpyro.distributions as distributions
import numpyro.handlers as handlers
import numpyro.infer as infer
from jax import Array
from numpyro.distributions import Distribution
from numpyro.primitives import module, plate
from numpyro.util import enable_x64
from numpyro.version import __version__

__all__ = [
    "__version__",
    "deterministic",
    "distributions",
    "enable_x64",
    "handlers",
    "infer",
    "module",
    "param",
    "plate",
    "prng_key",
    "sample",
]

T = TypeVar("T")

# A GP site's value may also be its marginals, which stand for an array of draws and do what programs do with one.
@overload
def sample(name: str, fn: Distribution, obs: None = None, *, infer: dict[str, Any] | None = None) -> Array: ...
@overload
def sample(name: str, fn: Distribution, obs: T, *, infer: dict[str, Any] | None = None) -> T: ...

# A start is an array, a pytree of arrays, or a function of a key that returns one; the value is of the start's kind.
@overload
def param(name: str, init_value: Callable[[Array], T], **kwargs: Any) -> T: ...
@overload
def param(name: str, init_value: T, **kwargs: Any) -> T: ...
def deterministic(name: str, value: T) -> T: ...
def prng_key() -> Array: ...
