"""What a training gives."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
from numpyro.infer.svi import SVIState


class FitResult(NamedTuple):
    """What a training leaves.

    Attributes:
        params: trained values (constrained) of every ``numpyro.param`` site, by name.
        losses: negative ELBO of every step that led to ``params``, ``[num_steps]``, in nats; minibatch estimates where
            there are minibatches.
        state: NumPyro's state, from which ``svi.update`` can go on.
        seconds: wall time of the steps, compilation included, over all resumptions.
        expectations: how each likelihood site's expectation was computed: ``"closed form"``, ``"quadrature"`` or
            ``"draw"``; with ``" given draws of h"`` where the likelihood depends on draws of the latent site ``h``,
            over which it was not integrated.

    Of several trainings (see :func:`fit`), ``params``, ``losses`` and ``state`` have a leading axis; the losses of one
    that failed are NaN from the step on that is not kept.
    """

    params: dict[str, Any]
    losses: np.ndarray
    state: SVIState
    seconds: float
    expectations: dict[str, str]

    def member(self, k: int) -> FitResult:
        """The result of training ``k`` of several; ``seconds`` are those of all.

        Raises:
            ValueError: if this is the result of one training.
            IndexError: if there are not so many.
        """
        if self.losses.ndim < 2:
            raise ValueError("This is the result of one training, which has no members.")
        losses = self.losses[k]  # arrays on the device would take the last member where k is too large
        params, state = jax.tree.map(lambda x: x[k], (self.params, self.state))
        return self._replace(params=params, losses=losses, state=state)
