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
from gpzoo.inference.programs.arguments import arguments, refuse_unknown
from gpzoo.inference.programs.arrays import split_arrays
from gpzoo.inference.programs.calls import entry_point, traceable_entry_point
from gpzoo.inference.programs.finite import all_finite
from gpzoo.inference.programs.labelled import columns_of, described_columns, labels_of, rows_of_test_data, unlabelled
from gpzoo.inference.programs.program import look
from gpzoo.inference.training.sources import described_arguments


@dataclass(frozen=True, eq=False)
class Trained:
    """A program, its guide, and the values of their parameters: what :func:`~gpzoo.inference.fit` returns.

    ``Trained(model, guide, params)`` makes a trained model from parameters that NumPyro's own ``svi.run`` found. The
    methods keep the programs that they compile. As under ``jax.jit``, the first call fixes everything that the program
    does not read from its arguments.

    If there are several trainings (see :func:`~gpzoo.inference.fit`), ``params``, ``losses`` and ``state`` have a
    leading axis, and :meth:`member` gives one training, on which the other methods work. If one training failed, its
    losses are NaN from the first step that was not kept.

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
        guide: its guide. All methods but ``member`` need an :class:`~gpzoo.inference.InducingGuide` that has seen data.
        params: values (constrained) of every ``numpyro.param`` site, and mutable state, by name.
        losses: negative ELBO of every step that led to ``params``, ``[num_steps]``, in nats. With minibatches these are
            minibatch estimates. Empty if :func:`~gpzoo.inference.fit` did not train the model.
        state: NumPyro's state, from which ``svi.update`` can go on, or ``None``.
        seconds: wall time of the steps, compilation included, over all resumptions.
        expectations: how each likelihood site's expectation was computed: ``"closed form"``, ``"quadrature"`` or
            ``"draw"``. If latent sites were drawn, and not integrated out, they are named: ``"draw of f"``,
            ``"closed form given draws of h"``.
        backed_off: for each site with natural gradients, how many steps were shortened, because the full step lowered
            the bound or led to no covariance. :meth:`save` does not keep it, as it does not keep ``state``.
        data: the training data: type, shape and sha256 of every array, by name; empty if the training failed.
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
        # Compiled programs cannot leave their process; a copy makes its own.
        return vars(self) | {"_compiled": {}}

    def member(self, k: int) -> Trained:
        """Training ``k`` of several; ``seconds`` is the time of all trainings.

        Raises:
            ValueError: if this is one training.
            IndexError: if there are fewer trainings.
        """
        if self.losses.ndim < 2:
            raise ValueError("This is the result of one training, which has no members.")
        losses = self.losses[k]  # arrays on the device would give the last member for a ``k`` that is too large
        params, state, backed_off = jax.tree.map(lambda x: x[k], (self.params, self.state, dict(self.backed_off)))
        return replace(self, params=params, losses=losses, state=state, backed_off=backed_off)

    def with_params(self, params: Mapping[str, Any]) -> Trained:
        """The same model and guide with other parameters, such as those that ``fit`` gives to a callback.

        The two models share the programs that either of them compiles.
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
        """A model from draws of hyperparameters: each draw has the law of the functions given it and the data.

        ``Trained.of_draws(key, nuts(key, marginal(program), X, y), X, y)`` predicts, draws functions and exports like
        any other trained model. The draws keep their chains in :meth:`to_arviz`.

        :meth:`predict` mixes the conditional moments of all draws. They are exact for Gaussian noise; for any other
        noise they are the mode and the covariance of Laplace's approximation. If there are inducing variables, both are
        given these variables. ``of_draws`` factorises the data's covariance, once for each draw.

        :meth:`functions` and exports use joint draws, one for each draw of hyperparameters, which are kept at the
        inducing variables, or at the inputs if there are none. In two cases :meth:`predict` mixes these joint draws
        too, with their noise: for outputs that data see mixed (``f @ A``, Softmax), and when the factors take more than
        1 GiB (a warning says so).

        Args:
            rng_key: key of the draws of functions.
            draws: the result of :func:`~gpzoo.inference.nuts`, or ``MCMC(NUTS(marginal(program)))`` after its run. Or
                draws of hyperparameters by site name, ``[chains, draws, ...]`` or ``[draws, ...]``, such as a part of
                ``mcmc.get_samples()``, or draws from one of NumPyro's guides. Deterministic sites are computed again.
            *args: positional arguments of the program, data included.
            program: the marginal program, if ``draws`` does not hold it.
            num_draws: number of draws of functions if there are no hyperparameters to draw, ``draws={}``.
            params: values of the ``numpyro.param`` sites, if there are any.
            leave_out: blocks of rows. :meth:`to_arviz` then writes the density of each block given all other data, in
                place of the density of each row. Either a label for each row, such as its group; or a list of arrays of
                row numbers, which may overlap, such as all rows after a time. ``False`` for no such densities: exports
                then have ``log p(y_n | f_n)``, as they do when these densities take more than 1 GiB.
            model_kwargs: keyword arguments of the program, by name.

        Raises:
            TypeError: for a program that is not marginal.
            ValueError: for draws that are not all ``[chains, draws, ...]`` or all ``[draws, ...]``, that miss a site or
                are of other shapes.
            FactorisationError: if the law of a GP site is not found at some draw.
        """
        own: Any = draws
        if isinstance(draws, MCMC):
            program, own = draws.sampler.model, draws.get_samples(group_by_chain=True)
        wanted = "marginal(program); a program whose GP site is the data is asked by predict(key, program, X_new, "
        wanted += "posterior_samples=mcmc.get_samples(), train_args=(X, y))"
        of: Any = checks.instance("program", program, marginal, wanted)
        given, fn = jax.tree.map(jnp.asarray, checks.parameters("params", params or {})), of.fn
        columns, shape = columns_of(fn, args), (1, checks.positive_int("num_draws", num_draws))
        given_args, (args, kwargs) = args, arguments(fn, args, model_kwargs)
        own = checks.named("draws", drawn_alone(own, look(fn, args, kwargs, given, arrays=True)))
        if own:
            shape, own = chains_of("draws", own)
        known = of.draws_of_sites(rng_key, own, given_args, shape[1], given, model_kwargs, leave_out)
        found = known.get("values", {})
        checks.refuse(not found, "The program has no latent GP sites: nothing is integrated out.")
        guide = DrawsGuide(fn, of.variables_of(found))
        sites = guide.sites_for(args, kwargs)
        refuse_unknown("draws", own, sites.latents - sites.processes, "program's latent sites that are no GPs")
        found |= {f"{name}_loc": own[name] for name in sites.latents - sites.processes}
        found |= {LAWS: known["laws"], LEFT_OUT: known["left_out"]}
        stacked = jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), found)
        data = described_arguments(fn, args, split_arrays(kwargs)[0]) | columns
        return cls(fn, guide, given | stacked, data=data)

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

        Likelihoods integrate over the marginals of ``f`` if the program allows it. If the program needs draws (inner
        layers of a deep GP, hyperparameters with a posterior), the result is the mixture over draws: mean and variance
        by the law of total variance, densities averaged (deep GPs, eq. 18). In a model from :meth:`of_draws`, each draw
        of hyperparameters has the moments of ``f`` given it and the data. A row's draws depend on ``rng_key`` and on
        the row's position in the whole input; draws of latent variables of rows depend on the batch too. Sampled views
        are drawn once, by ``rng_key``, and are the same for all inputs.

        Discrete latent sites are predicted too: they are drawn from their prior, and have ``probs`` ``[N, K]`` of their
        values. Densities of test data are sums over the values of the discrete sites that each row has of its own. A
        chain of discrete sites begins anew at the first new row.

        Sites have rows of their own, and the program says which of them go with the rows of the inputs: one for each
        row, or several (patches). These sites are predicted in batches. Other sites, such as a site at inputs from
        ``model_kwargs``, are the same in every batch. ``predict`` refuses several batches if one row of a site depends
        on several rows of the inputs.

        For draws of functions that are joint over the inputs, use :meth:`functions`. At up to a few thousand inputs,
        :class:`numpyro.infer.Predictive` with the same guide gives them too.

        Args:
            rng_key: key of the draws.
            *new: the model's positional arguments at the new inputs, one row per input; or one xarray Dataset, whose
                coordinates the result then has in place of rows. Columns with names are matched by their names.
            test_data: observed values by site name, one for each row of the site, for ``log_density``. If they and the
                inputs have labels, rows are matched by label.
            num_draws: draws of the sites that must be drawn; programs without such sites need one pass. ``None``: 100,
                or all draws of a model from :meth:`of_draws`.
            quantiles: probabilities, such as ``(0.05, 0.5, 0.95)``. GP sites and Gaussian data sites have the quantiles
                of the mixture of Gaussians over draws. Other sites have the quantiles of the draws of ``y``, one for
                each draw of the sites.
            keep_draws: whether to return the draws themselves, of every GP site and data site. There is one for each
                draw of the sites that must be drawn (``num_draws`` if there are no such sites), independent over
                inputs. To draw data sites, the program runs on one row at a time, except with
                ``InducingGuide(joint=...)``.
            parts: names for the addends of GP sites, which are predicted too: ``{"f": ("trend", "season")}`` if the
                kernel of ``f`` is a sum of two. Each part has the exact moments of its addend given the data, or given
                the inducing variables of the sum. White noise is not an addend, and no part has the prior's mean.
            mean_only: whether to leave out variances, which are most of the work of a sparse GP. Results that need
                variances still have them computed: class probabilities, and draws of the inner layers of a deep GP.
            batch_size: rows at a time. It changes only rounding and the draws of latent variables of rows. ``None`` for
                1,000, or for 20,000 if there are more than 20,000 rows and none has over 100 numbers.
            train_args: the positional arguments of training, for observed GP sites (exact GP regression), which are
                conditioned on their data.
            train_kwargs: the keyword arguments of training, with ``train_args``.
            model_kwargs: the model's keyword arguments, by name.

        Returns:
            A :class:`SitePrediction` for each GP site and each data site, by name.

        Raises:
            TypeError: for data that are not real numbers, an ``rng_key`` that is not a key, or a guide of another kind.
            ValueError: for data that are not finite; rows that disagree; unknown names in ``test_data``; parameters
                that are missing, unknown or of another shape; a guide that has not seen data; an observed GP site
                without ``train_args``; in several batches, sites that the guide draws jointly, or whose rows cannot be
                told from those of the inputs; ``quantiles`` that are not between 0 and 1; ``mean_only`` with
                ``quantiles``, ``keep_draws`` or ``test_data``.
            FactorisationError: naming the GP site whose covariance does not factorise at these parameters.
            NonFiniteError: naming any other site whose prediction is not finite.
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

        Draw ``s`` is one function through the whole program. ``rng_key`` and ``s`` fix it: it is the same for any
        inputs and, up to rounding, for any batches. In a deep GP, the functions of all layers are composed. By
        Matheron's rule (Wilson et al. 2020, *Efficiently sampling functions from Gaussian process posteriors*, eq. 13),

        ``f(x) = g(x) + Kfu Kuu^-1 (u - g(Z))``, ``u ~ q(u)``,

        where the function ``g`` is drawn from the prior by random Fourier features. The time is linear in the number of
        inputs. At up to a few thousand inputs, :class:`numpyro.infer.Predictive` draws jointly without features, for
        any kernel.

        White noise in a kernel is not a function. It is drawn for each row, by the row's number in the whole input.

        Args:
            rng_key: key of the draws.
            *new: the model's positional arguments at the inputs, one row per input.
            num_draws: number of functions ``S``. ``None``: 100, or the number of draws of a model from
                :meth:`of_draws`, if that is smaller.
            num_features: random features of each addend of each kernel. Averaged over draws, the covariance is exact
                for any number. For one draw, whose frequencies are fixed, it has an error of ``O(num_features^-1/2)``.
            parts: names for the addends of GP sites, as in :meth:`predict`. Their values add up to the site's values,
                without the prior's mean and white noise.
            batch_size: rows at a time.
            model_kwargs: the model's keyword arguments, by name.

        Returns:
            The values of each latent GP site, and of each part, by name, ``[S, N]`` or ``[S, N, D]``.

        Raises:
            FactorisationError: naming a site whose covariance does not factorise.
            TypeError: naming a kernel without a known spectral density (:meth:`gpzoo.kernels.Kernel.frequencies`), or
                inducing variables without values for a function (:meth:`gpzoo.InducingVariable.of`); for data that are
                not real numbers, an ``rng_key`` that is not a key, or a guide of another kind.
            ValueError: for counts below one; data that are not finite; rows that disagree; a guide that has not seen
                data; parameters that are missing, unknown or of another shape; in several batches, sites that the guide
                draws jointly.
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
            ValueError: for a negative ``draw`` or a count below one; a guide that has not seen data. A call of the
                function raises it as :meth:`functions` does. Under ``jit``, values are not looked at, and there is no
                ``FactorisationError``.
            TypeError: as :meth:`functions`.
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
            rng_key: key of the draws of the sites that come before a site in the program, and of sampled views, which
                are the same as in :meth:`predict` with this key.
            *args: the model's positional arguments.
            model_kwargs: its keyword arguments, by name.

        Raises:
            TypeError: for data that are not real numbers, an ``rng_key`` that is not a key, or a guide of another kind.
            ValueError: for parameters that are missing, unknown or of another shape.
        """
        rng_key, model = checks.rng_key(rng_key), self._bind(args, model_kwargs, seen=False)
        guide = model.guide

        def posteriors(key: Array, batch: Batch) -> dict[str, Any]:
            return guide.posteriors(key, batch.params, batch.args, batch.kwargs)

        compiled = model.compiled_for(BatchFunction("posterior", posteriors, draws_together=0))
        found = compiled(rng_key, model.batch())
        # Only outside jit can the error name the site that is not finite.
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
        """The posterior of the program's hyperparameters by NUTS, GP sites integrated out at their inducing variables.

        If a guide makes hyperparameters independent of the functions, their posterior is too narrow, often several
        times; this posterior is not. It is the posterior of ``marginal(program, inducing)``. The inducing variables,
        and ``numpyro.param`` sites of the program such as networks, keep their trained values.

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
            The MCMC, which has run: ``mcmc.print_summary()``. ``Trained.of_draws(key, mcmc, X, y)`` is the model with
            these draws.

        Raises:
            ValueError: for a program whose latent sites are all GPs; as :func:`~gpzoo.inference.nuts` and
                :class:`~gpzoo.inference.marginal`.
            TypeError: as :class:`~gpzoo.inference.marginal`.
        """
        guide, args = self._guide_with_sites(), unlabelled(self.model, args, self.data)
        sites = guide.sites
        others = "The program has no latent sites but GP sites: give its hyperparameters priors by numpyro.sample."
        checks.refuse(not sites.latents - sites.processes, others)
        checks.refuse(isinstance(guide, DrawsGuide), "These are draws of hyperparameters already, of Trained.of_draws.")
        counts: Any = {"num_warmup": num_warmup, "num_samples": num_samples, "num_chains": num_chains}
        return nuts(rng_key, self._marginal(sparse), *args, **counts, progress=progress, model_kwargs=model_kwargs)

    def _marginal(self, sparse: str) -> marginal:
        """The program at its trained parameters, GP sites integrated out at their inducing variables."""
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
        """``log p(y_n | y_-n)``, the density of every datum given all others, at the trained hyperparameters.

        It is in closed form, from one factorisation (Rasmussen and Williams 2006, eq. 5.10 to 5.12). GP sites are
        integrated out at their inducing variables, with the best ``q(u)`` without the datum. If noise is not Gaussian,
        Laplace's approximation is used, with the terms of the datum taken off (Vehtari et al. 2016). The
        hyperparameters and the inducing variables were trained on all data. In a model from :meth:`of_draws`,
        :meth:`to_arviz` has these densities for each draw of hyperparameters; with them, ``az.loo`` leaves data out of
        the hyperparameters' posterior too.

        Args:
            *args: the model's positional arguments with all training data.
            leave_out: see :meth:`of_draws`. Residuals that inducing variables leave are treated row by row.
            sparse: see :class:`~gpzoo.inference.marginal`.
            model_kwargs: the model's keyword arguments, by name.

        Returns:
            Log densities by data site, in nats, ``[N]``, or one for each block. If the noise of a block is not
            Gaussian, its log density is the sum over its rows, one by one.

        Raises:
            ValueError: for hyperparameters with a posterior of their own; as :class:`~gpzoo.inference.marginal`.
            TypeError: as :class:`~gpzoo.inference.marginal`.
            FactorisationError: if the law of a GP site is not found.
            NonFiniteError: if rounding leaves some data without a density.
        """
        model = self._bind(args, model_kwargs, new=False)
        guide, params = model.guide, model.params
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
                    f"first of which is {bad[0]}: rounding leaves no variance there. Compute in float64 "
                    "(numpyro.enable_x64()), or leave out larger blocks."
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
        """The same model with more inducing variables that change no prediction yet: room for new data.

        ``q(u, u_new) = q(u) p(u_new | u)``, which changes no prediction and no KL divergence, whitened or not. The new
        variables follow the old ones, so that :meth:`condition` and :class:`OnlineELBO` recognise the old ones.

        Args:
            rng_key: key of the initialisers.
            inducing: for all GP sites, or for some by name: an inducing variable, or an initialiser such as
                :func:`~gpzoo.kmeans`. An initialiser sees the site's inputs at ``new``, with the sites before it at
                their posterior means.
            *new: the model's positional arguments at these inputs; targets may be left out.
            model_kwargs: the model's keyword arguments, by name.

        Returns:
            The model, without NumPyro's ``state``.

        Raises:
            TypeError: for inducing variables of another kind than the site's, data that are not real numbers, an
                ``rng_key`` that is not a key, or a guide of another kind.
            ValueError: naming the site, for a covariance that is not full, inducing variables that are neither points
                nor patches, or inputs of another shape; for unknown names of sites; as :meth:`posterior`.
            FactorisationError: naming the site whose ``Kuu`` does not factorise with them.
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
        """Take in new data in one pass, without the old data: only ``q(u)`` changes.

        The bound is ``E_q[log p(y_new | f)] - KL[q(u) || q_old(u)]``, where ``q_old`` is this model's (Bui, Nguyen and
        Turner 2017, *Streaming sparse Gaussian process approximations*, arXiv 1705.07131, with hyperparameters and
        inducing variables held). Natural-gradient steps of length 1 maximise it, and are shortened where they do not
        raise it. With Gaussian noise one step is exact: the result is the best ``q(u)`` for all data, old and new
        (Titsias 2009), in any pieces and any order. With other noise, a piece is kept only approximately; larger pieces
        are kept better. If new inputs are far from old ones, call :meth:`add_inducing` before. If hyperparameters
        should change too, use :func:`~gpzoo.inference.fit` with :class:`OnlineELBO`.

        Args:
            rng_key: key of the draws.
            *new: the model's positional arguments, new data included; arrays among them have one row per datum.
            batch_size: most rows at a time, in the order given: each batch's ``q(u)`` is the prior of the next batch.
                ``None`` for all rows at once, with the memory of a training step on all rows.
            num_steps: most steps on each batch; the steps end when the bound no longer grows.
            num_draws: draws of sites that must be drawn, such as inner layers, the same in all steps on a batch.
            sites: names of the GP sites whose ``q(u)`` changes; ``None`` for those on which no other GP site depends,
                such as the last layer of a deep GP.
            model_kwargs: the model's keyword arguments, by name. New data count once: if the model has ``num_data``, it
                is the number of new rows.

        Returns:
            The model after the new data. Its ``losses`` have one number for each batch: minus the bound on the log
            evidence of all new rows up to that batch given the old data, in nats. ``data`` describes the new rows.

        Raises:
            TypeError: for data that are not real numbers, an ``rng_key`` that is not a key, or a guide of another kind.
            ValueError: for data that are not finite, or none; rows that disagree; columns that the inducing inputs do
                not have; a program without a latent GP site; a covariance of ``q(u)`` that is not full; a plate whose
                rows are not the new ones; counts below one; unknown ``sites``; as :meth:`posterior`.
            FactorisationError: naming the GP site whose covariance does not factorise.

        If the last step on a batch still changed the bound by a thousandth of a nat per row, a warning says so.
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
        nothing for them: use ``az.summary(..., kind="stats")``. Each draw takes ``u ~ q(u)`` and the other latent
        sites, then ``f`` given ``u``, jointly over the inputs of a batch of rows. The chain axis has length 1. A model
        from :meth:`of_draws` exports the draws of its chains: their diagnostics mean what they say, and there is no
        ``log_q``. If there are several trainings, each is a chain, and R-hat says whether they found one optimum.

        ========================= ======================================================================================
        ``posterior``             ``<site>`` and ``<site>_u``, never whitened, of GP sites; other latent sites;
                                  deterministic sites of the program
        ``posterior_predictive``  data drawn anew; of an observed GP site given what was observed. ``<site>_left_out``
                                  of a model :meth:`of_draws`: each datum given all others, for ``az.loo_pit``
        ``predictions``           GP sites and data at ``new_args``; ``predictions_constant_data`` has these
        ``log_likelihood``        ``log p(y_n | f_n)``; of an observed GP site, and of a model :meth:`of_draws` at its
                                  data, ``log p(y_n | y_-n)``, each datum (or block of them) given all others:
                                  attributes say which
        ``log_prior``             ``log p`` of hyperparameters and other latent sites that are no GPs, each summed over
                                  its entries: what ``az.psense_summary`` scales
        ``sample_stats``          ``log_p`` and ``log_q`` of each draw, for PSIS (in ArviZ 1.x, approximate posteriors);
                                  ``log_p_<site>_u``, the part of ``u`` in ``log_p``
        ``prior``                 what the program draws, at the trained values of its parameters (attributes name them)
        ``prior_predictive``      data drawn with these
        ``observed_data``         the data
        ``constant_data``         parameters that have no posterior, small arguments, and ``elbo``, negative losses
        ========================= ======================================================================================

        Discrete latent sites are left out: ``log_likelihood`` and ``log_p`` are summed over their values, and data are
        drawn with values from their prior. ``numpyro.contrib.funsor.infer_discrete`` draws them given data and ``f``.

        The terms ``log p(y_n | y_-n)`` are for ``az.loo`` and ``az.compare``. Their sum is not the density of all data,
        which the likelihood's part of ``az.psense_summary`` needs: for that, use ``of_draws(..., leave_out=False)``.

        ``log_p = log p(y | f) + log p(u) + log p(theta)`` and ``log_q = log q(u) + log q(theta)``. The rows are the
        whole data, whatever ``num_data`` is, and ``f`` given ``u`` has cancelled. If hyperparameters are points, their
        prior is in ``log_p``. All densities of data and their sums are float64.

        Axes have the names of plates, of ``infer={"event_dims": [...]}``, and ``<site>_output`` or ``<site>_class``,
        ``<site>_inducing_row``; an argument of four axes has ``<name>_height``, ``_width`` and ``_channel``. A site
        under ``handlers.mask`` has only its observed data, along ``<site>_observed``. The coordinates of that axis are
        the numbers of the data (of several axes, in C order), and ``constant_data`` has ``<site>_mask``. A slash in a
        name becomes a dot.

        Args:
            rng_key: key of the draws; sampled views are drawn once, by this key, for all of them.
            *args: the model's positional arguments, data included, at the rows to export.
            num_draws: number of draws ``S``, 500 if ``None``. For a model from :meth:`of_draws`, the largest number of
                draws, evenly spaced in its chains; all if ``None``.
            new_args: positional arguments at new inputs, ``(X_new,)``.
            new_kwargs: keyword arguments there; ``None`` for ``model_kwargs``.
            batch_size: most rows at a time. ``f`` is joint among them given ``u``, which needs their covariance, for
                every draw if hyperparameters have draws. The prior has at most so many rows. ``None``: as many rows as
                have 1,000 inputs of a GP site, or 200 if there are more and hyperparameters have draws.
            coords: labels of entries by axis, ``{"data": years}``; labels of rows are those of the data. The index of a
                frame and the coordinates of a Dataset are labels without it, for new rows too.
            dims: names of axes by array, without the axes of draws, ``{"lengthscale": ["feature"]}``.
            params: whether ``posterior`` also has the program's ``numpyro.param`` sites. They are points: the same in
                all draws of a chain, and an attribute names them.
            parts: names for the addends of GP sites, as in :meth:`predict`. ``posterior`` and ``predictions`` then have
                draws of the parts, which add up to the draws of the site without the prior's mean and white noise. The
                parts are drawn together, at a cost that grows with the cube of their number.
            sample_stats: for a model from :meth:`of_draws`, by ArviZ's names or NumPyro's, such as
                ``mcmc.get_extra_fields(group_by_chain=True)``.
            model_kwargs: the model's keyword arguments, by name.

        Returns:
            ``arviz.InferenceData`` (ArviZ 0.x) or ``xarray.DataTree`` (ArviZ 1.x).

        Raises:
            TypeError: for data that are not real numbers, an ``rng_key`` that is not a key, or a guide of another kind.
            ValueError: for data that are not finite; parameters that are missing, unknown or of another shape; counts
                below one; ``coords`` or ``dims`` that do not fit; in several batches, a program whose density does not
                come in rows.
            FactorisationError: naming the GP site whose draws are not finite.
            NonFiniteError: naming any other site whose draws are not finite, or whose log density is NaN.

        If draws from a prior are not finite, a warning says so.
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

        The file holds parameters and mutable state, losses, what the guide found out about the program, versions, and
        :attr:`data`. It also holds the guide's options as far as they are gpzoo's own. It is written in one step, every
        byte is under a hash, and there is no pickle in it. The file does not keep NumPyro's ``state``; to continue a
        training, use checkpoints.

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
        """The guide of one training; refused for several."""
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
            model_kwargs: its keyword arguments.
            seen: whether its guide must have seen data before; else these arguments are the data.
            new: whether targets may be left out.
        """
        args, kwargs = arguments(self.model, args, model_kwargs, new=new, described=self.data)
        guide = self._guide_with_sites() if seen else self._usable_guide()
        refuse_other_program(self.model, guide)
        guide.sites_for(args, kwargs)
        params = guide.checked_params(self.params, args, kwargs)
        at_training = False
        if isinstance(guide, DrawsGuide) and not seen:
            found = described_arguments(self.model, args, split_arrays(kwargs)[0])
            at_training = all(self.data.get(name) == said for name, said in found.items())
        return BoundModel(self.model, guide, params, args, kwargs, self._compiled, at_training=at_training)


def _in_float32(x: Any) -> Any:
    return x.astype(np.float32) if getattr(x, "dtype", None) == np.float64 else x


def load(
    path: str | os.PathLike[str], program: Callable, guide: Any = None, *, params: Mapping[str, Any] | None = None
) -> Trained:
    """The model that :meth:`Trained.save` wrote: on the same machine and versions, it predicts the same bits.

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
        guide: a guide made as for the training. It is needed if the file does not say how to make it: if the guide has
            inducing variables, initialisers or a strategy of your own, or is not an
            :class:`~gpzoo.inference.InducingGuide`.
        params: by name, an object of another library's class into which the arrays of a parameter are put, such as an
            equinox module, ``{"network$params": module}``.

    Returns:
        The model, without NumPyro's ``state``.

    Raises:
        TypeError: for a ``path`` that is not a path.
        ValueError: for an empty ``path``; if a ``guide`` or an object in ``params`` is needed but missing; for an
            object in ``params`` that does not fit the file.
        RuntimeError: in a process that was forked after JAX had run.
        CheckpointError: if the file cannot be read, is damaged or something else, was written in another format (the
            message names the gpzoo that reads it), or holds float64 and that is not enabled.

    If JAX or NumPyro have other versions than those that wrote the file, a warning says so.
    """
    refuse_fork("load")
    return Trained(**_saved.load(files.checked_path("path", path, "a file"), program, guide, params))


def _with_parts(sites: Iterable[str], parts: Mapping[str, Sequence[str]] | None) -> set[str]:
    """Names of sites, and of their addends."""
    return {*sites}.union(*(names for site, names in (parts or {}).items() if site in sites))
