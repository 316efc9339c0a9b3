"""Options of a guide, one for all sites or one for each by name, and the parameters that follow from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from numpyro.distributions import constraints
from numpyro.distributions.constraints import Constraint
from numpyro.infer import init_to_median

from gpzoo import _checks as checks
from gpzoo.inducing.initialisers import Initialiser, structure
from gpzoo.inducing.variables import InducingVariable
from gpzoo.inference.guides.hyperparameter_guide import HyperparameterGuide
from gpzoo.inference.programs.arguments import refuse_unknown
from gpzoo.inference.programs.sites import Sites
from gpzoo.posteriors.coupled import Coupled, CoupledAfter
from gpzoo.posteriors.forms import Form, form_of

#: The inducing variables of all sites, or of each by name, or their initialisers.
Inducing: TypeAlias = Initialiser | InducingVariable | Mapping[str, Initialiser | InducingVariable]


def for_site(value: Any, site: str, default: Any = None) -> Any:
    """The value of a guide's option for a site: one value for all, or by name."""
    return value.get(site, default) if isinstance(value, Mapping) else value


def check_inducing(value: Any, *, made: bool = False) -> None:
    """Refuse a value that is not an inducing variable or an initialiser; with ``made``, refuse initialisers too.

    Raises:
        TypeError: naming the type.
    """
    initialiser = callable(value) and hasattr(value, "variable") and not made
    checks.refuse(
        not isinstance(value, InducingVariable) and not initialiser,
        "inducing must be an initialiser such as kmeans(100), an inducing variable such as InducingPoints(Z), or a "
        f"mapping from site name to these; got {type(value).__name__}.",
        TypeError,
    )


class Options:
    """The options of :class:`~gpzoo.inference.InducingGuide`, checked."""

    sites: Sites | Any = None  # until the program is first traced

    def __init__(
        self,
        model: Callable,
        inducing: Inducing,
        *,
        whiten: bool | Mapping[str, bool] = True,
        covariance: str | Form | type[Form] | Mapping[str, str | Form | type[Form]] | None = None,
        initial_scale: float | Mapping[str, float] = 1.0,
        hyperparameters: str | Callable[[Callable], Callable] = "point",
        joint: Iterable[str] = (),
        residual: Iterable[str] = (),
        coupled: bool | Iterable[str] | Iterable[Iterable[str]] = True,
        fixed: bool | Iterable[str] = False,
        init_loc_fn: Callable = init_to_median,
    ) -> None:
        for form in _values_of(covariance):
            form_of(form, None)
        for value in _values_of(whiten):
            message = f"whiten must be True or False, or a mapping from site name to these; got {value!r}."
            checks.refuse(not isinstance(value, bool), message, TypeError)
        for value in _values_of(initial_scale):
            checks.positive_number("initial_scale", value)
        if not callable(hyperparameters):
            checks.one_of("hyperparameters", hyperparameters, ("point", "normal"))
        for entry in _values_of(inducing):
            check_inducing(entry)
        self.model = model
        self.inducing = inducing
        self.whiten, self.covariance, self.initial_scale = whiten, covariance, initial_scale
        self.hyperparameters = hyperparameters
        self.joint = frozenset([joint] if isinstance(joint, str) else joint)
        self.residual = frozenset([residual] if isinstance(residual, str) else residual)
        self.coupled = _groups(coupled)
        self.fixed = _names("fixed", fixed)
        self.init_loc_fn = init_loc_fn

    def form_at(self, site: str, sites: Sites | None = None) -> Form:
        """The form of ``q(u)`` of a GP site, without values; before set-up, pass the program's ``sites``."""
        sites = self.sites if sites is None else sites
        if sites is not None and (group := sites.group_of(site)):
            return (Coupled if site == group[0] else CoupledAfter)(group=group, together=site in sites.together)
        return form_of(for_site(self.covariance, site), for_site(self.inducing, site))

    def is_fixed(self, site: str) -> bool:
        """Whether the inducing variables of a GP site stay where they start."""
        return self.fixed if isinstance(self.fixed, bool) else site in self.fixed

    def parameters(
        self, sites: Sites, hyperparameter_guide: HyperparameterGuide | None
    ) -> dict[str, Constraint | None]:
        """The guide's own parameters (not the program's) by name, with the constraints that given values must satisfy.

        Args:
            sites: sites of the program.
            hyperparameter_guide: the guide of latent sites that are not GPs, if ``hyperparameters`` makes one.
        """
        own = self._of_processes(sites)
        for site in self.residual:
            own[f"{site}_residual"] = constraints.positive
        if callable(self.hyperparameters):
            return own | ({} if hyperparameter_guide is None else hyperparameter_guide.parameters)
        for site in sites.latents - sites.processes:
            if self.hyperparameters == "point":
                own[f"{site}_loc"] = sites.constraints.get(site)
            else:
                own |= {f"{site}_loc": None, f"{site}_scale": constraints.positive}
        return own

    def _of_processes(self, sites: Sites) -> dict[str, Constraint | None]:
        own: dict[str, Constraint | None] = {}
        for site in sites.processes:
            inducing = for_site(self.inducing, site)
            trained = inducing is None or structure(inducing).num_leaves
            parts = ("mean", *self.form_at(site, sites).data_fields, *(("inducing",) if trained else ()))
            for part in parts:
                own[f"{site}_{part}"] = None
        return own

    def check_names(self, sites: Sites, hyperparameter_guide: HyperparameterGuide | None) -> None:
        """Refuse names in options that are not GP sites, and parameters that would have the name of another site.

        Raises:
            ValueError: with these names.
        """
        arguments = {"inducing": self.inducing, "whiten": self.whiten, "covariance": self.covariance}
        arguments |= {"initial_scale": self.initial_scale, "joint": self.joint, "residual": self.residual}
        arguments |= {"coupled": frozenset().union(*self.coupled) if isinstance(self.coupled, tuple) else ()}
        arguments |= {"fixed": self.fixed}
        for argument, value in arguments.items():
            names = value if isinstance(value, Mapping | frozenset) else ()
            refuse_unknown(f"InducingGuide({argument}=...)", names, sites.processes, "model's latent GP sites")
        drawn, taken = (
            self.residual & (sites.drawn | self.joint),
            self.parameters(sites, hyperparameter_guide).keys() & sites.names,
        )
        missing = sites.processes.difference(self.inducing) if isinstance(self.inducing, Mapping) else ()
        checks.refuse(
            drawn,
            f"InducingGuide(residual=...) names {sorted(drawn)}, which are drawn: the program draws them, or "
            "joint=... names them. Draws have their full variance: leave these sites out.",
        )
        checks.refuse(
            taken, f"The guide's parameters would be named {sorted(taken)}, like sites of the model: rename these."
        )
        checks.refuse(missing, f"InducingGuide(inducing=...) has no entry for the GP site(s) {sorted(missing)}.")


def _names(option: str, names: Any) -> bool | frozenset[str]:
    """An option that is true for all GP sites, for none, or for the sites that it names."""
    if isinstance(names, bool):
        return names
    message = f"{option} must be True, False or names of GP sites, got {names!r}."
    checks.refuse(not isinstance(names, Iterable), message, TypeError)
    found = frozenset([names] if isinstance(names, str) else names)
    checks.refuse(not all(isinstance(name, str) for name in found), message, TypeError)
    return found


def _groups(coupled: Any) -> bool | tuple[frozenset[str], ...]:
    """The option ``coupled``: groups of names, or whether sites of sums are found."""
    if isinstance(coupled, bool):
        return coupled
    message = f"coupled must be True, False, names of GP sites or groups of names; got {coupled!r}."
    checks.refuse(isinstance(coupled, str) or not isinstance(coupled, Iterable), message, TypeError)
    entries = list(coupled)
    groups = [entries] if all(isinstance(entry, str) for entry in entries) else entries
    for group in groups:
        named = isinstance(group, Iterable) and not isinstance(group, str)
        checks.refuse(not named or not all(isinstance(name, str) for name in group), message, TypeError)
    return tuple(map(frozenset, groups))


def _values_of(option: Any) -> tuple:
    """The values of an option, given for all sites or by name."""
    return tuple(option.values()) if isinstance(option, Mapping) else (option,)
