"""The check that results are finite: entry points return only finite numbers."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions.distribution import validation_enabled

from gpzoo._checks import OutOfRange, is_concrete
from gpzoo.errors import FactorisationError, NonFiniteError

#: Words for numbers that are log densities; for impossible data they are minus infinity.
LOG_DENSITIES = "log densities"


def is_finite(values: Any) -> bool:
    """Whether numbers on the host are all finite; integers always are."""
    values = np.asarray(values)
    # A sum is not finite if an entry is not, and needs no array of booleans. But it may also overflow by itself.
    with np.errstate(over="ignore", invalid="ignore"):
        return not np.issubdtype(values.dtype, np.floating) or bool(
            np.isfinite(values.sum()) or np.isfinite(values).all()
        )


def all_finite(tree: Any) -> bool:
    """Whether all numbers of a pytree are finite; arrays that ``jit`` traces, and random keys, are ignored."""
    leaves = [x for x in jax.tree.leaves(tree) if is_concrete(x) and not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)]
    return all(map(is_finite, leaves))


def refuse_not_finite(
    site: str, what: str, values: Any, processes: Collection[str], run: Callable[[], Any] | None = None
) -> None:
    """Refuse to return numbers that are not finite.

    Args:
        site: name of the site of these numbers.
        what: kind of these numbers, such as ``"draws"``; :data:`LOG_DENSITIES` may be minus infinity.
        values: the numbers, on the host.
        processes: names of the GP sites.
        run: runs the guide or program outside ``jit``, where a failed factorisation raises its own error.

    Raises:
        FactorisationError: naming the site, if the covariance of this site or of a different GP site is at fault.
        ValueError: naming the site, in two cases. Its distribution refuses data whose density was asked for, or a
            parameter of the distribution or of a kernel is out of range.
        NonFiniteError: naming the site, otherwise.
    """
    if what == LOG_DENSITIES:
        values = np.where(values == -np.inf, 0, values)
    if is_finite(values):
        return
    cause = None
    try:
        if run is not None:
            with validation_enabled(False):  # NumPyro's own refusals name neither site nor value
                run()
            run()
    except FactorisationError:
        raise
    except OutOfRange as error:
        raise ValueError(f"Site {site!r}: {error}") from error
    except Exception as error:  # a distribution may refuse these numbers too
        cause = error
    if what == LOG_DENSITIES and isinstance(cause, ValueError):  # data outside the support
        raise ValueError(f"Site {site!r}: {cause}") from cause
    bad = ~np.isfinite(values)
    first = tuple(int(i) for i in np.argwhere(bad)[0])
    text = f"{int(bad.sum())} of {bad.size} {what} of site {site!r} are not finite ({values.dtype}, first {first})"
    if site in processes:
        raise FactorisationError(
            f"{text}, of shape {bad.shape}. A covariance did not factorise: use fewer or distinct inducing inputs, "
            "GaussianProcess(jitter=...), shorter lengthscales, or float64 (numpyro.enable_x64()). Or inputs are "
            "outside the box of a HilbertSpace kernel or the interval of InducingFourier, or off the sphere of "
            "InducingHarmonics."
        ) from cause
    raise NonFiniteError(
        f"{text}, although all GP sites are finite: its distribution overflows there. Check its link function and "
        "parameters, "
        "or use float64 (numpyro.enable_x64())."
    ) from cause
