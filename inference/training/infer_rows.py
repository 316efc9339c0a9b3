"""Latent variables of new rows: their parameters are trained, and all other parameters are held fixed."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

import optax
from jax import Array
from numpyro.infer import SVI

from gpzoo._types import Argument, ArrayLike
from gpzoo.inference.bounds.elbo import GaussianProcessELBO
from gpzoo.inference.fitted.trained import Trained
from gpzoo.inference.guides.row_latents import PerRow
from gpzoo.inference.programs.calls import entry_point
from gpzoo.inference.training.fit import fit


@entry_point
def infer_rows(
    rng_key: Array,
    trained: Trained,
    start: Mapping[str, ArrayLike],
    *args: Argument,
    num_steps: int = 500,
    optimizer: optax.GradientTransformation | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
) -> Trained:
    """Find the latent variables of new rows; all other parameters stay as they are.

    Example:
        >>> import jax, numpy as np
        >>> from functools import partial
        >>> from gpzoo import InducingPoints
        >>> from gpzoo.inference import InducingGuide, PerRow, Trained, infer_rows
        >>> from gpzoo.models import gplvm
        >>> start = np.random.default_rng(0).standard_normal((10, 2)).astype(np.float32)
        >>> program = partial(gplvm, num_outputs=3)
        >>> guide = InducingGuide(program, InducingPoints(start[:5]), hyperparameters=PerRow({"x": start}))
        >>> y = np.zeros((10, 3), np.float32)
        >>> trained = Trained(program, guide, guide.init_params(jax.random.key(0), np.arange(10), y))
        >>> new, guess = y[:2], {"x": np.zeros((2, 2), np.float32)}
        >>> placed = infer_rows(jax.random.key(1), trained, guess, np.arange(2), new, num_steps=5)
        >>> placed.params["x_loc"].shape
        (2, 2)

    Args:
        rng_key: key of the training.
        trained: a model whose guide has :class:`~gpzoo.inference.PerRow`.
        start: initial means of the new rows, see :class:`~gpzoo.inference.PerRow`.
        *args: the program's positional arguments: the numbers of the new rows, ``0`` to ``N - 1``, and their data.
        num_steps: number of steps, on all new rows.
        optimizer: any optax optimiser; ``None`` for Adam with a rate of 0.05.
        model_kwargs: the program's keyword arguments, by name.

    Returns:
        A model of the new rows, which predicts at these rows. The loss of each step is the negative bound of the rows'
        log density, plus the divergence of ``q(u)``.

    Raises:
        ValueError: if the guide has no ``PerRow``, for several trainings, and for the reasons of
            :func:`~gpzoo.inference.fit`.
    """
    guide = trained._usable_guide()
    old = guide.hyperparameters
    if not isinstance(old, PerRow) or set(start) != set(old.start):
        raise ValueError(
            "infer_rows takes a model trained with InducingGuide(..., hyperparameters=PerRow(...)) and a start for "
            f"each of its sites, {sorted(old.start) if isinstance(old, PerRow) else 'which this one is not'}."
        )
    found: Any = copy(guide)
    found.hyperparameters, found._hyperparameter_guide = PerRow(start, scale=old.scale), None
    own = {f"{name}_{part}" for name in start for part in ("loc", "scale")}
    held = {name: x for name, x in trained.params.items() if name not in own}
    parts: dict[Any, Any] = {True: optimizer or optax.adam(0.05), False: optax.set_to_zero()}
    only_own = optax.partition(parts, lambda params: {name: name in own for name in params})
    svi = SVI(trained.model, found, only_own, GaussianProcessELBO())
    return fit(rng_key, svi, num_steps, *args, init_params=held, progress=False, model_kwargs=model_kwargs)
