"""Programs whose GP sites are known at other inputs, or at inducing variables."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from gpzoo import linalg
from gpzoo._checks import outside
from gpzoo._numpyro import Messenger
from gpzoo.errors import PrecisionWarning
from gpzoo.inducing.variables import InducingPoints, InducingVariable
from gpzoo.inference.fitted.map_batches import Batch
from gpzoo.inference.programs.gp_sites import SiteMode, Use
from gpzoo.inference.programs.rows import Layout, number_of_rows
from gpzoo.inference.programs.runs import Runs, parts_of_plates, run, unmasked
from gpzoo.posteriors.conditional import OnValues
from gpzoo.posteriors.forms import Diagonal
from gpzoo.posteriors.posterior import InducingPosterior
from gpzoo.processes.process import GaussianProcess

#: Rounding errors up to this size cause no warning. Sorted inputs have less than half of it.
_MOST_LOST = 0.08


class Given(NamedTuple):
    """Values on which a GP site is conditioned.

    Attributes:
        inducing: the inducing variable.
        u: value of the inducing variable, without the mean of the site.
        factor: the Cholesky factor of the prior covariance of ``u``, and the inverse of this factor; ``None`` if they
            must still be computed.
        lost: approximate rounding error of the posterior mean, in posterior standard deviations; 0 if the kernel has no
            white noise.
    """

    inducing: InducingVariable
    u: Float[Array, "M *D"]
    factor: tuple[Any, Any] | None = None
    lost: Float[Array, ""] | float = 0.0


def given_at(name: str, site: Mapping[str, Any]) -> Given:
    """The value that a GP site has in one run, at the inputs of the site in this run."""
    prior: GaussianProcess = unmasked(site["fn"])
    projection = OnValues(prior, InducingPoints(prior.X), whiten=False, site=name)
    value = (jnp.asarray(site["value"]) - prior.mean).reshape(-1, *prior.event_shape[1 + (prior.in_row is not None) :])
    return Given(projection.inducing, value, (projection.L, projection.L_inverse), _lost(projection, value))


def _lost(projection: OnValues, value: Float[Array, "M *D"]) -> Float[Array, ""] | float:
    kernel, X = projection.prior.kernel, projection.prior.X
    if kernel.split_noise()[1] is None:
        return 0.0
    weights = projection.weights(value if value.ndim == 2 else value[:, None])
    # A pivot is the variance of a row given the rows before it and the noise. It is close to the posterior variance.
    rounding = float(jnp.finfo(X.dtype).eps) * jnp.max(kernel.diag(X))
    left = jnp.min(jnp.square(linalg.diagonal(projection.L)) - kernel.noise_diag(X))
    errors = rounding * jnp.max(jnp.linalg.norm(weights, axis=0))
    return errors / jnp.sqrt(jnp.maximum(left, rounding))


def warn_if_lost(given: Mapping[str, Given]) -> None:
    """Warn of observed GP sites with large rounding errors of the posterior mean, in posterior standard deviations."""
    for name, site in given.items():
        if (lost := float(jnp.max(site.lost))) > _MOST_LOST:
            warnings.warn(
                f"The posterior of GP site {name!r} is lost in the rounding errors of {site.u.dtype}: its mean may be "
                f"off by {2 * lost:.1g} of its standard deviations, because noise is small beside the variance. "
                "Compute in float64 (numpyro.enable_x64()), or subtract the means of inputs and data, where a "
                "constant or linear kernel of large variance is to hold their level.",
                PrecisionWarning,
                stacklevel=outside(),
            )


@dataclass(frozen=True, kw_only=True)
class GivenProgram:
    """A program whose latent sites have values from a guide or from samples.

    Attributes:
        model: the program.
        guide: guide of the program; ``None`` if samples are given.
        inducing: the inducing variable of each GP site that has samples of ``u``, named ``<site>_u``.
    """

    model: Callable
    guide: Any = None
    inducing: Mapping[str, InducingVariable] = field(default_factory=dict)

    def given_u(self, samples: Mapping[str, Any]) -> dict[str, Given]:
        """Values of the sites that are conditioned on samples of ``u``."""
        return {name: Given(inducing, samples[f"{name}_u"]) for name, inducing in self.inducing.items()}

    def run(
        self,
        key: PRNGKeyArray,
        batch: Batch,
        values: Mapping[str, Any],
        given: Mapping[str, Given],
        *,
        guide_mode: SiteMode,
        given_mode: SiteMode | None = None,
        drawn_as: Callable[[str], Layout | None] = lambda _: None,
        model: Callable | None = None,
    ) -> Runs:
        """A run of the guide and the program.

        Args:
            key: random key.
            batch: arguments of the program.
            values: values of parameters and latent sites, by name.
            given: values on which GP sites are conditioned, by name.
            guide_mode: gives the values of the guide's GP sites.
            given_mode: gives the values of conditioned sites; ``None`` draws them jointly.
            drawn_as: a function of the name of a site. If the program uses the site as an array, the function returns
                which inputs are drawn together. Otherwise, it returns ``None``.
            model: a program to run in place of this one.

        Raises:
            ValueError: if the program itself takes a random part of the rows.
        """
        program = self.model if model is None else model
        if given:
            program = _Conditioned(program, given, drawn_as, given_mode or SiteMode())
            values = {name: x for name, x in values.items() if name not in given}
        of: dict[str, Any] = {"guide": self.guide, "model": program, "values": values}
        runs, rows = run(key, batch.args, batch.kwargs, **of, mode=guide_mode), number_of_rows(batch.args)
        for name, (size, taken) in parts_of_plates(runs.model).items():
            if taken < size == rows:
                raise ValueError(
                    f"Plate {name!r} takes {taken} of the {rows} rows at random, so nobody knows which rows a "
                    "prediction is of. Give the program all rows here, and its minibatches by fit(batch_size=...)."
                )
        return runs


class _Conditioned(Messenger):
    """The program with ``p(f | u)`` in place of the prior of GP sites; see :meth:`GivenProgram.run`."""

    def __init__(self, model: Callable, given: Mapping[str, Given], drawn_as: Callable, mode: SiteMode) -> None:
        super().__init__(model)
        self.given, self.drawn_as, self.mode = given, drawn_as, mode

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] != "sample" or msg["name"] not in self.given:
            return
        name, (inducing, u, factor, _) = msg["name"], self.given[msg["name"]]
        projection = OnValues(msg["fn"], inducing, whiten=False, site=name, factor=factor)
        posterior = InducingPosterior(projection, u, Diagonal(jnp.zeros_like(u)))
        msg["fn"] = self.mode.posterior(posterior, Use(self.drawn_as(name)))
        msg["value"], msg["is_observed"] = None, False
