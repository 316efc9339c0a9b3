"""Pictures that fit a model. Each function of ``plots`` is called, and the report says why a picture does not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import Array

from gpzoo.inference import plots
from gpzoo.inference.diagnosis.findings import Section
from gpzoo.inference.fitted.map_batches import BoundModel
from gpzoo.inference.fitted.trained import Trained
from gpzoo.inference.programs.program import Look
from gpzoo.inference.reports.document import Picture
from gpzoo.inference.reports.drawn import picture

#: A description of the picture of the bound.
BOUND = "The evidence lower bound at every step of the training."

#: Number of rows in the covariance by class, for vectors and for images. Images take longer.
_ROWS, _ROWS_OF_IMAGES = 120, 30

#: A description of each picture.
_WORDS = {
    "Fit": "Predictions along the input, with data and draws of functions.",
    "Field": "Predictions over the two inputs, with data.",
    "Confusion": "How often data of each class were taken for each.",
    "Reliability": "How often the likeliest class is right, against the probability it was given.",
    "Calibration": "A histogram of probability integral transforms, flat where predictions are right: a hump says that "
    "intervals are too wide, a bowl that they are too narrow, a slope that predictions are shifted.",
    "Bound": BOUND,
    "Layers": "Every GP site along one line through the inputs.",
    "Images": "",
    "Inducing images": "Inducing patches or images, by the posterior mean of their inducing output, which stands below "
    "each.",
    "Weights of patches": "The weight of a patch by its place in the image.",
    "Augmentations": "Inputs, framed, each beside views of it that were learned to mean the same.",
    "Lengthscales": "The lengthscale of every column of the inputs: far beyond its column's spread, a column hardly "
    "matters.",
    "Covariance by class": "The prior covariance between rows that are sorted by their class: blocks, where the kernel "
    "knows them.",
}


def pictures_of(
    key: Array, trained: Trained, subject: BoundModel, seen: Look, arrays: Mapping[str, np.ndarray]
) -> tuple[list[Picture], tuple[Section, ...]]:
    """The pictures that fit a model, and the reason why each of the remaining pictures does not fit.

    Args:
        key: key of draws.
        trained: the model.
        subject: the model at its arguments.
        seen: the traced program at these arguments.
        arrays: arrays of a diagnosis.
    """
    drawn, left_out = [], []
    for kind, of, draw in _candidates(key, trained, subject, seen, arrays):
        title = f"{kind} of {of}" if of else kind
        try:
            drawn.append(picture(title, _WORDS[kind], draw()))
        except ValueError as error:
            # Subclasses of ValueError are failed computations, and do not mean that a picture does not fit.
            if type(error) is not ValueError:
                raise
            left_out.append((title, str(error)))
    return drawn, (Section("Left out", ("picture", "why"), tuple(left_out)),) if left_out else ()


def _candidates(
    key: Array, trained: Trained, subject: BoundModel, seen: Look, arrays: Mapping[str, np.ndarray]
) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """The kind of each picture, its site if there are several, and the function that draws it."""
    args, options, sites = subject.args, {"model_kwargs": subject.kwargs}, subject.guide.sites
    outer = [name for name in seen.trace if name in sites.processes - sites.inner]
    images = max(map(np.ndim, jax.tree.leaves(args))) > 2
    yield "Fit", "", partial(plots.fit_1d, key, trained, *args, **options)
    yield "Field", "", partial(plots.field_2d, key, trained, *args, **options)
    yield from _of_outcomes(arrays)
    yield "Bound", "", partial(plots.elbo, trained)
    one_layer = partial(_refused, "The program has no GP site on which another one depends.")
    yield "Layers", "", partial(plots.layers, key, trained, *args, **options) if sites.inner else one_layer
    if not images:
        no_image = "No input of the program is an image: there are no inducing images, patches or augmentations."
        yield "Images", "", partial(_refused, no_image)
    few = jax.tree.map(lambda x: x[:6], args)
    for site in outer if images else ():
        of, own = site if len(outer) > 1 else "", options | {"site": site}
        yield "Inducing images", of, partial(plots.inducing_images, trained, *few, **own)
        yield "Weights of patches", of, partial(plots.patch_weights, trained, *few, **own)
        yield "Augmentations", of, partial(plots.augmentations, key, trained, *few, **own)
    yield "Lengthscales", "", partial(plots.lengthscales, trained, *args, **options)
    labels = next((values for name, values in arrays.items() if name.endswith("_labels")), None)
    for site in outer if labels is not None and labels.shape == (rows_in(args),) else ():
        of, own = site if len(outer) > 1 else "", options | {"labels": labels, "site": site}
        count = _ROWS_OF_IMAGES if images else _ROWS
        yield "Covariance by class", of, partial(plots.kernel_by_class, trained, *args, count=count, **own)


def _of_outcomes(arrays: Mapping[str, np.ndarray]) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """Pictures of the data and their predictions."""
    for name, values in arrays.items():
        site, _, what = name.rpartition("_")
        if what == "probs" and f"{site}_labels" in arrays:
            yield "Confusion", site, partial(plots.confusion, values, arrays[f"{site}_labels"])
            yield "Reliability", site, partial(plots.reliability, values, arrays[f"{site}_labels"])
        elif what == "pit":
            yield "Calibration", site, partial(plots.pit, values)


def rows_in(args: tuple) -> int:
    """The number of rows of the first array among the arguments."""
    return len(next(x for x in jax.tree.leaves(args) if np.ndim(x)))


def _refused(why: str) -> None:
    raise ValueError(why)
