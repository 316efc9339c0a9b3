"""Every way in takes and refuses the same: odd arguments mean their plain arrays, bad ones are named.

``make stress`` runs all 2,850 cases, other runs a tenth of them.
"""

from __future__ import annotations

import importlib
import os
import re
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from numpyro.infer import SVI

from gpzoo import _checks as checks
from gpzoo.errors import GPZooError
from gpzoo.inducing.initialisers import kmeans
from gpzoo.inference import (
    CollapsedELBO,
    GaussianProcessELBO,
    ImportanceWeightedELBO,
    InducingGuide,
    Trained,
    compare,
    draws_to_arviz,
    fit,
)
from gpzoo.models import fit_deep_kernel, gp_regression
from tests.programs import KEY, with_model_kwargs
from tests.robustness.odd import COUNTS, DTYPES, FORMS, JUNK, KEYS, NUMBERS, Odd, meaningful, meaningless

# Several modules are named as their functions are.
map_batches, export, comparison, functions, training, models = (
    importlib.import_module(f"gpzoo.inference.{name}")
    for name in (
        "fitted.map_batches",
        "fitted.export",
        "training.comparison",
        "fitted.functions",
        "training.fit",
        "fitted.trained",
    )
)
deep_kernel = importlib.import_module("gpzoo.models.train_deep_kernel")

N, M, D = 6, 3, 2
STRESS = bool(os.environ.get("GPZOO_STRESS"))
#: Cases of each test.
CASES = 150 if STRESS else 15
#: No refusal takes longer than this many seconds.
SOON = 10.0

rng = np.random.default_rng(0)
X, y = rng.standard_normal((N, D)), rng.standard_normal(N)
NEW, TARGETS = rng.standard_normal((N, D)), rng.standard_normal(N)
PACKAGE = Path(training.__file__).parents[2]


class Reached(BaseException):
    """An entry point has let its arguments pass."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments


def reaching(*arguments: Any, **options: Any) -> Any:
    """In the place of what an entry point does with its arguments."""
    raise Reached(*arguments)


@pytest.fixture(scope="module")
def trained() -> tuple[InducingGuide, dict[str, Any]]:
    guide = InducingGuide(gp_regression, kmeans(M))
    params = guide.init_params(KEY, jnp.asarray(X), jnp.asarray(y))
    return guide, params | {"f_mean": jnp.asarray(rng.standard_normal(M))}


def outcome(call: Any, *arguments: Any, **options: Any) -> Any:
    """What a call returns, or lets pass, as a list of arrays."""
    try:
        found = call(*arguments, **options)
    except Reached as reached:
        found = reached.arguments
    return [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(found)]


def refused(name: str, call: Any, *arguments: Any, **options: Any) -> None:
    """The call is refused in our words, which name the argument."""
    began = time.perf_counter()
    try:
        outcome(call, *arguments, **options)
    except (ValueError, TypeError, GPZooError) as error:
        assert type(error) in (ValueError, TypeError) or isinstance(error, GPZooError), repr(error)
        assert re.search(rf"(?<!\w){re.escape(name)}(?!\w)", str(error)), f"{name!r} is not named by: {error}"
        trace = error.__traceback__
        while trace.tb_next is not None:
            trace = trace.tb_next
        raised_by = Path(trace.tb_frame.f_code.co_filename)
        assert PACKAGE in raised_by.parents and ".venv" not in raised_by.relative_to(PACKAGE).parts, f"{error!r}"
    else:
        raise AssertionError(f"{name} was accepted.")
    assert time.perf_counter() - began < SOON


def attack(record_property: Any, entry: str, strategy: Any, check: Any, cases: int = CASES) -> None:
    """Runs ``check`` on what ``strategy`` gives, counting what was refused and what had the plain arrays' result."""
    counts: Counter = Counter()

    @settings(
        max_examples=cases,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def run(case: Any) -> None:
        counts[check(case)] += 1

    run()
    record_property("robustness", (entry, counts["refused"], counts["equal"]))


def data(shapes: dict[str, tuple[int, ...]], dtypes: tuple[str, ...] = DTYPES) -> Any:
    """Cases of one argument: its name, and what is passed."""
    return st.one_of(
        [
            st.tuples(st.just(name), odd)
            for name, shape in shapes.items()
            for odd in (meaningful(shape, dtypes), meaningless(shape))
        ]
    )


# -- data --------------------------------------------------------------------------------------------------------------


def predicted(call: Any, given: dict) -> Any:
    found = call(KEY, given["X"], test_data={"y": given["test_data['y']"]})
    return found["f"].mean, found["y"].log_density


def trained_with(guide: InducingGuide, params: dict) -> Trained:
    return Trained(gp_regression, guide, params)


def asked(method: Any, options: dict, *arguments: Any) -> Any:
    """A call of a method, with ``num_data`` for the program."""
    return method(options.pop("rng_key", KEY), *arguments, **with_model_kwargs(options, method))


def network(X: Any, training: bool) -> Any:
    """Nothing is trained of it here."""


TRAINING, TEST = {"X": X, "y": y}, {"X": NEW, "test_data['y']": TARGETS}
SVI_OF = partial(SVI, gp_regression, optim=optax.adam(0.01), loss=GaussianProcessELBO())
CANDIDATES = {"a": (gp_regression, kmeans(M))}
SAMPLES = {"f": np.zeros((1, 2, N))}
#: By entry point: its data by name, and how it is called with a guide, its parameters, and the data.
WAYS = {
    "fit": (TRAINING, lambda g, p, a: fit(KEY, SVI_OF(guide=g), 3, a["X"], a["y"], progress=False)),
    "predict": (TEST, lambda g, p, a: predicted(trained_with(g, p).predict, a)),
    "functions": ({"X": NEW}, lambda g, p, a: trained_with(g, p).functions(KEY, a["X"])),
    "function": ({"X": NEW}, lambda g, p, a: trained_with(g, p).function(KEY)(a["X"])),
    "to_arviz": (TRAINING, lambda g, p, a: trained_with(g, p).to_arviz(KEY, a["X"], a["y"])),
    "compare": (
        TRAINING | {"X_test": NEW, "y_test": TARGETS},
        lambda g, p, a: compare(KEY, CANDIDATES, *a.values(), num_steps=1, progress=False),
    ),
    "guide.setup": (TRAINING, lambda g, p, a: g.setup(a["X"], a["y"])),
    "guide.init_params": (TRAINING, lambda g, p, a: g.init_params(KEY, a["X"], a["y"])),
    "posterior": (TRAINING, lambda g, p, a: trained_with(g, p).posterior(KEY, a["X"], a["y"])["f"].mean),
    "condition": (TRAINING, lambda g, p, a: trained_with(g, p).condition(KEY, a["X"], a["y"])),
    "add_inducing": ({"X": NEW}, lambda g, p, a: trained_with(g, p).add_inducing(KEY, kmeans(2), a["X"])),
    "fit_deep_kernel": (TRAINING, lambda g, p, a: fit_deep_kernel(KEY, a["X"], a["y"], network=network)),
    "draws_to_arviz": (
        TRAINING,
        lambda g, p, a: draws_to_arviz(KEY, gp_regression, a["X"], a["y"], posterior_samples=SAMPLES, params=p),
    ),
    "CollapsedELBO.optimal": (TRAINING, lambda g, p, a: CollapsedELBO().optimal(p, g, a["X"], a["y"])),
}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Arguments that pass are not computed with, or by one compiled program for all."""
    compiled, compiled_for = {}, map_batches.BoundModel.compiled_for

    def once(model: Any, fn: Any) -> Any:
        return compiled.setdefault(fn.name, compiled_for(model, fn))

    def stop(entry: str) -> None:
        if entry == "fit":
            monkeypatch.setattr(training, "start", lambda setup, *rest: reaching(setup.source.on_one_device))
        elif entry in ("functions", "function"):
            monkeypatch.setattr(functions, "refuse_batches", lambda model, *rest: reaching(model.args))
        elif entry == "compare":
            monkeypatch.setattr(comparison, "InducingGuide", type("Guide", (), {"__init__": noted, "sites_for": last}))
        elif entry == "fit_deep_kernel":
            monkeypatch.setattr(deep_kernel, "fit_network", lambda key, X, y, **rest: reaching(X, y))
        elif entry in ("to_arviz", "guide.setup", "guide.init_params"):
            monkeypatch.setattr(InducingGuide, "sites_for", last)
        elif entry == "condition":
            monkeypatch.setattr(models, "updated", lambda model, *rest, **options: reaching(model.args))
        elif entry == "add_inducing":
            monkeypatch.setattr(models, "extended", lambda *given: reaching(given[4]))
        elif entry == "predict":
            monkeypatch.setattr(map_batches.BoundModel, "compiled_for", once)
        elif entry == "draws_to_arviz":
            monkeypatch.setattr(export, "look", lambda model, args, *rest, **options: reaching(args))
        elif entry == "CollapsedELBO.optimal":
            monkeypatch.setattr(CollapsedELBO, "finisher", lambda *rest: lambda params, args, arrays: reaching(args))

    def noted(self: Any, *candidate: Any) -> None:
        """A guide that is not made."""

    def last(self: Any, args: tuple, kwargs: dict) -> None:
        raise Reached(args)

    return stop


@pytest.mark.parametrize("entry", WAYS)
def test_data(entry, trained, quick, record_property, standard_promotion):
    defaults, call = WAYS[entry]
    call = partial(call, *trained)
    quick(entry)
    # Whole programs are compiled for every kind of number.
    dtypes = ("float64", "int64", "float32") if entry in ("predict", "posterior") else DTYPES

    def check(case: tuple[str, Odd]) -> str:
        name, odd = case
        if odd.plain is None:
            refused(name, call, defaults | {name: odd.value})
            return "refused"
        found, wanted = (outcome(call, defaults | {name: x}) for x in (odd.value, odd.plain))
        assert len(found) == len(wanted) > 0
        for one, other in zip(found, wanted, strict=True):
            tolerance = 1e-4 if "float32" in odd.what else 1e-12
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)
            assert np.isfinite(one).all()
        return "equal"

    attack(record_property, entry, data({name: x.shape for name, x in defaults.items()}, dtypes), check)


# -- what is computed from odd data ------------------------------------------------------------------------------------

#: Forms by the kind of container that they have; each becomes a NumPy array of some dtype, or is JAX's.
KINDS = {
    "NumPy": [form for form in FORMS if not form.startswith(("jax", "pandas", "list", "tuple"))],
    "JAX": ["jax"],
    "pandas": ["pandas", "pandas columns of objects"],
    "list": ["list", "tuple", "list of scalars"],
}
#: A form for every kind of number in every kind of container, all forms among them.
ODD_FORMS = [(dtype, forms[i % len(forms)]) for i, dtype in enumerate(DTYPES) for forms in KINDS.values()]


def linear(X: Any, training: bool) -> Any:
    return X @ numpyro.param("weights", jnp.eye(D, dtype=jnp.result_type(X, jnp.float32)))


def trained_twice(guide: InducingGuide, *data: Any) -> Any:
    found = fit(KEY, SVI_OF(guide=guide), 2, *data, progress=False)
    return found.params, found.losses


def drawn(key: Any, guide: InducingGuide, params: dict, X: Any, y: Any) -> Any:
    found = trained_with(guide, params).to_arviz(key, X, y, num_draws=2)
    return [found[group][name].to_numpy() for group in ("posterior", "log_likelihood") for name in found[group]]


def compared(key: Any, *data: Any) -> Any:
    found = compare(key, CANDIDATES, *data, num_steps=2, progress=False)["a"]
    return found.bound, found.nlpp, found.trained.losses, found.trained.params


def trained_in_phases(key: Any, X: Any, y: Any) -> Any:
    options = {"inducing": kmeans(M), "num_steps": (1, 1, 1), "progress": False}
    found = fit_deep_kernel(key, X, y, network=linear, **options)
    return [(phase.losses, phase.params) for phase in (found.network, found.features, found.joint)]


#: By entry point: its data, what it computes of them, and which of the forms it is tried with.
COMPUTED = {
    "fit": (TRAINING, lambda g, p, *a: trained_twice(g, *a), ODD_FORMS),
    "functions": (
        {"X": NEW},
        lambda g, p, X: trained_with(g, p).functions(KEY, X, num_draws=2, num_features=4),
        ODD_FORMS,
    ),
    "to_arviz": (TRAINING, lambda g, p, *a: drawn(KEY, g, p, *a), ODD_FORMS),
    "compare": (TRAINING | {"X_test": NEW, "y_test": TARGETS}, lambda g, p, *a: compared(KEY, *a), ODD_FORMS),
    "guide.init_params": (TRAINING, lambda g, p, *a: g.init_params(KEY, *a), ODD_FORMS),
    # Three trainings: every kind of number once.
    "fit_deep_kernel": (TRAINING, lambda g, p, *a: trained_in_phases(KEY, *a), ODD_FORMS[:: len(KINDS) + 1]),
}


@pytest.mark.slow_but(entry=["predict", "fit"])
@pytest.mark.parametrize("entry", COMPUTED)
def test_odd_data_give_the_bits_of_plain_arrays(entry, trained, record_property, standard_promotion):
    """The result of an entry point, of all its data in an odd form at once, is that of NumPy arrays, bit for bit.

    A run for every case of ``test_data`` is too dear: it is run for every kind of number in every kind of container
    (``make stress``), or for one of those; ``fit_deep_kernel`` for every kind of number once, or not at all.
    """
    defaults, compute, forms = COMPUTED[entry]
    if not STRESS:
        forms = [] if entry == "fit_deep_kernel" else [("float64", "pandas columns of objects")]
    known: dict[tuple, Any] = {}

    def result(*arrays: Any) -> list[np.ndarray]:
        return [np.asarray(leaf) for leaf in jax.tree.leaves(compute(*trained, *arrays))]

    for dtype, form in forms:
        plain = []
        for name, default in defaults.items():
            whole = np.random.default_rng(len(name)).integers(0, 12, default.shape)
            labels = dtype == "bool" or (name == "y" and entry == "fit_deep_kernel")
            plain.append((whole % 2 if labels else whole / 8 if dtype.startswith("float") else whole).astype(dtype))
        odd = [FORMS[form](x) for x in plain]
        # Lists have no dtype: the gate gives them one.
        twins = [x.astype(checks.data("x", value).dtype) for x, value in zip(plain, odd, strict=True)]
        key = (dtype, *(x.dtype for x in twins))
        if key not in known:
            known[key] = result(*twins)
        found, wanted = result(*odd), known[key]
        assert len(found) == len(wanted) > 0
        for one, other in zip(found, wanted, strict=True):
            assert one.dtype == other.dtype, (dtype, form)
            np.testing.assert_array_equal(one, other, err_msg=f"{form} of {dtype}")
            assert np.isfinite(one).all()
    record_property("robustness", (f"{entry}, computed", 0, len(forms)))


# -- options -----------------------------------------------------------------------------------------------------------


def options(bad: dict[str, Any]) -> Any:
    """Cases of one option: its name, and what it must not be."""
    return st.one_of([st.tuples(st.just(name), values) for name, values in bad.items()])


def not_none(values: Any) -> Any:
    return values.filter(lambda value: value is not None)


NOT_NEGATIVE = NUMBERS.filter(lambda value: not (type(value) in (int, float) and value == 0))
FIT = {
    "rng_key": KEYS,
    "num_steps": COUNTS.filter(lambda n: not (type(n) is int and n == 0)),
    "batch_size": not_none(COUNTS),
    "callback_steps": COUNTS,
    "checkpoint_seconds": NUMBERS.filter(
        lambda n: n is False or n is True or not (isinstance(n, int | float) and n == 0)
    ),
    "natural": not_none(NUMBERS).filter(lambda value: value is not np.sin and not isinstance(value, dict)),
    "num_data": not_none(COUNTS),
}
PREDICT = {
    "rng_key": KEYS,
    "num_draws": COUNTS,
    "batch_size": COUNTS,
    "num_data": not_none(COUNTS),
    "quantiles": not_none(JUNK),
}
GUIDE = {
    "whiten": st.one_of(JUNK, st.sampled_from(["a", 0, 1, np.True_, {"f": "yes"}, {"f": 1}])),
    "initial_scale": st.one_of(NUMBERS, NUMBERS.map(lambda value: {"f": value})),
    "covariance": st.one_of(not_none(JUNK), st.text(max_size=8), st.just({"f": "fulll"})),
    "rank": COUNTS,
    "hyperparameters": st.one_of(JUNK, st.text(max_size=8)),
}
# Nothing said of any site is no mistake.
GUIDE = {name: values.filter(lambda value: not isinstance(value, dict) or value) for name, values in GUIDE.items()}
OPTIONS = {
    "fit": (
        FIT,
        lambda g, p, o: fit(
            o.pop("rng_key", KEY), SVI_OF(guide=g), o.pop("num_steps", 3), X, y, progress=False, **with_model_kwargs(o)
        ),
    ),
    "predict": (PREDICT, lambda g, p, o: asked(trained_with(g, p).predict, o, NEW)),
    "functions": (
        {"num_features": COUNTS} | {name: values for name, values in PREDICT.items() if name != "quantiles"},
        lambda g, p, o: asked(trained_with(g, p).functions, o, NEW),
    ),
    "to_arviz": (
        {"rng_key": KEYS, "num_draws": COUNTS, "num_data": not_none(COUNTS)},
        lambda g, p, o: asked(trained_with(g, p).to_arviz, o, X, y),
    ),
    "compare": (
        {
            "rng_key": KEYS,
            "num_steps": COUNTS,
            "batch_size": not_none(COUNTS),
            "learning_rate": NUMBERS.filter(lambda v: v is not np.sin),
        },
        lambda g, p, o: compare(o.pop("rng_key", KEY), CANDIDATES, X, y, progress=False, **({"num_steps": 1} | o)),
    ),
    "InducingGuide": (GUIDE, lambda g, p, o: InducingGuide(gp_regression, kmeans(M), **o)),
    "GaussianProcessELBO": ({"num_particles": COUNTS}, lambda g, p, o: GaussianProcessELBO(**o)),
    "ImportanceWeightedELBO": ({"num_particles": COUNTS}, lambda g, p, o: ImportanceWeightedELBO(5, **o)),
    "posterior": (
        {"rng_key": KEYS, "num_data": not_none(COUNTS)},
        lambda g, p, o: asked(trained_with(g, p).posterior, o, X, y),
    ),
    "condition": (
        {
            "rng_key": KEYS,
            "num_steps": COUNTS,
            "num_draws": COUNTS,
            "batch_size": not_none(COUNTS),
            "sites": not_none(JUNK),
            "num_data": not_none(COUNTS),
        },
        lambda g, p, o: asked(trained_with(g, p).condition, o, X, y),
    ),
    "add_inducing": (
        {"rng_key": KEYS, "inducing": JUNK.filter(lambda value: not isinstance(value, dict) or value)},
        lambda g, p, o: trained_with(g, p).add_inducing(o.pop("rng_key", KEY), o.pop("inducing", kmeans(2)), X),
    ),
    "fit_deep_kernel": (
        {
            "rng_key": KEYS,
            "batch_size": not_none(COUNTS),
            "weight_decay": NOT_NEGATIVE,
        },
        lambda g, p, o: fit_deep_kernel(o.pop("rng_key", KEY), X, y, network=network, **o),
    ),
}


@pytest.mark.parametrize("entry", OPTIONS)
def test_options(entry, trained, record_property):
    bad, call = OPTIONS[entry]

    def check(case: tuple[str, Any]) -> str:
        name, value = case
        refused(name, lambda: call(*trained, {name: value}))
        return "refused"

    attack(record_property, f"{entry}, options", options(bad), check, CASES // 2)


# -- parameters --------------------------------------------------------------------------------------------------------


def loss(guide: InducingGuide, params: dict) -> Any:
    return GaussianProcessELBO().loss(KEY, params, gp_regression, guide, jnp.asarray(X), jnp.asarray(y))


PARAMETERS = {
    "predict": lambda g, p: trained_with(g, p).predict(KEY, NEW),
    "functions": lambda g, p: trained_with(g, p).functions(KEY, NEW),
    "to_arviz": lambda g, p: trained_with(g, p).to_arviz(KEY, X, y),
    "posterior": lambda g, p: trained_with(g, p).posterior(KEY, X, y),
    "condition": lambda g, p: trained_with(g, p).condition(KEY, X, y),
    "add_inducing": lambda g, p: trained_with(g, p).add_inducing(KEY, kmeans(2), X),
    "objective": loss,
}
CHANGES = {
    "missing": lambda name, i: (name, lambda p: {k: v for k, v in p.items() if k != name}),
    "misspelt": lambda name, i: (
        name,
        lambda p: {(k + "s" * (1 + i % 3) if k == name else k): v for k, v in p.items()},
    ),
    "unknown": lambda name, i: (f"{name}_{i}", lambda p: p | {f"{name}_{i}": jnp.zeros(i % 4)}),
    "low rank that is none": lambda name, i: ("f_factors", lambda p: p | {"f_factors": jnp.zeros((M, 1 + i % 3))}),
}
VALUES = {
    "NaN": lambda v, i: _at(v, np.nan, i),
    "infinity": lambda v, i: _at(v, -np.inf, i),
    "text": lambda v, i: "text" * (1 + i % 3),
    "None in an array": lambda v, i: np.full(v.shape, None),
    "complex": lambda v, i: np.asarray(v, complex),
    "strings": lambda v, i: np.asarray(v).astype(str),
    "masked": lambda v, i: np.ma.masked_array(v),
}
SHAPES = {
    "one more axis": lambda v, i: jnp.asarray(v)[None],
    "too long": lambda v, i: jnp.concatenate([jnp.atleast_1d(v)] * (2 + i % 3)),
    "too short": lambda v, i: jnp.atleast_1d(v)[:0],
}


def _at(v: Any, value: float, i: int) -> Any:
    v = np.array(v)
    v.flat[i % v.size] = value
    return jnp.asarray(v)


@pytest.mark.parametrize("entry", PARAMETERS)
def test_parameters(entry, trained, record_property):
    guide, params = trained
    call = PARAMETERS[entry]
    kinds = CHANGES if entry == "objective" else CHANGES | VALUES | SHAPES
    names = st.sampled_from(sorted(params))

    def check(case: tuple[str, str, int]) -> str:
        name, kind, i = case
        if kind in CHANGES:
            named, change = CHANGES[kind](name, i)
            changed = change(dict(params))
        else:
            changed = params | {name: (VALUES | SHAPES)[kind](params[name], i)}
            # The parameters of q are named by their site.
            named = name if kind in VALUES or name not in ("f_inducing", "f_mean", "f_scale") else "f"
        refused(named, call, guide, changed)
        return "refused"

    cases = st.tuples(names, st.sampled_from(sorted(kinds)), st.integers(0, 10_000))
    attack(record_property, f"{entry}, parameters", cases, check, CASES // 2)
