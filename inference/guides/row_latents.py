"""Posteriors of a latent variable of every row: with parameters for each row, or by a network that sees the row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import Array
from numpyro.distributions import constraints

from gpzoo import _checks as checks
from gpzoo._types import ArrayLike


class PerRow:
    """``q(x_n) = N(m_n, diag(s_n^2))`` with separate parameters for every row of the training data.

    The program's first argument must be the row numbers, from 0, so that any batch finds its parameters. Pass the
    object as ``InducingGuide(..., hyperparameters=PerRow({"x": start}))``. A site ``x`` has the parameters ``x_loc``
    and ``x_scale``, each with the shape of ``start["x"]``. Rows that were not trained have no parameters, and the guide
    refuses them. :func:`~gpzoo.inference.infer_rows` finds parameters for them.

    Example:
        >>> import jax, numpy as np
        >>> from functools import partial
        >>> from gpzoo import InducingPoints
        >>> from gpzoo.inference import InducingGuide, PerRow
        >>> from gpzoo.models import gplvm
        >>> start = np.random.default_rng(0).standard_normal((10, 2)).astype(np.float32)
        >>> program = partial(gplvm, num_outputs=3)
        >>> guide = InducingGuide(program, InducingPoints(start[:5]), hyperparameters=PerRow({"x": start}))
        >>> params = guide.init_params(jax.random.key(0), np.arange(10), np.zeros((10, 3), np.float32))
        >>> params["x_loc"].shape, params["x_scale"].shape
        ((10, 2), (10, 2))

    Args:
        start: initial means by site, ``[num_data, ...]``. The support of each site must be the real numbers.
        scale: initial standard deviation.

    Raises:
        ValueError: if a start has no rows or is not finite. When the guide is used, for row numbers out of range.
        TypeError: if ``start`` is not a mapping. When the guide is used, if the first argument is not integers.
    """

    def __init__(self, start: Mapping[str, ArrayLike], *, scale: float = 0.1) -> None:
        if not isinstance(start, Mapping) or not start:
            raise TypeError(
                f'start must give initial means by the name of the site, {{"x": means}}; got {start!r:.80}.'
            )
        self.start = {name: checks.floating(f"start[{name!r}]", value) for name, value in start.items()}
        for name, value in self.start.items():
            checks.not_empty(f"start[{name!r}]", value)
            checks.finite(f"start[{name!r}]", value)
        self.scale = checks.positive_number("scale", scale)

    def __call__(self, program: Callable) -> Callable:
        """The guide for a program of these sites."""

        def guide(rows: Array, *args: Any, **kwargs: Any) -> None:
            for name, start in self.start.items():
                loc = numpyro.param(f"{name}_loc", start)
                scale = numpyro.param(
                    f"{name}_scale", jnp.full_like(start, self.scale), constraint=constraints.softplus_positive
                )
                # A training checks only a sample of its rows. NaN for an unknown row ends the training. The last row's
                # values, which JAX would take, would not end it.
                at = jnp.where(rows < 0, len(start), rows)
                m, s = (x.at[at].get(mode="fill", fill_value=jnp.nan) for x in (loc, scale))
                numpyro.sample(name, dist.Normal(m, s).to_event(start.ndim - 1))

        return guide

    def check(self, *args: Any) -> None:
        """Outside ``jit``, refuse arguments of a program if the first one is not the numbers of existing rows."""
        rows: Any = args[0] if args else None
        if rows is None or jnp.ndim(rows) != 1 or not jnp.issubdtype(jnp.result_type(rows), jnp.integer):
            raise TypeError(
                "PerRow finds latents by the numbers of the rows: the program's first argument must be integers [N]; "
                f"got {'nothing' if rows is None else f'{jnp.result_type(rows)}{list(jnp.shape(rows))}'}."
            )
        for name, start in self.start.items():
            low, high = int(jnp.min(rows)), int(jnp.max(rows))
            if low < 0 or high >= len(start):
                raise ValueError(
                    f"PerRow holds {len(start)} rows of site {name!r}, from 0, and is given rows {low} to {high}: rows "
                    "that were not trained have no latents. infer_rows(rng_key, trained, start, *args) finds them."
                )


class Amortised:
    """``q(x_n) = N(m, diag(s^2))`` with a mean and standard deviations that a network computes from the row.

    The network also gives posteriors for rows that training has not seen. Pass the object as
    ``InducingGuide(..., hyperparameters=Amortised("x", network))``.

    Example:
        >>> import jax, jax.numpy as jnp, numpy as np, numpyro
        >>> from functools import partial
        >>> from gpzoo import InducingPoints
        >>> from gpzoo.inference import Amortised, InducingGuide
        >>> from gpzoo.models import gplvm
        >>> def network(rows, y=None, **kwargs):
        ...     if y is not None:
        ...         return rows @ numpyro.param("weights", jnp.ones((3, 4)))  # two means, and two standard deviations
        >>> y = np.zeros((10, 3), np.float32)
        >>> points = InducingPoints(np.random.default_rng(0).standard_normal((5, 2)).astype(np.float32))
        >>> program = partial(gplvm, num_outputs=3)
        >>> guide = InducingGuide(program, points, hyperparameters=Amortised("x", network))
        >>> "weights" in guide.init_params(jax.random.key(0), y, y)
        True

    Args:
        site: name of the latent site. Its support must be the real numbers.
        network: ``network(*args, **kwargs)`` takes the program's arguments and returns ``[N, 2 Q]`` for a site with
            ``Q`` entries in a row: the means, and numbers that softplus turns into standard deviations. It declares its
            own parameters, as :func:`~gpzoo.models.network_of` does. If it returns ``None``, for example without ``y``,
            the latent site is drawn from its prior.

    Raises:
        ValueError: at a call, if the result of the network does not have this shape.
    """

    def __init__(self, site: str, network: Callable[..., Array | None]) -> None:
        if not isinstance(site, str) or not callable(network):
            raise TypeError(f"Amortised takes the name of a site and a network, got {site!r:.40} and {network!r:.40}.")
        self.site, self.network = site, network

    def __call__(self, program: Callable) -> Callable:
        """The guide for a program of this site."""

        def guide(*args: Any, **kwargs: Any) -> None:
            features = self.network(*args, **kwargs)
            if features is None:
                return program(*args, **kwargs)
            if jnp.ndim(features) != 2 or features.shape[1] % 2:
                raise ValueError(
                    f"The network of Amortised({self.site!r}, ...) must return [N, 2 Q], means and scales of Q numbers "
                    f"for each row; it returned {list(jnp.shape(features))}."
                )
            mean, scale = jnp.split(features, 2, axis=1)
            numpyro.sample(self.site, dist.Normal(mean, jax.nn.softplus(scale) + 1e-6).to_event(1))

        return guide
