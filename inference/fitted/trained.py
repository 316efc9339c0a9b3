"""A trained model: predictions, functions, posteriors, exports, new data, a file."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro import handlers
from numpyro.infer import MCMC
from numpyro.infer.svi import SVIState

from gpzoo import _checks as checks
from gpzoo._platform import refuse_fork
from gpzoo._types import Argument, ArrayLike
from gpzoo.errors import NonFiniteError
from gpzoo.inference.bounds.marginal import marginal
from gpzoo.inference.fitted import saved as _saved
from gpzoo.inference.fitted.export import Exporting, chains_of, drawn_alone, exported
from gpzoo.inference.fitted.functions import one_function, values_of_functions
from gpzoo.inference.fitted.map_batches import Batch, BatchFunction, BoundModel
from gpzoo.inference.fitted.nuts import nuts
from gpzoo.inference.fitted.predict import Predicting, predictions
from gpzoo.inference.fitted.summaries import SitePrediction
from gpzoo.inference.fitted.updating import updated
from gpzoo.inference.guides.draws import LAWS, LEFT_OUT, DrawsGuide
from gpzoo.inference.guides.guide import InducingGuide
from gpzoo.inference.guides.handler import variable_of
from gpzoo.inference.guides.more_inducing import extended
from gpzoo.inference.guides.options import Inducing, for_site
from gpzoo.inference.guides.same_program import refuse_other_program
from gpzoo.inference.programs import files
from gpzoo.inference.programs.arguments import arguments, refuse_other_columns, refuse_unknown
from gpzoo.inference.programs.arrays import split_arrays
from gpzoo.inference.programs.calls import entry_point, traceable_entry_point
from gpzoo.inference.programs.finite import all_finite
from gpzoo.inference.programs.labelled import (
    columns_of,
    described_columns,
    in_order_of_rows,
    labels_of,
    rows_of_test_data,
    unlabelled,
)
from gpzoo.inference.programs.program import look
from gpzoo.inference.training.sources import described_arguments, described_options


@dataclass(frozen=True, eq=False)
class Trained:
    """A program, its guide, and the values of their parameters: the result of :func:`~gpzoo.inference.fit`.

    ``Trained(model, guide, params)`` makes a trained model from parameters that NumPyro's own ``svi.run`` found. The
    methods keep compiled programs for later calls. As under ``jax.jit``, the first call fixes everything that the
    program does not read from its arguments.

    If there are several trainings (see :func:`~gpzoo.inference.fit`), ``params``, ``losses`` and ``state`` have a
    leading axis of trainings. :meth:`member` gives one training, and the other methods work on one training. If a
    training failed, its losses are NaN from the first step that was not kept.

    Example:
        >>> import jax, numpy as np, numpyro
        >>> from numpyro.infer import SVI
        >>> from gpzoo import kmeans
        >>> from gpzoo.inference import GaussianProcessELBO, InducingGuide, Trained
        >>> from gpzoo.models import gp_regression
        >>> X = np.linspace(0, 6, 50, dtype=np.float32)[:, None]
        >>> guide = InducingGuide(gp_regression, kmeans(8))
        >>> svi = SVI(gp_regression, guide, numpyro.optim.Adam(0.05), GaussianProcessELBO())
        >>> found = svi.run(jax.random.key(0), 5, X, np.sin(X[:, 0]), progress_bar=False)
        >>> trained = Trained(gp_regression, guide, found.params)
        >>> trained.functions(jax.random.key(1), X, num_draws=4, num_features=64)["f"].shape
        (4, 50)

    Attributes:
        model: the program.
        guide: the guide of the program. All methods except ``member`` need an
            :class:`~gpzoo.inference.InducingGuide` that has seen data.
        params: constrained values of every ``numpyro.param`` site, and mutable state, by name.
        losses: negative ELBO of every step that led to ``params``, ``[num_steps]``, in nats. With minibatches these are
            minibatch estimates. The array is empty if :func:`~gpzoo.inference.fit` did not train the model.
        state: NumPyro's state, from which ``svi.update`` can continue, or ``None``.
        seconds: wall time of the steps, compilation included, summed over all resumptions.
        expectations: how each likelihood site's expectation was computed: ``"closed form"``, ``"quadrature"`` or
            ``"draw"``. If latent sites were drawn, and not integrated out, the text names them: ``"draw of f"``,
            ``"closed form given draws of h"``.
        backed_off: for each site with natural gradients, the number of steps that were shortened, because the full step
            lowered the bound or led to an invalid covariance. :meth:`save` keeps neither this nor ``state``.
        data: description of the training data: type, shape and sha256 of every array, by name. It is empty if the
            training failed.
    """

    model: Callable
    guide: Any
    params: Mapping[str, Any] = field(repr=False)
    losses: np.ndarray = field(default_factory=lambda: np.zeros(0), repr=False)
    state: SVIState | None = field(default=None, repr=False)
    seconds: float = 0.0
    expectations: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict, repr=False)
    backed_off: Mapping[str, Any] = field(default_factory=dict)
    _compiled: dict[tuple, Any] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        # Compiled programs cannot leave their process, so a copy compiles its own.
        return vars(self) | {"_compiled": {}}

    def member(self, k: int) -> Trained:
        """Training ``k`` of several; ``seconds`` is the time of all trainings.

        Raises:
            ValueError: if this is one training.
            IndexError: if there are fewer trainings.
        """
        if self.losses.ndim < 2:
            raise ValueError("This is the result of one training, which has no members.")
        losses = self.losses[k]  # on the device, a ``k`` that is too large would give the last member and no error
        params, state, backed_off = jax.tree.map(lambda x: x[k], (self.params, self.state, dict(self.backed_off)))
        return replace(self, params=params, losses=losses, state=state, backed_off=backed_off)

    def with_params(self, params: Mapping[str, Any]) -> Trained:
        """The same model and guide with other parameters, such as the parameters that ``fit`` gives to a callback.

        The new model shares the compiled programs of this model.
        """
        return Trained(self.model, self.guide, params, data=described_columns(self.data), _compiled=self._compiled)

    @classmethod
    @entry_point
    def of_draws(
        cls,
        rng_key: Array,
        draws: MCMC | Mapping[str, ArrayLike],
        *args: Argument,
        program: marginal | None = None,
        num_draws: int = 100,
        params: Mapping[str, Any] | None = None,
        leave_out: Any = None,
        model_kwargs: Mapping[str, Any] | None = None,
    ) -> Trained:
        """A model from draws of hyperparameters, with the distribution of the functions given each draw and the data.

        ``Trained.of_draws(key, nuts(key, marginal(program), X, y), X, y)`` predicts, draws functions and exports like
        any other trained model. :meth:`to_arviz` keeps the chains of the draws.

        :meth:`predict` averages over the draws of hyperparameters. For each draw, it uses the moments of the functions
        given this draw and the data. For Gaussian noise, the moments are exact. For any other noise, they are the mode
        and the covariance of Laplace's approximation. With inducing variables, all moments belong to the sparse
        model. ``of_draws`` factorises the covariance of the data once for each draw.

        :meth:`functions` and exports use joint draws of the functions, one for each draw of hyperparameters. These
        draws are kept at the inducing variables, or at the inputs if there are none. In two cases, :meth:`predict` uses
        these joint draws in place of moments, and its results have Monte Carlo noise:

        * the data depend on several outputs together (``f @ A``, Softmax);
        * the moments would need more than 1 GiB (a warning says so).

        Args:
            rng_key: key of the draws of functions.
            draws: the result of :func:`~gpzoo.inference.nuts`, or ``MCMC(NUTS(marginal(program)))`` after its run. Or
                draws of hyperparameters by site name, ``[chains, draws, ...]`` or ``[draws, ...]``, such as a part of
                ``mcmc.get_samples()``, or draws from one of NumPyro's guides. ``of_draws`` computes deterministic sites
                again.
            *args: positional arguments of the program, data included.
            program: the marginal program. ``None`` means the program of the ``MCMC``. Another program can have a larger
                jitter, for example.
            num_draws: number of draws of functions if there are no hyperparameters to draw, ``draws={}``.
            params: values of the ``numpyro.param`` sites, if there are any.
            leave_out: blocks of rows to leave out together. Give a label for each row, such as its group, or a list of
                arrays of row numbers. The arrays may overlap: for example, each array can have all rows after some
                time. A Series of labels goes by its index. :meth:`to_arviz` then writes the density of each block given
                all other data. With ``None``, it writes the density of each row given all other data. With ``False``,
                or if these densities take more than 1 GiB, it writes ``log p(y_n | f_n)`` instead.
            model_kwargs: keyword arguments of the program, by name.

        Raises:
            TypeError: for a program that is not marginal.
            ValueError: if draws are not all ``[chains, draws, ...]`` or all ``[draws, ...]``, miss a site, or have
                other shapes than their sites.
            FactorisationError: if, at some draw, the distribution of the functions given the data is not found. If only
                the prior's covariance has no factor (with Gaussian noise), a ``PrecisionWarning`` names these draws:
                :meth:`functions` and :meth:`to_arviz` then need a larger jitter.
        """
        own: Any = draws
        if isinstance(draws, MCMC):
            program, own = program or draws.sampler.model, draws.get_samples(group_by_chain=True)
        wanted = "marginal(program); a program whose GP site is the data is asked by predict(key, program, X_new, "
        wanted += "posterior_samples=mcmc.get_samples(), train_args=(X, y))"
        of: Any = checks.instance("program", program, marginal, wanted)
        given, fn = jax.tree.map(jnp.asarray, checks.parameters("params", params or {})), of.fn
        columns, shape = columns_of(fn, args), (1, checks.positive_int("num_draws", num_draws))
        given_args, (args, kwargs) = args, arguments(fn, args, model_kwargs)
        own = checks.named("draws", drawn_alone(own, look(fn, args, kwargs, given, arrays=True)))
        if own:
            shape, own = chains_of("draws", own)
        leave_out = _blocks(fn, given_args, leave_out)
        known = of.draws_of_sites(rng_key, own, given_args, shape[1], given, model_kwargs, leave_out)
        found = known.get("values", {})
        checks.refuse(not found, "The program has no latent GP sites: nothing is integrated out.")
        guide = DrawsGuide(fn, of.variables_of(found))
        sites = guide.sites_for(args, kwargs)
        refuse_unknown("draws", own, sites.latents - sites.processes, "program's latent sites that are no GPs")
        found |= {f"{name}_loc": own[name] for name in sites.latents - sites.processes}
        found |= {LAWS: known["laws"], LEFT_OUT: known["left_out"]}
        stacked = jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), found)
        return cls(fn, guide, given | stacked, data=_described(fn, args, kwargs) | columns)

    @entry_point
    def predict(
        self,
        rng_key: Array,
        *new: Argument,
        test_data: Mapping[str, ArrayLike] | None = None,
        num_draws: int | None = None,
        quantiles: Sequence[float] | None = None,
        keep_draws: bool = False,
        mean_only: bool = False,
        parts: Mapping[str, Sequence[str]] | None = None,
        batch_size: int | None = None,
        train_args: tuple[Argument, ...] | None = None,
        train_kwargs: Mapping[str, Any] | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
    ) -> dict[str, SitePrediction]:
        """Predict every GP site and every data site at new inputs.

        Likelihoods integrate over the marginals of ``f`` if the program allows it. Some programs need draws: of the
        inner layers of a deep GP, or of hyperparameters with a posterior. The result is then the mixture over draws.
        Its variance follows from the law of total variance, and its density is the mean of the draws' densities
        (Salimbeni and Deisenroth 2017, eq. 18). In a model from :meth:`of_draws`, each draw of hyperparameters has the
        moments of ``f`` given this draw and the data.

        The draws of a row depend on ``rng_key`` and on the position of the row in the whole input. Draws of latent
        variables of rows also depend on the batch. Sampled views (of invariant kernels) are drawn once, by ``rng_key``,
        and are the same for all inputs.

        Discrete latent sites are predicted too: they are drawn from their prior, and ``probs`` has the probabilities of
        their ``K`` values, ``[N, K]``. If each row has its own discrete sites, the density of its test data is a sum
        over their values. A chain of discrete sites begins anew at the first new row.

        ``predict`` finds out from the program which sites have one row, or several rows (patches), for each row of the
        inputs. These sites are predicted in batches. Other sites, such as a site at inputs from ``model_kwargs``, are
        the same in every batch. ``predict`` refuses several batches if one row of a site depends on several rows of the
        inputs.

        For draws of functions that are joint over the inputs, use :meth:`functions`. At up to a few thousand inputs,
        :class:`numpyro.infer.Predictive` with the same guide also gives joint draws.

        Args:
            rng_key: key of the draws.
            *new: the model's positional arguments at the new inputs, one row per input; or one xarray Dataset. The
                result then has the coordinates of the Dataset in place of rows. Columns with names are matched by name.
            test_data: observed values by site name, one for each row of the site, for ``log_density``. If test data and
                inputs have labels, rows are matched by label.
            num_draws: number of draws of the sites that must be drawn; programs without such sites need one pass.
                ``None``: 100, or all draws of a model from :meth:`of_draws`.
            quantiles: probabilities, such as ``(0.05, 0.5, 0.95)``. GP sites and Gaussian data sites have the quantiles
                of the mixture of Gaussians over draws. All other sites have the quantiles of draws: of ``num_draws``,
                or of at least 1,000 if ``num_draws`` is ``None`` and ``keep_draws`` is false.
            keep_draws: whether to return draws of every GP site and data site. If some sites must be drawn, there is
                one value for each of these draws. Otherwise, there are ``num_draws`` values. The draws are independent
                over inputs. To draw data sites, the program runs on one row at a time, except with
                ``InducingGuide(joint=...)``.
            parts: names for the addends of GP sites, such as ``{"f": ("trend", "season")}`` if the kernel of ``f`` is a
                sum of two. The addends are then predicted too, under these names. Each addend has its exact moments
                given the data, or given the inducing variables of the sum. White noise is not an addend. No addend
                contains the prior's mean.
            mean_only: whether to leave out variances, which take most of the work of a sparse GP. Variances are still
                computed for results that need them: class probabilities, and draws of the inner layers of a deep GP.
            batch_size: rows at a time. It changes only rounding and the draws of latent variables of rows. ``None``:
                1,000. If there are more than 20,000 rows, and no row has more than 100 numbers: 20,000, or 2,000 for
                quantiles without ``num_draws`` and ``keep_draws``.
            train_args: the positional arguments of training, for observed GP sites (exact GP regression). These sites
                are conditioned on their data.
            train_kwargs: the keyword arguments of training, with ``train_args``; ``model_kwargs`` unless given.
            model_kwargs: the model's keyword arguments, by name.

        Returns:
            A :class:`SitePrediction` for each GP site and each data site, by name.

        Raises:
            TypeError: for data that are not real numbers, an ``rng_key`` that is not a key, or a guide that is not an
                ``InducingGuide``.
            ValueError: in these cases:

                * data are not finite, or arguments have different numbers of rows;
                * ``test_data`` has unknown names;
                * parameters are missing, unknown or of another shape, or the guide has not seen data;
                * with the keyword arguments, the program has other sites than the guide;
                * there is an observed GP site, and no ``train_args``;
                * there are several batches, and the guide draws a site jointly;
                * there are several batches, and rows of a site do not correspond to rows of the inputs;
                * ``quantiles`` are not between 0 and 1;
                * ``mean_only`` is combined with ``quantiles``, ``keep_draws`` or ``test_data``.
            FactorisationError: naming the GP site whose covariance does not factorise at these parameters.
            NonFiniteError: naming a site whose prediction is not finite for another reason.
        """
        labels, model = labels_of(self.model, new), self._bind(new, model_kwargs)
        if test_data is not None:
            test_data = rows_of_test_data(self.model, new, test_data, self.data)
        if isinstance(train_args, tuple):
            train_args = unlabelled(self.model, train_args, self.data)
        options = Predicting(
            train_args=train_args,
            train_kwargs=train_kwargs,
            test_data=test_data,
            num_draws=num_draws,
            quantiles=quantiles,
            keep_draws=keep_draws,
            mean_only=mean_only,
            parts=parts,
            batch_size=batch_size,
        )
        found = predictions(model, checks.rng_key(rng_key), options)
        if labels is not None:
            of_rows = _with_parts(model.site_rows.one_per_row, parts) & found.keys()
            found |= {name: found[name].labelled(labels) for name in of_rows}
        return found

    @entry_point
    def functions(
        self,
        rng_key: Array,
        *new: Argument,
        num_draws: int | None = None,
        num_features: int = 2048,
        parts: Mapping[str, Sequence[str]] | None = None,
        batch_size: int = 1000,
        model_kwargs: Mapping[str, Any] | None = None,
    ) -> dict[str, np.ndarray]:
        """Draw functions from the posterior of every GP site, and evaluate them at inputs, batch by batch.

        Draw ``s`` is one function through the whole program. It is fixed by ``rng_key`` and ``s``: it is the same for
        any inputs and, up to rounding, for any batches. In a deep GP, the functions of all layers are composed. By
        Matheron's rule (Wilson et al. 2020, *Efficiently sampling functions from Gaussian process posteriors*, eq. 13),

        ``f(x) = g(x) + Kfu Kuu^-1 (u - g(Z))``, ``u ~ q(u)``,

        where ``g`` is a function from the prior, drawn by random Fourier features. The time is linear in the number of
        inputs. At up to a few thousand inputs, :class:`numpyro.infer.Predictive` draws jointly without features, for
        any kernel.

        White noise in a kernel is not a function. It is drawn for each row, by the row's number in the whole input.

        Args:
            rng_key: key of the draws.
            *new: the model's positional arguments at the inputs, one row per input.
            num_draws: number of functions ``S``. ``None``: 100, or all draws of a model from :meth:`of_draws` if it has
                fewer.
            num_features: number of random features of each addend of each kernel. The covariance over draws is exact
                for any number. A single draw has fixed frequencies, and its covariance has an error of
                ``O(num_features^-1/2)``.
            parts: names for the addends of GP sites, as in :meth:`predict`. The values of the addends add up to the
                values of the site without the prior's mean and white noise.
            batch_size: rows at a time.
            model_kwargs: the model's keyword arguments, by name.

        Returns:
            The values of each latent GP site, and of each part, by name, ``[S, N]`` or ``[S, N, D]``.

        Raises:
            FactorisationError: naming a site whose covariance does not factorise.
            TypeError: naming a kernel without a known spectral density (:meth:`gpzoo.kernels.Kernel.frequencies`), or
                inducing variables without values for a function (:meth:`gpzoo.InducingVariable.of`); for data that are
                not real numbers, an ``rng_key`` that is not a key, or a guide that is not an ``InducingGuide``.
            ValueError: for counts below one; data that are not finite; arguments with different numbers of rows; a
                guide that has not seen data; parameters that are missing, unknown or of another shape; in several
                batches, sites that the guide draws jointly.
        """
        labels, model = labels_of(self.model, new), self._bind(new, model_kwargs)
        num_draws = self._number_of_functions(num_draws)
        options: Any = {"num_draws": num_draws, "num_features": num_features, "batch_size": batch_size}
        found = values_of_functions(model, rng_key, parts=parts, **options)
        if labels is not None:
            of_rows = _with_parts(model.site_rows.one_per_row, parts) & found.keys()
            found |= {name: labels.labelled(found[name], ("draw",)) for name in of_rows}
        return found

    @traceable_entry_point
    def function(
        self, rng_key: Array, draw: int = 0, *, num_features: int = 2048, model_kwargs: Mapping[str, Any] | None = None
    ) -> Callable[..., dict[str, Array]]:
        """One draw of :meth:`functions` as a function of JAX, for ``jax.grad``, ``jax.jit`` and optimisers.

        ``function = trained.function(key)``, then ``jax.grad(lambda x: function(x[None])["f"][0])(x)``.

        Args:
            rng_key: key of the draws.
            draw: the number of the draw; draw ``s`` is ``trained.functions(key, X)["f"][s]``.
            num_features: see :meth:`functions`.
            model_kwargs: the model's keyword arguments, by name.

        Returns:
            A function of the model's positional arguments that returns the values of each latent GP site by name.

        Raises:
            ValueError: for a negative ``draw``, a count below one, or a guide that has not seen data. A call of the
                function raises the errors of :meth:`functions`. Under ``jit``, values are not checked, and there is no
                ``FactorisationError``.
            TypeError: see :meth:`functions`.
        """
        options = {"num_features": num_features, "described": self.data}
        return one_function(rng_key, self._guide_with_sites(), self.params, draw, model_kwargs, **options)

    @traceable_entry_point
    def posterior(
        self, rng_key: Array, *args: Argument, model_kwargs: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The distributions of the latent sites at the model's inputs: ``{site: distribution}``.

        GP sites give an :class:`~gpzoo.InducingPosterior` (``.mean``, ``.variance``, ``.inducing_moments()``).

        Args:
            rng_key: random key. It draws the sites on which later sites of the program depend, and the sampled views of
                kernels. With the same key, :meth:`predict` uses the same views.
            *args: the model's positional arguments.
            model_kwargs: the model's keyword arguments, by name.

        Raises:
            TypeError: for data that are not real numbers, an ``rng_key`` that is not a key, or a guide that is not an
                ``InducingGuide``.
            ValueError: for parameters that are missing, unknown or of another shape.
        """
        rng_key, model = checks.rng_key(rng_key), self._bind(args, model_kwargs, seen=False)
        guide = model.guide

        def posteriors(key: Array, batch: Batch) -> dict[str, Any]:
            return guide.posteriors(key, batch.params, batch.args, batch.kwargs)

        compiled = model.compiled_for(BatchFunction("posterior", posteriors, draws_together=0))
        found = compiled(rng_key, model.batch())
        # The error can name the site that is not finite only outside jit.
        return found if all_finite(found) else posteriors(rng_key, model.batch())

    @entry_point
    def hyperparameters(
        self,
        rng_key: Array,
        *args: Argument,
        sparse: str = "vfe",
        num_warmup: int = 500,
        num_samples: int = 500,
        num_chains: int = 4,
        progress: bool | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
    ) -> MCMC:
        """The posterior of hyperparameters by NUTS, with GP sites integrated out at their inducing variables.

        If a guide makes hyperparameters independent of the functions, its posterior of hyperparameters is too narrow,
        often by a factor of several. The posterior from NUTS is the posterior of ``marginal(program, inducing)``, and
        is not too narrow. The inducing variables, and ``numpyro.param`` sites of the program such as networks, keep
        their trained values.

        Args:
            rng_key: key of the draws.
            *args: the model's positional arguments with all training data.
            sparse: see :class:`~gpzoo.inference.marginal`.
            num_warmup: see :func:`~gpzoo.inference.nuts`.
            num_samples: see :func:`~gpzoo.inference.nuts`.
            num_chains: see :func:`~gpzoo.inference.nuts`.
            progress: see :func:`~gpzoo.inference.nuts`.
            model_kwargs: the model's keyword arguments, by name.

        Returns:
            The MCMC after its run, for ``mcmc.print_summary()``. ``Trained.of_draws(key, mcmc, X, y)`` makes a model
            with these draws.

        Raises:
            ValueError: for a program whose latent sites are all GPs; see also :func:`~gpzoo.inference.nuts` and
                :class:`~gpzoo.inference.marginal`.
            TypeError: see :class:`~gpzoo.inference.marginal`.
        """
        guide, args = self._guide_with_sites(), unlabelled(self.model, args, self.data)
        sites = guide.sites
        others = "The program has no latent sites but GP sites: give its hyperparameters priors by numpyro.sample."
        checks.refuse(not sites.latents - sites.processes, others)
        checks.refuse(isinstance(guide, DrawsGuide), "These are draws of hyperparameters already, of Trained.of_draws.")
        counts: Any = {"num_warmup": num_warmup, "num_samples": num_samples, "num_chains": num_chains}
        return nuts(rng_key, self._marginal(sparse), *args, **counts, progress=progress, model_kwargs=model_kwargs)

    def _marginal(self, sparse: str) -> marginal:
        """The program at its trained parameters, with GP sites integrated out at their inducing variables."""
        guide, params, inducing = self.guide, self.params, {}
        for name in guide.sites.processes:
            guide.form_at(name)  # refuses a guide without inducing variables of its own
            kind = for_site(guide.inducing, name)
            inducing[name] = variable_of(kind, params[f"{name}_inducing"]) if f"{name}_inducing" in params else kind
        fixed = {name: params[name] for name in guide.sites.parameters if name in params}
        return marginal(handlers.substitute(self.model, data=fixed), inducing, sparse=sparse)

    @entry_point
    def left_out(
        self,
        *args: Argument,
        leave_out: Any = None,
        sparse: str = "vfe",
        model_kwargs: Mapping[str, Any] | None = None,
    ) -> dict[str, np.ndarray]:
        """``log p(y_n | y_-n)``, the density of every row given all other rows, at the trained hyperparameters.

        These densities have a closed form, from one factorisation (Rasmussen and Williams 2006, eq. 5.10 to 5.12). GP
        sites are integrated out at their inducing variables, with the best ``q(u)`` without the row. If noise is not
        Gaussian, Laplace's approximation is used, without the terms of the row (Vehtari et al. 2016). The
        hyperparameters and the inducing variables were trained on all data. For a model from :meth:`of_draws`,
        :meth:`to_arviz` exports these densities for each draw of hyperparameters. With them, ``az.loo`` also leaves
        rows out of the posterior of the hyperparameters.

        Args:
            *args: the model's positional arguments with all training data.
            leave_out: see :meth:`of_draws`. The part of a function that inducing variables miss is treated row by row.
            sparse: see :class:`~gpzoo.inference.marginal`.
            model_kwargs: the model's keyword arguments, by name.

        Returns:
            Log densities by data site, in nats, ``[N]``, or one for each block. If noise is not Gaussian, the log
            density of a block is the sum of the log densities of its rows.

        Raises:
            ValueError: for hyperparameters with a posterior of their own; see also :class:`~gpzoo.inference.marginal`.
            TypeError: see :class:`~gpzoo.inference.marginal`.
            FactorisationError: if the distribution of a GP site is not found.
            NonFiniteError: if some rows have no density because of rounding.
        """
        model = self._bind(args, model_kwargs, new=False)
        guide, params = model.guide, model.params
        leave_out = _blocks(self.model, args, leave_out)
        if guide.hyperparameters != "point":
            raise ValueError(
                "left_out needs point values of the hyperparameters, and here they have a posterior. Make a model "
                "with Trained.of_draws, and give what its to_arviz exports to az.loo."
            )
        checks.refuse(
            leave_out is False, "leave_out=False leaves nothing out: give blocks of rows, or None for each row."
        )
        own = {name: jnp.asarray(params[f"{name}_loc"])[None] for name in guide.sites.latents - guide.sites.processes}
        program = self._marginal(sparse)
        found = program.draws_of_sites(jax.random.key(0), own, model.args, 1, {}, model.kwargs, leave_out)
        densities = {name: np.asarray(x["density"][0]) for name, x in found["left_out"].items()}
        for name, density in densities.items():
            if len(bad := np.flatnonzero(~np.isfinite(density))):
                raise NonFiniteError(
                    f"Site {name!r}: {len(bad)} of {len(density)} densities given all other data are not finite, the "
                    f"first of which is {bad[0]}: rounding leaves no variance there, or noise that is not log-concave "
                    "has no Laplace approximation without these data. Try float64 (numpyro.enable_x64()), other "
                    "blocks, or az.loo for draws of f."
                )
        return densities

    @entry_point
    def add_inducing(
        self,
        rng_key: Array,
        inducing: Inducing,
        *new: Argument,
        model_kwargs: Mapping[str, Any] | None = None,
    ) -> Trained:
        """The same model with more inducing variables, which new data may need. They do not change predictions yet.

        The new posterior is ``q(u, u_new) = q(u) p(u_new | u)``. It changes no prediction and no KL divergence, whether
        ``u`` is whitened or not. The new variables come after the old variables. By this order, :meth:`condition` and
        :class:`OnlineELBO` recognise the old variables.

        Args:
            rng_key: key of the initialisers.
            inducing: for all GP sites, or for some by name: an inducing variable, or an initialiser such as
                :func:`~gpzoo.kmeans`. An initialiser sees the inputs of the site at ``new``. Sites before this site are
                at their posterior means.
            *new: the model's positional arguments at the new inputs; targets may be left out.
            model_kwargs: the model's keyword arguments, by name.

        Returns:
            The model, without NumPyro's ``state``.

        Raises:
            TypeError: for inducing variables of another kind than the site's, data that are not real numbers, an
                ``rng_key`` that is not a key, or a guide that is not an ``InducingGuide``.
            ValueError: naming the site, for a covariance that is not full, inducing variables that are neither points
                nor patches, or inputs of another shape; for unknown names of sites; see also :meth:`posterior`.
            FactorisationError: naming the site whose ``Kuu`` does not factorise with the new inducing variables.
        """
        rng_key, model = checks.rng_key(rng_key), self._bind(new, model_kwargs, seen=False)
        params = extended(rng_key, model.guide, self.params, inducing, model.args, model.kwargs)
        return replace(self, params=params, state=None, backed_off={})

    @entry_point
    def condition(
        self,
        rng_key: Array,
        *new: Argument,
        batch_size: int | None = None,
        num_steps: int = 100,
        num_draws: int = 10,
        sites: Collection[str] | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
    ) -> Trained:
        """Update the model with new data in one pass, without the old data. Only ``q(u)`` changes.

        The bound is ``E_q[log p(y_new | f)] - KL[q(u) || q_old(u)]``, where ``q_old`` is the posterior of this model
        (Bui, Nguyen and Turner 2017, *Streaming sparse Gaussian process approximations*, arXiv 1705.07131, with fixed
        hyperparameters and inducing variables). Natural-gradient steps of length 1 maximise the bound. A step that does
        not raise the bound is shortened. With Gaussian noise one step is exact: the result is the best ``q(u)`` for all
        data, old and new (Titsias 2009), in any order and any batches. With other noise, the update by a batch is an
        approximation, and larger batches make it better. If new inputs are far from the old inputs, call
        :meth:`add_inducing` first. If hyperparameters should change too, use :func:`~gpzoo.inference.fit` with
        :class:`OnlineELBO`.

        Args:
            rng_key: key of the draws.
            *new: the model's positional arguments, new data included. Arrays among them have one entry for each new
                row, along their first axis.
            batch_size: largest number of rows at a time, in the given order. The ``q(u)`` of each batch is the prior of
                the next batch. ``None``: all rows at once, with the memory of a training step on all rows.
            num_steps: largest number of steps on each batch; the steps end when the bound no longer grows.
            num_draws: number of draws of sites that must be drawn, such as inner layers. All steps on a batch use the
                same draws.
            sites: names of the GP sites whose ``q(u)`` changes. ``None``: the sites on which no other GP site depends,
                such as the last layer of a deep GP.
            model_kwargs: the model's keyword arguments, by name. New data count once: if the model has ``num_data``, it
                is the number of new rows.

        Returns:
            The model after the new data. Its ``losses`` have one number for each batch, in nats. The number is the
            negative bound on the log evidence of all new rows up to this batch, given the old data. ``data`` describes
            the new rows.

        Raises:
            TypeError: for data that are not real numbers, an ``rng_key`` that is not a key, or a guide that is not an
                ``InducingGuide``.
            ValueError: for data that are not finite, or none; arguments with different numbers of rows; columns that
                the inducing inputs do not have; a program without a latent GP site; a covariance of ``q(u)`` that is
                not full; a plate whose rows are not the new rows; counts below one; unknown ``sites``; see also
                :meth:`posterior`.
            FactorisationError: naming the GP site whose covariance does not factorise.

        If the last step on a batch still changes the bound by a thousandth of a nat per row, a warning says so.
        """
        model = self._bind(new, model_kwargs, seen=False, new=False)
        of_model = {x.dtype for x in jax.tree.leaves(dict(self.params)) if jnp.issubdtype(x.dtype, jnp.floating)}
        if of_model == {np.dtype(np.float32)}:  # with wider data, q(u) would not stay in float32
            args, kwargs = jax.tree.map(_in_float32, (model.args, model.kwargs))
            model = replace(model, args=args, kwargs=kwargs)
        found = updated(
            model, checks.rng_key(rng_key), batch_size=batch_size, num_steps=num_steps, num_draws=num_draws, sites=sites
        )
        data = found.pop("data") | columns_of(self.model, new) | described_columns(self.data)
        return replace(self, **found, data=data, state=None, backed_off={})

    @entry_point
    def to_arviz(
        self,
        rng_key: Array,
        *args: Argument,
        num_draws: int | None = None,
        new_args: tuple[Argument, ...] | None = None,
        new_kwargs: Mapping[str, Any] | None = None,
        batch_size: int | None = None,
        coords: Mapping[str, Any] | None = None,
        dims: Mapping[str, Sequence[str]] | None = None,
        sample_stats: Mapping[str, ArrayLike] | None = None,
        params: bool = False,
        parts: Mapping[str, Sequence[str]] | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Draws from the posterior as ArviZ's container, for ``az.summary``, ``az.loo``, plots, netCDF and Zarr.

        The draws are independent, so diagnostics of Markov chains (r_hat, effective sample size, trace plots) mean
        nothing for them: use ``az.summary(..., kind="stats")``. In each draw, ``u ~ q(u)`` and the other latent sites
        come first, then ``f`` given ``u``, jointly over the inputs of a batch of rows. The chain axis has length 1. A
        model from :meth:`of_draws` exports the draws of its chains, whose diagnostics are valid. If there are several
        trainings, each is a chain, and R-hat says whether they found one optimum.

        ========================= ======================================================================================
        ``posterior``             ``<site>`` and ``<site>_u`` of GP sites, never whitened; other latent sites;
                                  deterministic sites of the program
        ``posterior_predictive``  data drawn anew (for an observed GP site: given its data). A model from
                                  :meth:`of_draws` also has ``<site>_left_out``, draws of each row given all other
                                  rows, for ``az.loo_pit``
        ``predictions``           GP sites and data at ``new_args``; ``predictions_constant_data`` has these arguments
        ``log_likelihood``        ``log p(y_n | f_n)``. For an observed GP site, and for a model from :meth:`of_draws`
                                  at its data: ``log p(y_n | y_-n)``, each row (or block of rows) given all other
                                  data. Attributes say which density it is
        ``log_prior``             ``log p`` of hyperparameters and other latent sites that are not GPs, each summed over
                                  its entries; ``az.psense_summary`` scales these densities
        ``sample_stats``          ``log_p`` and (without :meth:`of_draws`) ``log_q`` of each draw, for PSIS
                                  (``az.loo_approximate_posterior`` in ArviZ 1.x); ``log_p_<site>_u``, the part of
                                  ``log_p`` that belongs to ``u``
        ``prior``                 draws of the program at the trained values of its parameters (attributes name them)
        ``prior_predictive``      data drawn with the draws in ``prior``
        ``observed_data``         the data
        ``constant_data``         parameters without a posterior, small arrays among the arguments, and ``elbo``, the
                                  negative losses
        ========================= ======================================================================================

        Discrete latent sites are left out: ``log_likelihood`` and ``log_p`` are summed over their values, and data are
        drawn with values from their prior. ``numpyro.contrib.funsor.infer_discrete`` draws these sites given data and
        ``f``.

        The terms ``log p(y_n | y_-n)`` are for ``az.loo`` and ``az.compare``. Their sum is not the density of all data.
        The likelihood part of ``az.psense_summary`` needs the density of all data, which
        ``of_draws(..., leave_out=False)`` gives.

        ``log_p = log p(y | f) + log p(u) + log p(theta)`` and ``log_q = log q(u) + log q(theta)``; the density of ``f``
        given ``u`` cancels. Each row counts once, whatever ``num_data`` is. If hyperparameters have point
        values, ``log_p`` contains their prior. All densities of data and their sums are float64.

        Axes have the names of plates and of ``infer={"event_dims": [...]}``. Other axes are ``<site>_output`` or
        ``<site>_class``, and ``<site>_inducing_row``. An argument with four axes has ``<name>_height``, ``_width`` and
        ``_channel``. A site under ``handlers.mask`` has only its observed data, along ``<site>_observed``. The
        coordinates of this axis are the positions of the observed data (in C order if there are several axes), and
        ``constant_data`` has ``<site>_mask``. A slash in a name becomes a dot.

        Args:
            rng_key: key of the draws. Sampled views are drawn once, by this key, for all draws.
            *args: the model's positional arguments, data included, at the rows to export.
            num_draws: number of draws ``S``, 500 if ``None``. For a model from :meth:`of_draws`, at most this many
                draws, evenly spaced in its chains, or all draws if ``None``.
            new_args: positional arguments at new inputs, ``(X_new,)``.
            new_kwargs: keyword arguments at new inputs; ``None`` uses ``model_kwargs``.
            batch_size: largest number of rows at a time. Given ``u``, ``f`` is drawn jointly for the rows of a batch.
                This needs the covariance of these rows, for every draw if hyperparameters have draws. The groups
                ``prior`` and ``prior_predictive`` have at most this many rows. With ``None``, a batch has up to 1,000
                inputs of a GP site. It has up to 200 if there are more than 1,000 inputs, and hyperparameters have
                draws.
            coords: labels of entries by axis, ``{"data": years}``. Labels of rows belong to ``*args``, not to
                ``new_args``. Rows of a frame or a Dataset need no ``coords``: its index or its coordinates label them.
                This also holds for new rows.
            dims: names of the axes of arrays, by name of the array, ``{"lengthscale": ["feature"]}``. Do not name the
                axes of draws.
            params: whether ``posterior`` also has the program's ``numpyro.param`` sites. Each of these sites has one
                value, which is the same in all draws of a chain. An attribute names these sites.
            parts: names for the addends of GP sites, as in :meth:`predict`. ``posterior`` and ``predictions`` then also
                have draws of the addends. A draw of the site is the sum of these draws, the prior's mean and white
                noise. The addends are drawn together, at a cost that grows with the cube of their number.
            sample_stats: statistics of the draws, for a model from :meth:`of_draws`, by ArviZ's names or NumPyro's,
                such as ``mcmc.get_extra_fields(group_by_chain=True)``.
            model_kwargs: the model's keyword arguments, by name.

        Returns:
            ``arviz.InferenceData`` (ArviZ 0.x) or ``xarray.DataTree`` (ArviZ 1.x).

        Raises:
            TypeError: for data that are not real numbers, an ``rng_key`` that is not a key, or a guide that is not an
                ``InducingGuide``.
            ValueError: for data that are not finite; parameters that are missing, unknown or of another shape; counts
                below one; ``coords`` or ``dims`` that do not fit; a program whose density is not a sum over rows, if
                there are several batches.
            FactorisationError: naming the GP site whose draws are not finite.
            NonFiniteError: naming a site whose draws are not finite for another reason, or whose log density is NaN.

        If a prior has no draws, as :class:`numpyro.distributions.ImproperUniform`, the groups ``prior`` and
        ``prior_predictive`` are left out. A warning says so, and also if draws from a prior are not finite.
        """
        if several := self.losses.ndim > 1:
            failed = [k for k, losses in enumerate(self.losses) if not np.all(np.isfinite(losses))]
            way = "export the others, trained.member(k).to_arviz(...)."
            checks.refuse(failed, f"Trainings {failed} failed: {way}")
        each = [self.member(k) for k in range(len(self.losses))] if several else [self]
        options = Exporting(new_args, new_kwargs, batch_size, coords, dims, sample_stats, params, parts)
        models = [one._bind(args, model_kwargs, seen=False) for one in each]
        options = options.labelled(self.model, args, self.data)
        return exported(models, rng_key, num_draws=num_draws, losses=self.losses, options=options)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write this model to one file, from which :func:`load` makes it again without the data.

        The file holds parameters and mutable state, losses, the sites that the guide found in the program, versions,
        and :attr:`data`. It also holds the options of the guide. If an option is a class, an object or a function of
        your own, the file holds no options, and :func:`load` needs the guide. The file is written in one step, hashes
        cover every byte, and it contains no pickle. It does not keep NumPyro's ``state``. To continue a training, use
        checkpoints.

        Raises:
            TypeError: for parameters that are not pytrees of arrays, or a ``path`` that is not a path.
            ValueError: for an empty ``path``.
            CheckpointError: if the file cannot be written; an earlier file stays as it was.
        """
        _saved.save(files.checked_path("path", path, "a file"), self)

    def _number_of_functions(self, asked: int | None) -> int:
        known = math.prod(self.guide.shape(self.params)) if isinstance(self.guide, DrawsGuide) else None
        if asked is None:
            return 100 if known is None else min(known, 100)
        if known is not None and asked > known:
            warnings.warn(
                f"functions(num_draws={asked}): each of the {known} draws of hyperparameters has one draw of the "
                "functions, so that they repeat. Take at most so many, or give Trained.of_draws more draws.",
                stacklevel=checks.outside(),
            )
        return asked

    def _usable_guide(self) -> InducingGuide:
        """The guide of one training. It is refused for several trainings."""
        count = len(self.losses) if self.losses.ndim > 1 else 0
        checks.refuse(count, f"These are {count} trainings: ask one of them, such as trained.member(0).")
        kind = type(self.guide).__name__
        wanted = (
            f"guide must be the trained InducingGuide, got {kind}. Give values of latent sites to gpzoo.inference."
            "predict(key, program, X_new, posterior_samples={name: value[None]}, train_args=(X, y)), which conditions "
            "GP sites on their data; numpyro.infer.Predictive does not."
        )
        checks.refuse(not isinstance(self.guide, InducingGuide), wanted, TypeError)
        for name, x in self.params.items():
            wide = any(isinstance(leaf, Array) and leaf.dtype == np.float64 for leaf in jax.tree.leaves(x))
            if wide and not jax.config.read("jax_enable_x64"):
                raise ValueError(f"params[{name!r}] is float64, which is not enabled: call numpyro.enable_x64() first.")
        return self.guide

    def _guide_with_sites(self) -> InducingGuide:
        """The guide, which must have seen data."""
        guide = self._usable_guide()
        unseen = "This guide has not seen data, which decide what sites are latent: call guide.setup(X, y) before."
        checks.refuse(guide.sites is None, unseen)
        return guide

    def _bind(
        self, args: tuple, model_kwargs: Mapping[str, Any] | None, *, seen: bool = True, new: bool = True
    ) -> BoundModel:
        """This model with checked arguments.

        Args:
            args: positional arguments of the program.
            model_kwargs: keyword arguments of the program.
            seen: whether the guide must have seen data before; otherwise these arguments are the data.
            new: whether targets may be left out.
        """
        args, kwargs = arguments(self.model, args, model_kwargs, new=new, described=self.data)
        guide = self._guide_with_sites() if seen else self._usable_guide()
        refuse_other_program(self.model, guide)
        guide.sites_for(args, kwargs)
        params = guide.checked_params(self.params, args, kwargs)
        refuse_other_columns(self.model, args, kwargs, self.data, params)
        at_training = False
        if isinstance(guide, DrawsGuide) and not seen:
            names = [name for name in self.data if name.startswith("argument ")]
            known = {name: self.data[name] for name in names if name not in described_columns(self.data)}
            at_training = known == _described(self.model, args, kwargs)
        return BoundModel(self.model, guide, params, args, kwargs, self._compiled, at_training=at_training)


def _described(model: Callable, args: tuple, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """What a program's arguments are, apart from those that are ``None``."""
    arrays, static = split_arrays(dict(kwargs))
    given = {name: value for name, value in static.items() if value is not None}
    return described_arguments(model, args, arrays) | described_options(given)


def _in_float32(x: Any) -> Any:
    return x.astype(np.float32) if getattr(x, "dtype", None) == np.float64 else x


def load(
    path: str | os.PathLike[str], program: Callable, guide: Any = None, *, params: Mapping[str, Any] | None = None
) -> Trained:
    """The model that :meth:`Trained.save` wrote. On the same machine and versions, it predicts the same bits.

    Example:
        >>> import jax, pathlib, tempfile, numpy as np
        >>> from gpzoo import kmeans
        >>> from gpzoo.inference import InducingGuide, Trained, load
        >>> from gpzoo.models import gp_regression
        >>> X = np.linspace(0, 6, 50, dtype=np.float32)[:, None]
        >>> guide = InducingGuide(gp_regression, kmeans(8))
        >>> start = Trained(gp_regression, guide, guide.init_params(jax.random.key(0), X, np.sin(X[:, 0])))
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "start.gpzoo"
        >>> start.save(path)
        >>> sorted(load(path, gp_regression).params) == sorted(start.params)
        True

    Args:
        path: path of the file.
        program: the program that was trained; the file does not hold it.
        guide: a guide made as for the training. It is needed if the file does not say how to make it. This is so if the
            guide has inducing variables, initialisers or a strategy of your own, or is not an
            :class:`~gpzoo.inference.InducingGuide`.
        params: objects of another library's class by name, such as an equinox module, ``{"network$params": module}``.
            The saved arrays of the parameter are put into this object.

    Returns:
        The model, without NumPyro's ``state``.

    Raises:
        TypeError: for a ``path`` that is not a path.
        ValueError: for an empty ``path``; if a ``guide`` or an object in ``params`` is needed but missing; for an
            object in ``params`` that does not fit the file.
        RuntimeError: in a process that was forked after JAX had run.
        CheckpointError: if the file cannot be read, is damaged, or is not a file of :meth:`Trained.save`. Also if its
            format differs from the format of this version (the message names the gpzoo that reads it), or if it holds
            float64 and float64 is not enabled.

    If the file was written by another version of JAX or NumPyro, a warning says so.
    """
    refuse_fork("load")
    return Trained(**_saved.load(files.checked_path("path", path, "a file"), program, guide, params))


def _blocks(program: Callable, args: tuple, leave_out: Any) -> Any:
    """Labels of blocks in the order of the rows; lists of rows stay as they are."""
    if isinstance(leave_out, list | tuple):
        return leave_out
    return in_order_of_rows(program, args, {"leave_out": leave_out})[0]


def _with_parts(sites: Iterable[str], parts: Mapping[str, Sequence[str]] | None) -> set[str]:
    """Names of sites, and of their addends."""
    return {*sites}.union(*(names for site, names in (parts or {}).items() if site in sites))
