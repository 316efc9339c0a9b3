"""Trained models for BoTorch: ensembles of functions drawn from the posterior, with gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from gpzoo import _checks as checks
from gpzoo._extras import needs
from gpzoo._types import ArrayLike
from gpzoo.inference import Trained
from gpzoo.inference.fitted.functions import Draw, draws_of, values_of_draw
from gpzoo.inference.guides.guide import InducingGuide
from gpzoo.inference.programs.finite import refuse_not_finite
from gpzoo.inference.programs.gp_sites import BatchRows

with needs("botorch", "A model for BoTorch"):
    import torch
    from botorch.exceptions.errors import UnsupportedError
    from botorch.models.ensemble import EnsembleModel
    from botorch.posteriors.ensemble import EnsemblePosterior
    from botorch.sampling.base import MCSampler
    from botorch.sampling.get_sampler import GetSampler
    from torch.autograd.function import once_differentiable

__all__ = ["FunctionsModel"]

#: Number of function values whose features are in memory at the same time.
_AT_ONCE = 2**15


class FunctionsModel(EnsembleModel):
    """A trained model for BoTorch: an ensemble of functions drawn from the posterior of the trained model.

    A member of the ensemble is one function, the same for all points. Monte Carlo acquisition functions, of one or
    several points, are means over functions and have gradients. They use the functions in turn, in the same order for
    all candidates. Analytic acquisition functions use the mean and the variance of the functions.

    Functions have no noise. The number of points is padded to 8, 16, 32, ..., so that few shapes are compiled. Models
    with the same guide and outputs use the same compiled programs, even after another training.

    Example:
        >>> import jax, numpy as np, torch
        >>> from numpyro.infer import SVI
        >>> from gpzoo import random_subset
        >>> from gpzoo.adapters.botorch import FunctionsModel
        >>> from gpzoo.inference import CollapsedELBO, InducingGuide, fit, lbfgs
        >>> from gpzoo.models import gp_regression
        >>> X = np.linspace(0, 6, 8, dtype=np.float32)[:, None]
        >>> svi = SVI(gp_regression, InducingGuide(gp_regression, random_subset(8)), lbfgs(), CollapsedELBO())
        >>> trained = fit(jax.random.key(0), svi, 10, X, np.sin(X[:, 0]), progress=False)
        >>> model = FunctionsModel(jax.random.key(1), trained, X)
        >>> posterior = model.posterior(torch.rand(5, 3, 1))
        >>> posterior.values.shape, posterior.mean.shape
        (torch.Size([5, 128, 3, 1]), torch.Size([5, 3, 1]))

    Args:
        rng_key: key of the functions: member ``s`` is ``trained.functions(rng_key, ..., num_features=...)["f"][s]``.
        trained: the result of :func:`~gpzoo.inference.fit`.
        X: inputs ``[N, d]`` of the program, such as the training inputs. The first row gives shape and dtype.
        outputs: name of a GP site, whose values are ``[N]`` or ``[N, m]`` with ``m`` outputs. ``None`` means the only
            GP site. Instead of a name, give a JAX function that receives the values of all sites by name and returns
            such an array, row by row. For example, ``lambda f: 3.0 + 2.0 * f["f"]`` returns to the scale of the data.
        num_draws: number of functions ``S``. By default, acquisition functions use 512 samples. With fewer functions
            than samples, each function is used several times. This is faster, but the estimate is coarser.
        num_features: see :meth:`~gpzoo.inference.Trained.functions`. The covariance over functions is exact for any
            number of features. So many functions with few features are better than few functions with many features.
        model_kwargs: the program's keyword arguments, by name.

    Raises:
        TypeError: for a ``trained`` that is not a :class:`~gpzoo.inference.Trained`, and as for
            :meth:`~gpzoo.inference.Trained.functions`; in a call, for integer points.
        ValueError: for an unknown site, for several sites if ``outputs`` is ``None``, for values that are not ``[N]``
            or ``[N, m]``, and as for :meth:`~gpzoo.inference.Trained.functions`; in a call, for points that do not have
            ``d`` columns.
        FactorisationError: if the covariance of a site has no Cholesky factor; the message names the site.
        UnsupportedError: BoTorch's error, for a posterior with observation noise.
    """

    def __init__(
        self,
        rng_key: Array,
        trained: Trained,
        X: ArrayLike,
        outputs: str | Callable[[dict[str, Array]], Array] | None = None,
        *,
        num_draws: int = 128,
        num_features: int = 64,
        model_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        checks.instance("trained", trained, Trained, "what fit returns")
        for name, count in {"num_draws": num_draws, "num_features": num_features}.items():
            checks.positive_int(name, count)
        subject = trained._bind((X,), model_kwargs)
        inputs, guide = checks.floating("X", *subject.args), subject.guide
        checks.refuse(inputs.ndim != 2, f"X must be inputs [N, d], got shape {inputs.shape}.")
        names = sorted(guide.sites.processes)
        if outputs is None:
            checks.refuse(len(names) > 1, f"The program has the GP sites {names}: name one by outputs=.")
            outputs = names[0]
        if not callable(outputs):
            checks.one_of("outputs", outputs, names)
        static = tuple(sorted(subject.static.items()))
        self._of = _Of(guide, outputs, num_features, static)
        self._first, self._arrays, self._params = inputs[:1], subject.arrays, subject.params
        self._draws = draws_of(rng_key, subject, num_draws)
        self._misfits = _misfits(self._of, self._params, self._draws, self._first, self._arrays)
        for site, numbers in self._misfits.items():
            again = partial(self._of.values, self._params, jax.tree.map(lambda x: x[0], self._draws))
            run = partial(again, self._first, self._arrays, {})
            refuse_not_finite(site, "values of functions", np.asarray(numbers), guide.sites.processes, run)
        self._chosen = list(range(self._at(np.asarray(self._first), False)[0].shape[-1]))

    @property
    def num_outputs(self) -> int:
        """Number of outputs ``m``."""
        return len(self._chosen)

    @property
    def batch_shape(self) -> torch.Size:
        """Empty, because this is one model."""
        return torch.Size()

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        """Values of the functions ``[*batch, S, q, m]`` at points ``[*batch, q, d]``."""
        d = self._first.shape[1]
        checks.refuse(not X.is_floating_point(), f"X must be floating-point numbers, got {X.dtype}.", TypeError)
        checks.refuse(X.ndim < 2 or X.shape[-1] != d, f"X must be [..., q, {d}], got shape {tuple(X.shape)}.")
        values = _Values.apply(X.reshape(-1, d), self)[..., self._chosen]
        return values.reshape(len(values), *X.shape[:-1], self.num_outputs).movedim(0, -3)

    def posterior(
        self,
        X: torch.Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | torch.Tensor = False,
        posterior_transform: Any = None,
    ) -> FunctionsPosterior:
        """See :meth:`botorch.models.model.Model.posterior`; a transform applies to each function."""
        if observation_noise is not False:
            raise UnsupportedError("FunctionsModel has functions without noise: leave out observation_noise.")
        values = super().posterior(X, output_indices).values
        if posterior_transform is not None:
            transformed = posterior_transform.evaluate(values)
            values = transformed if transformed.ndim == values.ndim else transformed.unsqueeze(-1)
        return FunctionsPosterior(values)

    def subset_output(self, idcs: list[int]) -> FunctionsModel:
        """The model of some outputs; see :meth:`botorch.models.model.Model.subset_output`."""
        subset = copy(self)
        subset._chosen = [self._chosen[i] for i in idcs]
        return subset

    def _at(self, X: np.ndarray, slopes: bool) -> tuple[np.ndarray, ...]:
        """Values ``[S, N, m]`` and, if asked for, slopes ``[S, m, N, d]``."""
        size = 8
        while size < len(X):
            size *= 2
        padded = np.zeros((size, X.shape[1]), self._first.dtype)
        padded[: len(X)] = X
        values, *pulled = _at(self._of, slopes, self._params, self._draws, padded, self._arrays, self._misfits)
        return values[:, : len(X)], *(x[:, :, : len(X)] for x in pulled)


class FunctionsPosterior(EnsemblePosterior):
    """Values of functions; a sampler uses the functions in turn."""


class _EachFunction(MCSampler):
    def forward(self, posterior: FunctionsPosterior) -> torch.Tensor:
        members = posterior.values.movedim(-3, 0)
        each = torch.arange(self.sample_shape.numel(), device=members.device) % len(members)
        return members[each].reshape(posterior._extended_shape(self.sample_shape))

    def _update_base_samples(self, posterior: FunctionsPosterior, base_sampler: MCSampler) -> None:
        """Do nothing, because there are no base samples."""


@GetSampler.register(FunctionsPosterior)
def _(posterior: FunctionsPosterior, sample_shape: torch.Size, *, seed: int | None = None) -> MCSampler:
    return _EachFunction(sample_shape, seed)


class _Values(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, X: torch.Tensor, model: FunctionsModel) -> torch.Tensor:
        arrays = model._at(X.detach().cpu().numpy(), ctx.needs_input_grad[0])
        values, *slopes = (torch.as_tensor(np.array(x)).to(X) for x in arrays)
        ctx.save_for_backward(*slopes)
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: torch.Tensor) -> tuple[torch.Tensor, None]:
        return torch.einsum("snm,smnd->nd", cotangent, *ctx.saved_tensors), None


class _Of(NamedTuple):
    """Everything on which a compiled program depends."""

    guide: InducingGuide
    outputs: str | Callable[[dict[str, Array]], Array]
    num_features: int
    static: tuple[tuple[str, Any], ...]

    def values(self, params: dict, draw: Draw, X: Array, arrays: dict, misfits: dict[str, Array]) -> Array:
        """Values ``[N, m]`` of one function."""
        rows, kwargs = BatchRows(jnp.arange(len(X)), len(X), {}), arrays | dict(self.static)
        options = {"num_features": self.num_features, "misfits": misfits}
        by_site = values_of_draw(self.guide, params, draw, rows, (X,), kwargs, **options)
        values = self.outputs(by_site) if callable(self.outputs) else by_site[self.outputs]
        fits = values.shape[:1] == (len(X),) and values.ndim in (1, 2)
        checks.refuse(not fits, f"outputs must be [N] or [N, m] for N rows, got {values.shape} for {len(X)}.")
        return values.reshape(len(X), -1)


@partial(jax.jit, static_argnums=0)
def _misfits(of: _Of, params: dict, draws: Draw, X: Array, arrays: dict) -> dict[str, Array]:
    """The parts of all functions, by site, that do not depend on the points."""

    def of_draw(draw: Draw) -> dict[str, Array]:
        misfits: dict[str, Array] = {}
        of.values(params, draw, X, arrays, misfits)
        return misfits

    return jax.lax.map(of_draw, draws, batch_size=_AT_ONCE // 256)


@partial(jax.jit, static_argnums=(0, 1))
def _at(of: _Of, slopes: bool, params: dict, draws: Draw, X: Array, arrays: dict, misfits: dict) -> tuple[Array, ...]:
    def of_draw(pair: tuple[Draw, dict[str, Array]]) -> tuple[Array, ...]:
        draw, own = pair
        at = lambda x: of.values(params, draw, x, arrays, dict(own))  # noqa: E731
        if not slopes:
            return (at(X),)
        values, pull = jax.vjp(at, X)
        # Values of a row depend only on that row.
        ones = jnp.broadcast_to(jnp.eye(values.shape[1], dtype=values.dtype)[:, None], (values.shape[1], *values.shape))
        return values, jax.vmap(lambda one: pull(one)[0])(ones)

    return jax.lax.map(of_draw, (draws, misfits), batch_size=max(1, _AT_ONCE // len(X)))
