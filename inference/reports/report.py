"""Reports on a trained model: its program, its numbers, and whether to trust it, in one file that you can share."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array

import gpzoo
from gpzoo import _checks as checks
from gpzoo._types import Argument
from gpzoo.inference.diagnosis.diagnose import diagnosed
from gpzoo.inference.diagnosis.findings import Section, shown
from gpzoo.inference.fitted.trained import Trained
from gpzoo.inference.programs import files
from gpzoo.inference.programs.calls import entry_point
from gpzoo.inference.programs.keys import named_key
from gpzoo.inference.programs.labelled import unlabelled
from gpzoo.inference.programs.program import named
from gpzoo.inference.reports.document import Block, Code, Folded, Part, page
from gpzoo.inference.reports.pictures import pictures_of, rows_in
from gpzoo.inference.reports.program import parameters_of, sites_of

#: Libraries whose versions are in the report.
_LIBRARIES = ("numpyro", "jax", "jaxlib", "numpy", "optax", "arviz")


@entry_point
def report(
    rng_key: Array,
    trained: Trained,
    *args: Argument,
    path: str | os.PathLike[str],
    train_args: tuple[Argument, ...] | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
) -> Path:
    """Write one HTML file about a trained model and its predictions of data. Held-out data are best.

    The file needs no network, server or script. It contains:

    * findings in words;
    * the program with its sites and priors, the parameters, and the bound by site;
    * pictures that fit the model, with the numbers in these pictures;
    * versions, and code that makes the report again.

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
        path: path of the file.
        train_args: see :func:`~gpzoo.inference.diagnosis.diagnose.diagnose`.
        model_kwargs: the program's keyword arguments, by name.

    Returns:
        The path of the file.

    Raises:
        MissingExtraError: without matplotlib or jinja2.
        TypeError: for data that are not real numbers, or an ``rng_key`` that is not a key.
        ValueError: if there are no data, if data are not finite, or if parameters are missing or have another shape.
        FactorisationError: if the covariance of a GP site has no Cholesky factor; the message names the site.
        OSError: if the file cannot be written, or ``path`` is not a regular file or a link to one.
    """
    files.target(path := files.checked_path("path", path, "a file"))
    if not args:
        raise ValueError("report needs the program's arguments, data included: report(key, trained, X, y, path=...).")
    name = named(trained.model)
    content = parts(rng_key, trained, args, model_kwargs, train_args=train_args)
    with files.replacing(path) as temporary:
        below = subtitle(unlabelled(trained.model, args))
        temporary.write_text(page(f"Report: {name}", below, content), encoding="utf-8")
    return path


def subtitle(args: tuple) -> str:
    """A description of the data in a report."""
    return f"{rows_in(args):,} rows of data were looked at. Every number is of these rows unless it says otherwise."


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
        model_kwargs: the program's keyword arguments, by name.
        train_args: the positional arguments of training, if they differ from ``args``.
        again: a command that makes the same model; ``None`` shows lines of Python in its place.
    """
    rng_key = checks.rng_key(rng_key)
    subject = trained._bind(args, model_kwargs, seen=False)
    args, kwargs, seen = subject.args, subject.kwargs, subject.look
    with checks.each_once():
        diagnosis = diagnosed(named_key(rng_key, "diagnose"), trained, subject, train_args)
    pictures, left_out = pictures_of(named_key(rng_key, "pictures"), trained, subject, seen, diagnosis.arrays)
    folded = [Folded("Pictures that do not fit this model", left_out)] if left_out else []
    bound, measured = [], []
    for table in diagnosis.sections:
        (bound if table.title in ("The bound by site", "Training") else measured).append(table)
    words: Block = diagnosis.findings or "No finding: nothing that was looked at is out of the ordinary."
    return (
        Part("What to know", [words]),
        Part("Pictures", [*pictures, *folded]),
        Part("The program", [sites_of(subject.model, seen)]),
        Part("Parameters", [parameters_of(rng_key, trained, subject, seen)]),
        Part("The bound", bound),
        Part("Measured", measured),
        Part("Environment", [environment(trained), *data_of_training(trained)]),
        Part("How to make it again", _again(rng_key, trained, args, kwargs, train_args, again)),
    )


# -- where it was made, and how to make it again -----------------------------------------------------------------------


def environment(trained: Trained) -> Section:
    """Versions, device and precision of this report, and the duration of the training."""
    leaves = [x for x in jax.tree.leaves(dict(trained.params)) if not files.is_key(x)]
    kinds = sorted({str(np.asarray(x).dtype) for x in leaves})
    device = jax.devices()[0]
    rows = [
        ("Python", platform.python_version()),
        ("gpzoo", gpzoo.__version__),
        *zip(_LIBRARIES, map(version, _LIBRARIES), strict=True),
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
    """The record of the training data."""
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
    options = [f"{name!r}: {_short(value)}" for name, value in kwargs.items() if value is not None]
    more = f", model_kwargs={{{', '.join(options)}}}" if options else ""
    if train_args is not None:
        of_training, _ = checks.positional(trained.model, len(train_args))
        more += f", train_args=({'_train, '.join(of_training)}_train,)"
    settings = "".join(f", {name}={_short(value)}" for name, value in bound.items())
    of_key = _key(key)
    first = "from functools import partial\n\n" if bound else ""
    arrays = "import numpy as np\n" if "np." in of_key else ""
    text = f"""{first}{arrays}from jax import random
from gpzoo.inference import load, report
from {module} import {name}

program = {f"partial({name}{settings})" if bound else name}
trained = load("MODEL.gpzoo", program)  # written by trained.save("MODEL.gpzoo")
report({of_key}, trained, {", ".join(names)}, path="report.html"{more})"""
    shapes = (f"{name} {list(np.shape(x))}" for name, x in zip(names, args, strict=True) if hasattr(x, "shape"))
    return [f"With the same data, {', '.join(shapes)}, these lines make the same report.", Code(text)]


def _key(key: Array) -> str:
    data = np.asarray(jax.random.key_data(key)).tolist()
    return f"random.wrap_key_data(np.array({data}, np.uint32))" if data[0] else f"random.key({data[-1]})"


def _short(value: Any) -> str:
    text = getattr(value, "__qualname__", None) or repr(value)
    return text if len(text) <= 60 else "..."
