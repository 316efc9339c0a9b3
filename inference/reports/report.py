"""What is a trained model, and should it be believed? One file that says so, for oneself and for others."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array

import gpzoo
from gpzoo import _checks as checks
from gpzoo._pytree import Fields
from gpzoo._types import Argument
from gpzoo.inference.asking.saved import checked_path
from gpzoo.inference.asking.trained import Trained
from gpzoo.inference.diagnosis.diagnose import diagnose
from gpzoo.inference.diagnosis.findings import Diagnosis, Section, shown
from gpzoo.inference.programs import files
from gpzoo.inference.programs.arguments import arguments
from gpzoo.inference.programs.calls import entry_point
from gpzoo.inference.programs.keys import named_key
from gpzoo.inference.programs.program import Look, look
from gpzoo.inference.programs.runs import unmasked
from gpzoo.inference.reports.document import Block, Code, Folded, Part, Picture, page
from gpzoo.inference.reports.drawn import picture
from gpzoo.processes.marginals import GaussianMarginals
from gpzoo.processes.process import GaussianProcess

#: What the picture of the bound shows.
BOUND = "The evidence lower bound at every step of the training."

#: Entries of a parameter that are written out.
_WRITTEN = 4

#: Draws of a hyperparameter behind its interval.
_DRAWS = 1000

#: Rows between which the covariance by class is drawn: of vectors, and of images, which take longer.
_ROWS, _ROWS_OF_IMAGES = 120, 30


@entry_point
def report(
    rng_key: Array,
    trained: Trained,
    *args: Argument,
    path: str | os.PathLike[str],
    train_args: tuple[Argument, ...] | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
) -> Path:
    """Write what a trained model is, and what it says of data, best held out, as one HTML file.

    The file needs no network, no server and no script: findings in words, the program with its sites and priors, its
    parameters, the bound by site, pictures that fit the model with their numbers, versions, and how to make it again.

    Example:
        >>> import jax, pathlib, tempfile, numpy as np
        >>> from gpzoo import kmeans
        >>> from gpzoo.inference import InducingGuide, Trained, report
        >>> from gpzoo.models import gp_regression
        >>> X = np.linspace(0, 6, 50, dtype=np.float32)[:, None]
        >>> y, guide = np.sin(X[:, 0]), InducingGuide(gp_regression, kmeans(8))
        >>> start = Trained(gp_regression, guide, guide.init_params(jax.random.key(0), X, y))
        >>> path = report(jax.random.key(1), start, X, y, path=pathlib.Path(tempfile.mkdtemp()) / "report.html")
        >>> path.name, "<html" in path.read_text()
        ('report.html', True)

    Args:
        rng_key: key of the draws.
        trained: the model.
        *args: the program's positional arguments, data included.
        path: of the file.
        train_args: see :func:`~gpzoo.inference.diagnosis.diagnose.diagnose`.
        model_kwargs: the program's keyword arguments, by name.

    Returns:
        The path of the file.

    Raises:
        MissingExtraError: without matplotlib or jinja2.
        TypeError: for data that are no real numbers, or an ``rng_key`` that is no key.
        ValueError: for no data, data that are not finite, or parameters that are missing or of another shape.
        FactorisationError: naming the GP site whose covariance does not factorise at these parameters.
        OSError: if the file cannot be written, or ``path`` is no regular file or link to one.
    """
    files.target(path := checked_path(path))
    if not args:
        raise ValueError("report needs the program's arguments, data included: report(key, trained, X, y, path=...).")
    name = named(trained.model)
    found = parts(rng_key, trained, args, model_kwargs, train_args=train_args)
    with files.replacing(path) as temporary:
        temporary.write_text(page(f"Report: {name}", subtitle(args), found), encoding="utf-8")
    return path


def subtitle(args: tuple) -> str:
    """What numbers of a report are of."""
    return f"{_rows(args):,} rows of data were looked at. Every number is of these rows unless it says otherwise."


def parts(
    rng_key: Array,
    trained: Trained,
    args: tuple,
    model_kwargs: Mapping[str, Any] | None = None,
    *,
    train_args: tuple | None = None,
    again: str | None = None,
) -> tuple[Part, ...]:
    """The parts of a report on a trained model.

    Args:
        rng_key: key of the draws.
        trained: the model.
        args: the program's positional arguments, data included.
        model_kwargs: its keyword arguments, by name.
        train_args: the positional arguments of training, where ``args`` are others.
        again: a command that makes the same model; lines of Python if ``None``.
    """
    rng_key = checks.rng_key(rng_key)
    guide = trained._usable_guide()
    args, kwargs = arguments(guide.model, args, model_kwargs, new=True)
    guide.sites_for(args, kwargs)
    found = diagnose(named_key(rng_key, "diagnose"), trained, *args, train_args=train_args, model_kwargs=kwargs)
    seen = look(guide.model, args, kwargs)
    pictures, left_out = _pictures(named_key(rng_key, "pictures"), trained, args, kwargs, found)
    bound = [table for table in found.sections if table.title in ("The bound by site", "Training")]
    words: Block = found.findings or "No finding: nothing that was looked at is out of the ordinary."
    return (
        Part("What to know", [words]),
        Part(
            "Pictures",
            [*pictures, *([Folded("Pictures that do not fit this model", (left_out,))] if left_out.rows else [])],
        ),
        Part("The program", [_sites(guide.model, seen)]),
        Part("Parameters", [_parameters(rng_key, trained, seen, args, kwargs)]),
        Part("The bound", bound),
        Part("Measured", [table for table in found.sections if table not in bound]),
        Part("Environment", [environment(trained), *data_of_training(trained)]),
        Part("How to make it again", _again(rng_key, trained, args, kwargs, train_args, again)),
    )


def _rows(args: tuple) -> int:
    return len(next(x for x in jax.tree.leaves(args) if np.ndim(x)))


# -- the program -------------------------------------------------------------------------------------------------------


def named(program: Callable) -> str:
    """The name of a program, without arguments that are bound to it."""
    while isinstance(program, partial):
        program = program.func
    return getattr(program, "__name__", type(program).__name__)


def _sites(program: Callable, seen: Look) -> Section:
    """Every site of the program, in its order."""
    rows, sizes = [], {name: site["args"][0] for name, site in seen.trace.items() if site["type"] == "plate"}
    for name, site in seen.trace.items():
        if site["type"] not in ("sample", "param", "mutable", "deterministic"):
            continue
        shape = list(np.shape(site["value"])) if hasattr(site["value"], "shape") else None
        kind, what = _kind(site)
        if name in seen.lines:
            kind += f", drawn ({' and '.join(seen.lines[name])})"
        if site["type"] == "sample":
            shape = list(site["fn"].shape())
        frames = [(frame.name, frame.size, sizes.get(frame.name)) for frame in site.get("cond_indep_stack") or ()]
        plates = ", ".join(f"{at} ({n}{'' if of in (n, None) else f' of {of}'})" for at, n, of in reversed(frames))
        needs = ", ".join(sorted(seen.needs.get(name, ())))
        rows.append((name, kind, what, str(shape) if shape is not None else None, plates or None, needs or None))
    note = "Depends on: the latent sites that it depends on, directly or indirectly. Shapes are at these rows."
    title = f"Sites of {named(program)}"
    return Section(title, ("site", "kind", "prior or distribution", "shape", "plates", "depends on"), tuple(rows), note)


def _kind(site: Mapping[str, Any]) -> tuple[str, str | None]:
    if site["type"] == "sample":
        fn = unmasked(site["fn"])
        kind = "data" if site["is_observed"] else "GP" if isinstance(fn, GaussianProcess) else "latent"
        return kind, described(fn)
    if site["type"] == "param":
        constraint = site["kwargs"].get("constraint")
        return "parameter", "no prior" + (f", {_constraint(constraint)}" if constraint is not None else "")
    return ("state" if site["type"] == "mutable" else "deterministic"), None


def _constraint(constraint: Any) -> str:
    name = type(constraint).__name__.strip("_")
    words = "".join(f" {c.lower()}" if c.isupper() else c for c in name).replace("_", " ").strip()
    limits = {"lower_bound": "above", "upper_bound": "below"}
    said = [
        f"{word} {shown(float(getattr(constraint, at)))}"
        for at, word in limits.items()
        if np.ndim(getattr(constraint, at, [])) == 0
    ]
    return ", ".join(said) or words


def described(fn: Any) -> str:
    """A distribution, kernel or view in one line: its kind, with what it is made of."""
    if isinstance(fn, GaussianProcess):
        mean = "" if fn.loc is None or (checks.is_concrete(fn.loc) and not np.any(fn.loc)) else ", with a mean function"
        return f"GP, kernel {described(fn.kernel)}{mean}"
    if isinstance(fn, Fields):
        own = [(name, getattr(fn, name)) for name in fn.data_fields + fn.static_fields]
        return f"{type(fn).__name__}({', '.join(filter(None, (_argument(*each) for each in own)))})"
    names = getattr(fn, "arg_constraints", None) or {}
    own = [(name, getattr(fn, name, None)) for name in names]
    base = getattr(fn, "base_dist", None)
    inner = [described(base)] if base is not None and not names else []
    return f"{type(fn).__name__}({', '.join([*inner, *filter(None, (_argument(*each) for each in own))])})"


def _argument(name: str, value: Any) -> str:
    """An argument of a distribution, kernel or view; nothing for what is not set."""
    if value is None or value is False:
        return ""
    if isinstance(value, GaussianMarginals):
        return " and ".join(sorted(value.sites))
    if isinstance(value, Fields):
        return described(value)
    if isinstance(value, Mapping):
        return ", ".join(filter(None, (_argument(str(of), each) for of, each in value.items())))
    if isinstance(value, tuple | list) and any(isinstance(each, Fields) or hasattr(each, "shape") for each in value):
        return ", ".join(filter(None, (_argument(name, each) for each in value)))
    shape: Any = getattr(value, "shape", None)
    if shape is None:
        return f"{name}={shown(value) if isinstance(value, float) else getattr(value, '__name__', str(value)[:40])}"
    if shape:
        return f"{name} {list(shape)}"
    number: Any = value
    return f"{name}={shown(float(number))}" if checks.is_concrete(number) else name


# -- parameters --------------------------------------------------------------------------------------------------------


def _parameters(key: Array, trained: Trained, seen: Look, args: tuple, kwargs: dict) -> Section:
    """Hyperparameters first, with their priors and posteriors; then inducing variables, ``q(u)`` and networks."""
    guide = trained.guide
    others = guide.sites.latents - guide.sites.processes
    posteriors = trained.posterior(key, *args, model_kwargs=kwargs) if others else {}
    rows = []
    for name in (site for site in seen.trace if site in others):
        draws = np.asarray(posteriors[name].sample(named_key(key, name), (_DRAWS,)), np.float64)
        shape = list(draws.shape[1:])
        low, middle, high = np.quantile(draws.reshape(_DRAWS, -1).mean(axis=1), (0.05, 0.5, 0.95))
        value = (
            shown(float(middle))
            if low == high
            else f"{shown(float(middle))} ({shown(float(low))} to {shown(float(high))})"
        )
        rows.append((name, str(shape), value, described(unmasked(seen.trace[name]["fn"]))))
    hidden = {f"{name}_{part}" for name in others for part in ("loc", "scale")}
    variational = guide.variational_parameters()
    limits = {name: site for name, site in seen.trace.items() if site["type"] == "param"}
    of_program = sorted(
        (name for name in trained.params if name not in variational | hidden), key=lambda n: n not in limits
    )
    for name in [*of_program, *sorted(variational - hidden)]:
        if name not in trained.params:
            continue
        what = "parameter of q(u)" if name in variational else "inducing variables"
        if name in limits:
            what = _kind(limits[name])[1] or "no prior"
        elif name in seen.trace:
            what = "state"
        rows += [(*row, what) for row in _leaves(name, trained.params[name])]
    note = "Of a posterior: its median, and in brackets its central 90 %. Of many numbers: the least to the greatest."
    return Section("Trained values", ("parameter", "shape", "value", "prior or role"), tuple(rows), note)


def values(trained: Trained) -> Section:
    """Every parameter of a model whose program is not known."""
    rows = [row for name, value in trained.params.items() for row in _leaves(name, value)]
    note = "Of many numbers: the least to the greatest."
    return Section("Trained values", ("parameter", "shape", "value"), tuple(rows), note)


def _leaves(name: str, value: Any) -> Iterator[tuple[str, str, str]]:
    """The arrays of a parameter, with their names, shapes and values."""
    for at, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
        yield name + jax.tree_util.keystr(at), str(list(np.shape(leaf))), _value(leaf)


def _value(leaf: Any) -> str:
    if files.is_key(leaf):
        return "a random key"
    values = np.ravel(np.asarray(leaf)).astype(np.float64)
    if values.size <= _WRITTEN:
        return ", ".join(shown(float(x)) for x in values)
    return f"{shown(float(values.min()))} to {shown(float(values.max()))}"


# -- pictures ----------------------------------------------------------------------------------------------------------


def _pictures(
    key: Array, trained: Trained, args: tuple, kwargs: dict, found: Diagnosis
) -> tuple[list[Picture], Section]:
    """The pictures that fit, and for each other one why it does not; each function of ``plots`` is asked."""
    drawn, left_out = [], []
    for title, words, draw in _candidates(key, trained, args, kwargs, found.arrays):
        try:
            drawn.append(picture(title, words, draw()))
        except ValueError as error:
            # A computation that failed is no picture that does not fit.
            if type(error) is not ValueError:
                raise
            left_out.append((title, str(error)))
    return drawn, Section("Left out", ("picture", "why"), tuple(left_out))


def _candidates(
    key: Array, trained: Trained, args: tuple, kwargs: dict, arrays: Mapping[str, np.ndarray]
) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    from gpzoo.inference import plots

    processes = [
        name for name in look(trained.guide.model, args, kwargs).trace if name in trained.guide.sites.processes
    ]
    outer = [name for name in processes if name not in trained.guide.sites.inner]
    common = {"model_kwargs": kwargs}
    yield (
        "Fit",
        "Predictions along the input, with data and draws of functions.",
        partial(plots.fit_1d, key, trained, *args, **common),
    )
    yield "Field", "Predictions over the two inputs, with data.", partial(plots.field_2d, key, trained, *args, **common)
    for name in arrays:
        site = name.removesuffix("_probs")
        if name.endswith("_probs") and f"{site}_labels" in arrays:
            probs, labels = arrays[name], arrays[f"{site}_labels"]
            yield (
                f"Confusion of {site}",
                "How often data of each class were taken for each.",
                partial(plots.confusion, probs, labels),
            )
            yield (
                f"Reliability of {site}",
                "How often the likeliest class is right, against the probability it was given.",
                partial(plots.reliability, probs, labels),
            )
        elif name.endswith("_pit"):
            yield (
                f"Calibration of {name.removesuffix('_pit')}",
                "A histogram of probability integral transforms, flat where predictions are right: a hump says that "
                "intervals are too wide, a bowl that they are too narrow, a slope that predictions are shifted.",
                partial(plots.pit, arrays[name]),
            )
    yield "Bound", BOUND, partial(plots.elbo, trained)
    yield (
        "Layers",
        "Every GP site along one line through the inputs.",
        partial(_layers, plots, key, trained, args, kwargs),
    )
    images = max(map(np.ndim, jax.tree.leaves(args))) > 2
    few = jax.tree.map(lambda x: x[:6], args)
    if not images:
        yield "Images", "", _no_images
    for site in outer if images else ():
        of = f" of {site}" if len(outer) > 1 else ""
        yield (
            f"Inducing images{of}",
            "Inducing patches or images, by the posterior mean of their inducing output, which stands below each.",
            partial(plots.inducing_images, trained, *few, site=site, **common),
        )
        yield (
            f"Weights of patches{of}",
            "The weight of a patch by its place in the image.",
            partial(plots.patch_weights, trained, *few, site=site, **common),
        )
        yield (
            f"Augmentations{of}",
            "Inputs, framed, each beside views of it that were learned to mean the same.",
            partial(plots.augmentations, key, trained, *few, site=site, **common),
        )
    yield (
        "Lengthscales",
        "The lengthscale of every column of the inputs: far beyond its column's spread, a column hardly matters.",
        partial(plots.lengthscales, trained, *args, **common),
    )
    labels = next((arrays[name] for name in arrays if name.endswith("_labels")), None)
    for site in outer if labels is not None and labels.ndim == 1 and len(labels) == _rows(args) else ():
        yield (
            f"Covariance by class{' of ' + site if len(outer) > 1 else ''}",
            "The prior covariance between rows that are sorted by their class: blocks, where the kernel knows them.",
            partial(
                plots.kernel_by_class,
                trained,
                *args,
                labels=labels,
                site=site,
                count=_ROWS_OF_IMAGES if images else _ROWS,
                **common,
            ),
        )


def _no_images() -> None:
    raise ValueError("No input of the program is an image: there are no inducing images, patches or augmentations.")


def _layers(plots: Any, key: Array, trained: Trained, args: tuple, kwargs: dict) -> Any:
    if not trained.guide.sites.inner:
        raise ValueError("The program has no GP site on which another one depends.")
    return plots.layers(key, trained, *args, model_kwargs=kwargs)


# -- where it was made, and how to make it again -----------------------------------------------------------------------


def environment(trained: Trained) -> Section:
    """Versions, device and precision of this report, and the length of the training."""
    leaves = [x for x in jax.tree.leaves(dict(trained.params)) if not files.is_key(x)]
    kinds = sorted({str(np.asarray(x).dtype) for x in leaves})
    device = jax.devices()[0]
    rows = [
        ("Python", platform.python_version()),
        ("gpzoo", gpzoo.__version__),
        *((name, version(name)) for name in ("numpyro", "jax", "jaxlib", "numpy", "optax", "arviz")),
        ("system", f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPU cores"),
        ("device", "CPU" if device.platform == "cpu" else f"{device.platform.upper()} ({device.device_kind})"),
        ("precision of parameters", ", ".join(kinds)),
        ("float64 enabled", "yes" if jax.config.read("jax_enable_x64") else "no"),
        ("steps of training", f"{trained.losses.size:,}" if trained.losses.size else "not known"),
        ("seconds of training", shown(float(trained.seconds))),
        *((f"expectation of {site}", how) for site, how in trained.expectations.items()),
    ]
    return Section("This report was made with", ("what", "value"), tuple(rows))


def data_of_training(trained: Trained) -> list[Block]:
    """What is recorded of the data of the training."""
    rows = tuple((str(name), str(value)) for name, value in trained.data.items())
    if not rows:
        return ["What the model was trained on was not recorded."]
    return [Section("Data of training", ("what", "value"), rows, "Hashes are the first digits of a sha256.")]


def _again(
    key: Array, trained: Trained, args: tuple, kwargs: Mapping[str, Any], train_args: tuple | None, again: str | None
) -> list[Block]:
    if again is not None:
        return ["The same command makes the same model, and then the same report:", Code(again)]
    program: Any = trained.model
    bound = program.keywords if isinstance(program, partial) else {}
    while isinstance(program, partial):
        program = program.func
    module, name = getattr(program, "__module__", "?"), getattr(program, "__qualname__", type(program).__name__)
    names, _ = checks.positional(trained.model, len(args))
    words = ", ".join(names)
    options = ", ".join(f"{name!r}: {_short(value)}" for name, value in kwargs.items() if value is not None)
    options = f", model_kwargs={{{options}}}" if options else ""
    if train_args is not None:
        of_training, _ = checks.positional(trained.model, len(train_args))
        options += f", train_args=({', '.join(f'{name}_train' for name in of_training)},)"
    given = "".join(f", {key}={_short(value)}" for key, value in bound.items())
    program_line = f"program = partial({name}{given})" if bound else f"program = {name}"
    lines = [
        *(["from functools import partial", ""] if bound else []),
        "from jax import random",
        "from gpzoo.inference import load, report",
        f"from {module} import {name}",
        "",
        program_line,
        'trained = load("MODEL.gpzoo", program)  # written by trained.save("MODEL.gpzoo")',
        f'report({_key(key)}, trained, {words}, path="report.html"{options})',
    ]
    shapes = ", ".join(
        f"{name} {list(np.shape(x))}" for name, x in zip(names, args, strict=True) if hasattr(x, "shape")
    )
    return [f"With the same data, {shapes}, these lines make the same report.", Code("\n".join(lines))]


def _key(key: Array) -> str:
    data = np.asarray(jax.random.key_data(key)).tolist()
    return f"random.wrap_key_data(jnp.array({data}, jnp.uint32))" if data[0] else f"random.key({data[-1]})"


def _short(value: Any) -> str:
    text = getattr(value, "__qualname__", None) or repr(value)
    return text if len(text) <= 60 else "..."
