"""One run of a guide: the program, with the guide's own site in place of each latent site."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import Array, lax, random
from jaxtyping import PRNGKeyArray
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.distributions.transforms import Transform, biject_to
from numpyro.primitives import default_process_message

from gpzoo._numpyro import Handler, OwnSites, in_chain
from gpzoo.inducing.initialisers import start, structure
from gpzoo.inducing.variables import InducingVariable
from gpzoo.inference.guides.hyperparameter_guide import HyperparameterGuide
from gpzoo.inference.guides.options import Options, for_site
from gpzoo.inference.programs.gp_sites import AtPriorMean, Use, current
from gpzoo.inference.programs.runs import Trace, check_value, relaxed_promotion, shape_of
from gpzoo.inference.programs.sites import Sites
from gpzoo.posteriors.conditional import conditional_of
from gpzoo.posteriors.coupled import Coupled, CoupledAfter
from gpzoo.posteriors.forms import Diagonal, form_of
from gpzoo.posteriors.posterior import InducingPosterior
from gpzoo.posteriors.row_by_row import RowByRow
from gpzoo.processes.process import GaussianProcess

#: Most rows of data with a structure for which a factor of their covariance is formed.
MOST_DENSE = 5000


def parameter_of(inducing: InducingVariable) -> Any:
    """The value of ``<site>_inducing``: the array of an inducing variable, or a tuple if it has several arrays."""
    leaves = tuple(jax.tree.leaves(inducing))
    return leaves[0] if len(leaves) == 1 else leaves


def variable_of(initialiser: Any, parameter: Any) -> InducingVariable:
    """The inducing variable with the value ``parameter`` of ``<site>_inducing``, of the initialiser's kind."""
    leaves = parameter if isinstance(parameter, tuple | list) else (parameter,)
    return jax.tree.unflatten(structure(initialiser), leaves)


class PosteriorHandler(Handler):
    """The handler of one call of a guide: it puts the guide's own site in place of each latent site of the model.

    Args:
        options: options of the guide.
        sites: sites of the program.
        arguments: positional and keyword arguments of the call.
        hyperparameter_guide: the guide of latent sites that are not GPs, if ``hyperparameters`` makes one.
        starting: a function from a key to the sites of all parameters, at their starting values.

    Attributes:
        values: values of the latent sites, by name.
    """

    def __init__(
        self,
        options: Options,
        sites: Sites,
        arguments: tuple[tuple, dict[str, Any]],
        hyperparameter_guide: HyperparameterGuide | None,
        starting: Callable[[PRNGKeyArray], Trace],
    ) -> None:
        super().__init__()
        self.options, self.sites, self.arguments = options, sites, arguments
        self.hyperparameter_guide, self.starting = hyperparameter_guide, starting
        self.mode = current()
        self.values: dict[str, Any] = {}
        self.plates: Trace = {}
        self.sampled: Trace | Any = None  # the sites of ``hyperparameter_guide``, after its run
        self.taken: Trace = {}
        self.initial: Trace | None = None
        self.sizes: dict[str, int] = {}  # numbers of rows in a joint root of the GP sites so far
        self.noise: dict[str, Array] = {}  # noise from which coupled sites are drawn
        self.own = OwnSites()

    def process_message(self, msg: dict[str, Any]) -> None:
        """Give a site its value, or give a plate the rows that ``hyperparameter_guide`` has taken before."""
        if self.own.restored(msg):
            return
        if msg["type"] == "plate":
            if msg["name"] in self.taken:
                msg["value"] = self.taken[msg["name"]]["value"]
        elif msg["type"] == "deterministic":
            msg["stop"] = True
        elif msg["type"] == "sample":
            self._sample(msg)

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        """Remember the plates of the program."""
        self.own.answered(msg)
        if msg["type"] == "plate":
            self.plates[msg["name"]] = msg

    def _sample(self, msg: dict[str, Any]) -> None:
        name, sites = msg["name"], self.sites
        msg["stop"] = True
        if msg["is_observed"] or name not in sites.latents:
            if msg["value"] is None:
                with self.own:
                    msg["kwargs"]["rng_key"] = numpyro.prng_key()
                with relaxed_promotion():
                    default_process_message(msg)
            return
        if msg["value"] is not None and not in_chain(msg):
            raise ValueError(
                f"Latent site {name!r} has a value from a handler around the program, such as handlers.substitute, "
                "and the guide has a posterior of it. To fix the value make it data, "
                f"handlers.condition(program, data={{{name!r}: value}})."
            )
        with self.own, nullcontext() if msg["scale"] is None else handlers.scale(scale=msg["scale"]):
            value = self._process(name, msg) if name in sites.processes else self._other(name, msg)
        self.values[name] = msg["value"] = value

    # -- GP sites ----------------------------------------------------------------------------------------------------

    def _process(self, name: str, msg: dict[str, Any]) -> Any:
        prior = msg["fn"]
        if not isinstance(prior, GaussianProcess):
            raise ValueError(f"Site {name!r} was a GaussianProcess at set-up and is a {type(prior).__name__} now.")
        options, mode = self.options, self.mode
        if isinstance(mode, AtPriorMean) and mode.looks_at == name:
            mode.seen = numpyro.prng_key(), prior.X, prior.kernel, self._before()
            return prior.mean
        inducing = self._inducing(name, for_site(options.inducing, name), prior)
        law = cast(Any, options).given_data(name, mode.prior(name, prior), inducing)
        if law is not None and isinstance(law.conditional, RowByRow):
            posterior = self._by_structure(name, prior, inducing, law)
        elif mode.given_data and law is not None:
            posterior = law
        else:
            posterior = self._posterior(name, prior, inducing)
        if isinstance(posterior.form, Coupled) and mode.draws:
            self.noise[name] = random.normal(numpyro.prng_key(), posterior.u_mean.shape, posterior.u_mean.dtype)
            posterior = posterior.given_noise(self.noise)
        residual = None
        if name in options.residual:
            outputs = posterior.conditional.outputs
            residual = numpyro.param(
                f"{name}_residual", lambda _: jnp.ones(outputs, prior.X.dtype), constraint=constraints.softplus_positive
            )
            check_value(f"{name}_residual", residual, outputs)
        use = Use(self.sites.drawn_as(name), name in options.joint, residual)
        return numpyro.sample(name, mode.posterior(posterior, use), infer=msg["infer"])

    def _by_structure(
        self, name: str, prior: GaussianProcess, inducing: InducingVariable, law: InducingPosterior
    ) -> InducingPosterior:
        """A law that uses the structure of the data, or a draw at the data's rows, without a factor of all rows."""
        if self.mode.given_data:
            return law
        if name in self.mode.at_inducing and prior.num_inputs == len(law.u_mean):
            mean: Any = numpyro.param(f"{name}_mean", None)
            return law._replace(u_mean=mean, form=Diagonal(jnp.zeros_like(mean)))
        if (rows := len(law.u_mean)) > MOST_DENSE:
            option = cast(RowByRow, law.conditional).option
            raise ValueError(
                f"This forms the covariance of all {rows} rows of the data that GP site {name!r} is given, and takes "
                f"at most {MOST_DENSE}. marginal(program, {option}=True) needs no such covariance for predict at any "
                "rows, and for to_arviz(key, X, y), which has draws at the rows of the data; rows whose data are NaN "
                "(missing='mask') are drawn there too."
            )
        return self._posterior(name, prior, inducing)

    def _posterior(self, name: str, prior: GaussianProcess, inducing: InducingVariable) -> InducingPosterior:
        """The inducing posterior of a site.

        Its mean and covariance are ``numpyro.param`` sites, ``<name>_mean`` and ``<name>_<field>`` for every field of
        the form.

        Raises:
            ValueError: for a form that does not fit the inducing variables, or a stored parameter of another form.
        """
        options = self.options
        form, whiten = options.form_at(name, self.sites), for_site(options.whiten, name, True)
        if type(form) not in (Coupled, CoupledAfter):
            form = form_of(for_site(options.covariance, name), inducing)
        conditional = conditional_of(self.mode.prior(name, prior), inducing, form, whiten=whiten, site=name)
        if isinstance(form, Coupled):
            self.sizes[name] = form.num_rows(conditional.num_inducing, conditional.outputs)
        if isinstance(form, CoupledAfter):
            before = form.group[: form.group.index(name)]
            if missing := [site for site in before if site not in self.sizes]:
                raise ValueError(
                    f"GP site {name!r} has one q with {missing}, which the program does not sample before it in this "
                    "call, as it did when the guide was set up. Sample them in every call, or give each site its own "
                    "q, InducingGuide(coupled=False)."
                )
            form = form.after([self.sizes[site] for site in before])
        form.check(conditional)
        dtype = conditional.dtype
        mean = numpyro.param(f"{name}_mean", jnp.zeros((conditional.num_inducing, *conditional.outputs), dtype))
        scale = for_site(options.initial_scale, name, 1.0)
        start = cache(lambda: form.start(conditional, jnp.asarray(scale, dtype)))
        values = {}
        for field in form.data_fields:
            limits = form.constraints.get(field, constraints.real)
            value = numpyro.param(f"{name}_{field}", lambda _, field=field: getattr(start(), field), constraint=limits)
            values[field] = tuple(value) if isinstance(value, list) else value
        return InducingPosterior(conditional, mean, form.with_values(**values))

    def _inducing(self, name: str, initialiser: Any, prior: GaussianProcess) -> InducingVariable:
        parameter = f"{name}_inducing"
        if structure(initialiser).num_leaves == 0:
            return variable_of(initialiser, ())  # a grid or waves: nothing in them is trained
        value = numpyro.param(parameter, lambda key: self._start(name, initialiser, key, prior))
        if self.options.is_fixed(name):
            value = jax.tree.map(lax.stop_gradient, value)
        return variable_of(initialiser, value)

    def _before(self) -> dict[str, Any]:
        """The values of the GP sites so far."""
        return {site: value for site, value in self.values.items() if site in self.sites.processes}

    def _start(self, name: str, initialiser: Any, key: PRNGKeyArray, prior: GaussianProcess) -> Any:
        """The initial inducing inputs; outside ``init_params``, all sites take them from one run of ``init_params``."""
        if isinstance(initialiser, InducingVariable):
            return parameter_of(initialiser)
        if isinstance(self.mode, AtPriorMean):
            if name in self.mode.made:
                return self.mode.made[name]
            return parameter_of(start(name, initialiser, key, prior.X, prior.kernel, self._before()))
        if self.initial is None:
            self.initial = self.starting(key)
        return self.initial[f"{name}_inducing"]["value"]

    # -- other latent sites ------------------------------------------------------------------------------------------

    def _other(self, name: str, msg: dict[str, Any]) -> Any:
        prior = msg["fn"]
        if more := tuple(msg["kwargs"].get("sample_shape") or ()):
            prior = prior.expand(more + prior.batch_shape)
        if self.hyperparameter_guide is not None:
            return self._of_hyperparameter_guide(name, msg, self.hyperparameter_guide)
        self._refuse_subsampled(name, msg)

        def start(key: PRNGKeyArray) -> Array:
            strategy = self.options.init_loc_fn
            site = {"type": "sample", "name": name, "fn": prior, "value": None, "is_observed": False}
            return strategy({**site, "kwargs": {"rng_key": key, "sample_shape": ()}, "infer": {}})

        if self.options.hyperparameters != "normal":
            loc = numpyro.param(f"{name}_loc", start, constraint=prior.support)
            check_value(f"{name}_loc", loc, tuple(prior.shape()))
            return numpyro.sample(name, dist.Delta(loc, event_dim=prior.event_dim), infer=msg["infer"])
        transform = biject_to(prior.support)
        loc, posterior = self._normal(name, prior, transform, start)
        if self.mode.starts:
            return transform(loc)
        return numpyro.sample(name, posterior, infer=msg["infer"])

    def _normal(
        self, name: str, prior: Any, transform: Transform, start: Callable[[PRNGKeyArray], Array]
    ) -> tuple[Array, dist.TransformedDistribution]:
        """A normal in unconstrained space, and its mean there."""
        loc: Any = numpyro.param(f"{name}_loc", lambda key: transform.inv(start(key)))
        check_value(f"{name}_loc", loc, tuple(transform.inverse_shape(prior.shape())))
        scale = numpyro.param(
            f"{name}_scale", lambda _: jnp.full_like(loc, 0.1), constraint=constraints.softplus_positive
        )
        check_value(f"{name}_scale", scale, tuple(jnp.shape(loc)))
        event_dim = prior.event_dim + transform.domain.event_dim - transform.codomain.event_dim
        return loc, dist.TransformedDistribution(dist.Normal(loc, scale).to_event(event_dim), transform)

    def _of_hyperparameter_guide(self, name: str, msg: dict[str, Any], guide: HyperparameterGuide) -> Any:
        """The site of the guide that ``hyperparameters`` makes; that guide runs at the first of its sites."""
        if self.sampled is None:
            keys = self.mode.keys_of_rows(guide.of_rows)
            self.sampled, self.taken = guide(*self.arguments, self.plates, keys)
        site = self.sampled[name]
        check_value(name, site["value"], shape_of(msg))
        if self.mode.starts:
            return site["value"]
        with handlers.substitute(data={name: site["value"]}):
            return numpyro.sample(name, site["fn"], infer=msg["infer"])

    def _refuse_subsampled(self, name: str, msg: dict[str, Any]) -> None:
        for frame in msg["cond_indep_stack"]:
            size = self.plates[frame.name]["args"][0] if frame.name in self.plates else frame.size
            if size != frame.size:
                raise ValueError(
                    f"Latent site {name!r} is inside the subsampled plate {frame.name!r} ({frame.size} of {size}): "
                    "InducingGuide holds no parameters per datum by itself. Move the site out of the plate, use the "
                    "whole data, or give the site a guide of yours that does, InducingGuide(..., "
                    "hyperparameters=lambda program: my_guide)."
                )
