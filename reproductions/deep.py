"""Doubly stochastic deep GPs (Salimbeni and Deisenroth 2017): every experiment of section 4.

``gpzoo reproduce deep uci --variant kin8nm`` or ``python reproductions/deep.py uci``. SGP has one layer with 100
inducing points, SGP 500 has one layer with 500, and DGP n has n layers with 100 each.

Settings of ``paper`` come from section 4. If they are not given there, they come from the authors' code
(github.com/ICL-SML/Doubly-Stochastic-DGP: ``demos/run_regression.py``, ``demos/demo_mnist.ipynb``).
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random

from gpzoo import NonFiniteError
from gpzoo.inducing.initialisers import kmeans
from gpzoo.inference import GlobalInducingGuide, InducingGuide, SitePrediction, Trained, plots
from gpzoo.inference import load as load_model
from gpzoo.likelihoods import Bernoulli, RobustMax
from gpzoo.models import deep_gp, inner_scales, linear_layers
from gpzoo.models.parameters import gaussian, rbf
from gpzoo.reproductions import datasets, metrics, training
from gpzoo.reproductions.claims import load
from gpzoo.reproductions.datasets import Dataset
from gpzoo.reproductions.datasets.taxi import FEATURES, TARGET, taxi_parquet
from gpzoo.reproductions.experiment import Figure, Inspected, Outcome, Results, Run, experiment, some
from gpzoo.reproductions.judge import EXCEEDED, SHORT, Found, Judged, Value, holding, margin_of, verdict, within
from gpzoo.reproductions.kept import kept, read_json
from gpzoo.reproductions.records import Key, Ours, Recorded, Records, enlarged, error_of, lead, mean_of, overlap_of
from gpzoo.reproductions.training import Setting, train
from gpzoo.tables import ParquetTable, Table, hold_out, standardised

PAPER = load("deep")

#: Number of taxi journeys held out for testing.
_NUM_TEST = 1_000_000

#: Number of last steps over which the bound of a candidate is averaged, because the bound is noisy.
_LAST = 10

# -- models ----------------------------------------------------------------------------------------------------------

#: Number of layers and inducing points of each model.
MODELS = {"sgp": (1, 100), "sgp-500": (1, 500), "dgp2": (2, 100), "dgp3": (3, 100), "dgp4": (4, 100), "dgp5": (5, 100)}

#: One layer with its optimal q(u), trained by L-BFGS on all rows in float64. It is not in the paper.
SGPR = "sgpr"

#: Ways to train a model, or its posterior, by the end of the name of the model.
_WAYS = {"-natural": ", natural gradients", "-global": ", global inducing", "-wide": ", wide start"}

#: Initial standard deviation of ``q(u)`` of inner layers in models whose name ends in ``-wide``; in others, it is 1e-5.
WIDE = 0.1

#: Jitter if training is in float64, which allows a smaller jitter than the default of 1e-6. The noise of naval is as
#: small as that. After 1,000 steps, its bound is 52,917 with this jitter and 48,633 with the default (split 0).
JITTER = 1e-8


def program_of(name: str, X: Array, setting: Setting, **options: Any) -> tuple[Callable, InducingGuide, dict[str, Any]]:
    """A model, its guide, and keyword arguments. Inducing points are from k-means; inner layers start at their means.

    Args:
        name: a key of :data:`MODELS`, ``"sgpr"``, or a key with a name ending from :data:`_WAYS`, ``"dgp2-global"``.
        X: training inputs.
        setting: the settings of the training.
        **options: further arguments of :func:`~gpzoo.models.deep_gp`.
    """
    depth, num_inducing = shape_of(name, len(X), setting)
    # Mean functions of the inner layers. Their width is 30, or the width of the inputs if that is smaller.
    layers = linear_layers(X, [min(30, X.shape[-1])] * (depth - 1))
    kernel = partial(ard, first="layer_0" if depth > 1 else "f", **setting.start)
    exact = {"jitter": JITTER} if setting.collapsed else {}
    model = partial(deep_gp, kernel=kernel, **exact, **options)
    scales = inner_scales(layers, WIDE) if name.endswith("-wide") else inner_scales(layers)
    guide = InducingGuide(model, kmeans(num_inducing), initial_scale=scales)
    if name.endswith("-global"):
        guide = GlobalInducingGuide(model, kmeans(num_inducing))
    return model, guide, {"layers": layers}


def shape_of(name: str, num_data: int, setting: Setting) -> tuple[int, int]:
    """Number of layers and inducing points of a model, as in the paper unless the setting gives inducing points."""
    depth, num_inducing = MODELS["sgp" if name == SGPR else re.sub(f"({'|'.join(_WAYS)})$", "", name)]
    return depth, min(setting.num_inducing or num_inducing, num_data)


def ard(
    name: str,
    h: Array,
    *,
    first: str = "",
    lengthscale_inputs: float | None = None,
    **start: float,
) -> Any:
    """An RBF with a lengthscale per column.

    Args:
        name: the layer.
        h: inputs of the layer.
        first: the layer whose inputs are the inputs of the model.
        lengthscale_inputs: initial lengthscale of the first layer, if it differs from other layers.
        **start: initial ``lengthscale`` (the square root of the number of columns unless given), and ``variance``.
    """
    own = {"lengthscale": lengthscale_inputs} if name == first and lengthscale_inputs is not None else {}
    return rbf(name, h, **{"lengthscale": float(h.shape[-1]) ** 0.5, **start, **own})


def described(setting: Setting) -> dict[str, Any]:
    """Further settings of the training of a deep GP, for the result."""
    return {"draws_training": 1, "draws_prediction": 100, "start": started(setting)}


def started(setting: Setting) -> dict[str, float | str]:
    """Initial hyperparameters of kernels. They are in words if they depend on the inputs."""
    return {"lengthscale": "square root of the number of columns", "variance": 1.0} | dict(setting.start)


def title_of(model: str) -> str:
    """The name of a model in figures, such as ``"dgp2"``, ``"sgp-500"`` or ``"dgp2-natural"``."""
    way = next((way for way in _WAYS if model.endswith(way)), "")
    return re.sub(r"(GP)-?(\d)", r"\1 \2", model.removesuffix(way).upper()) + _WAYS.get(way, "")


# -- figures -----------------------------------------------------------------------------------------------------------


def figure_1(results: Results) -> Figure:
    """Test log likelihood of every model and data set: means and standard errors over folds (figure 1).

    Args:
        results: content of the result files, by data set.

    Returns:
        A figure without a window.
    """
    figure, panels = _panels(len(results), 4, 5.5, (1.75, 2.2))
    beside: list[str] = []
    for i, (axes, (name, result)) in enumerate(zip(panels, results.items(), strict=False)):
        metrics, end = result["metrics"], "_test_log_likelihood"
        models = [key.removesuffix(end) for key in metrics if key.endswith(end)]
        for row, model in enumerate(models):
            value, error = error_of(result, model + end)[:2]
            colour = {"sgp": "C1", SGPR: "C2"}.get(model, "C0")
            axes.errorbar(value, -row, xerr=error or 0.0, fmt="o", color=colour, markersize=4, capsize=2)
            if model == "sgp":
                axes.axvline(value, color="0.85", zorder=0)
        # The names are shown once in a row of panels, because all panels have the same names.
        titles = [title_of(model) if i % 4 == 0 or models != beside else "" for model in models]
        axes.set_yticks([-row for row in range(len(models))], titles)
        beside = models
        axes.tick_params(labelsize=8)
        axes.locator_params(axis="x", nbins=2)
        sizes = result["data"]["sizes"]
        axes.set_title(f"{name} (N {sizes['train'] + sizes['test']:,}, D {sizes['input_shape'][0]})", fontsize=8)
    words = "test log likelihood per point (nats, original units), mean and standard error"
    figure.supxlabel(f"{words}; grey: SGP" if "sgp" in beside else words, fontsize=9)
    return figure


def figure_curves(results: Results) -> Figure:
    """Test log likelihood against steps: means and standard errors over folds. Models without a curve are lines.

    Args:
        results: content of the result files, by data set.

    Returns:
        A figure without a window.
    """
    figure, panels = _panels(len(results), math.ceil(len(results) ** 0.5), 5, (3.4, 3.4))
    for axes, (title, result) in zip(panels, results.items(), strict=False):
        _draw_curves(axes, result)
        axes.set_title(title)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=9, loc="outside upper center", ncols=len(labels), frameon=False)
    figure.supxlabel("optimisation step (logarithmic)", fontsize=10)
    figure.supylabel("test log likelihood per point (nats)", fontsize=10)
    return figure


def _panels(number: int, most: int, narrowest: float, each: tuple[float, float]) -> tuple[Figure, list[Any]]:
    """A figure with ``number`` panels. A row has at most ``most`` panels, and is at least ``narrowest`` wide."""
    columns, rows = min(most, number), -(-number // most)
    figure = plots.blank(max(narrowest, each[0] * columns + (most == 4)), each[1] * rows)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in panels[number:]:
        axes.set_axis_off()
    return figure, list(panels)


def _draw_curves(axes: Any, result: Mapping[str, Any]) -> None:
    metric, steps, wide = "test_log_likelihood", set(), enlarged(result)
    for name, scores in result["settings"]["by_fold"].items():
        style: dict[str, Any] = {"color": {SGPR: "C0", "dgp2": "C1"}.get(name, "C2"), "label": title_of(name)}
        if curve := scores.get("curve"):
            at, values, errors = ([point.get(k, 0.0) for point in curve] for k in ("step", metric, f"{metric}_se"))
            axes.errorbar(at, values, yerr=wide * np.asarray(errors), marker=".", capsize=2, **style)
            steps |= {int(step) for step in at}
        else:
            axes.axhline(np.mean(scores[metric]), linestyle="--", **style)
    axes.set_xscale("log")
    axes.set_xticks(sorted(steps), [f"{step:,}" for step in sorted(steps)], fontsize=7)
    axes.set_xticks([], minor=True)


# -- one training ------------------------------------------------------------------------------------------------------


def _train(run: Run, whole: Dataset, *, table: Table | None = None, **outcome: Any) -> Outcome:
    """Train and evaluate one model. The targets determine its likelihood.

    Args:
        run: the run.
        whole: data of the run, with a sample of the training rows if there is a ``table``.
        table: all training rows, if they are streamed.
        **outcome: further fields of the outcome.
    """
    data, setting = whole.flat(), Setting.of(run.options)
    classes = data.sizes.get("classes", 0)
    options: dict[str, Any] = {"likelihood": {0: gaussian, 2: Bernoulli}.get(classes, RobustMax)}
    options["num_outputs"] = classes if classes > 2 else None
    model, guide, keywords = program_of(run.variant, jnp.asarray(data.X_train), setting, **options)
    depth, num_inducing = shape_of(run.variant, len(data.y_train), setting)
    settings = {
        **described(setting),
        "training_rows": len(data.y_train) if table is None else table.num_rows,
        "layers": depth,
        "num_inducing": num_inducing,
        "inner_width": min(30, data.X_train.shape[-1]),
    }
    common = {"score": partial(_metrics, data), "settings": settings, "keywords": keywords, "table": table}
    common |= {"stands_in": data.name.endswith("-generated")}
    return replace(train(run, data, model, guide, setting, **(common | outcome)), data=whole)


def _metrics(data: Dataset, test: SitePrediction, y: np.ndarray) -> dict[str, Any]:
    """Metrics for classes: accuracy, and for two classes the area under the curve; else :func:`metrics.of_numbers`."""
    if not data.is_classification:
        return metrics.of_numbers(test, y, data.y_std)
    area = {"auc": metrics.auc(test, y)} if test.probs is None else {}
    likelihood = {"test_log_likelihood": metrics.test_log_likelihood(test)}
    error = {"test_log_likelihood_se": metrics.standard_error(test)}
    found = {"accuracy": metrics.accuracy(test, y), **area, **likelihood, **error}
    return found | {"wrong_rows": metrics.wrong_rows(test, y)}


def _large(run: Run) -> Outcome:
    """A large set, or its generated stand-in under ``quick``; standardised on the training rows (section 4)."""
    return _train(run, datasets.load(run.options.get("data", run.experiment)).standardised())


year, airline, higgs, susy = (experiment(PAPER, name, MODELS)(_large) for name in ("year", "airline", "higgs", "susy"))
rectangles_images = experiment(PAPER, "rectangles-images", tuple(MODELS)[:5])(_large)


@experiment(PAPER, "mnist", tuple(MODELS)[:4])
def mnist(run: Run) -> Outcome:
    """Ten digits, robust-max likelihood, pixels in [0, 1] without standardisation (section 4)."""
    data, part = some(run, datasets.load("mnist"), 0)
    return _train(run, data, subset=part)


@experiment(PAPER, "taxi", MODELS)
def taxi(run: Run) -> Outcome:
    """Journeys of 2009 and 2010, one month per file, with a million random ones for testing."""
    if run.preset == "quick":
        return _large(run)
    months = [f"{year}-{month:02}" for year in (2009, 2010) for month in range(1, 13)]
    files = taxi_parquet(months, run.output / "months")
    table, X_test, y_test = hold_out(ParquetTable(files, columns=FEATURES, target=TARGET), _NUM_TEST)
    table = standardised(table)
    (X, y), (X_test, y_test) = table.head(min(100_000, table.num_rows)), table.apply(X_test, y_test)
    mean, std = (float(moment[-1]) for moment in (table.mean, table.std))
    fingerprint = {"months": table.fingerprint["checksum"]}
    data = Dataset("taxi", X, y, X_test, y_test, f"{months[0]} to {months[-1]}", fingerprint, mean, std)
    part = {"train": table.num_rows, "of": 10**9, "test": _NUM_TEST, "of_test": 10**6, "rule": "of 2009 and 2010"}
    return _train(run, data, table=table, subset=part)


@experiment(PAPER, "timing", MODELS)
def timing(run: Run) -> Outcome:
    """Seconds of one gradient step on eight columns (table 3).

    Every step takes a whole generated set, so that only the step is timed; compilation is left out.
    """
    setting = Setting.of(run.options)
    setting.check(run.changes, ("natural", "evaluations", "early", "test_rows", "test_draws", "num_draws"))
    rows = setting.batch_size or 0
    data = datasets.load("airline-generated", rows=rows + rows // 9).standardised().flat()
    X, y = jnp.asarray(data.X_train), jnp.asarray(data.y_train)
    model, guide, keywords = program_of(run.variant, X, setting)
    key, svi, half = random.key(run.seed), setting.svi(model, guide), setting.steps // 2
    options = {"model_kwargs": keywords, "progress": run.variant}
    seconds, result = training.seconds_of_a_step(key, svi, half, X, y, **options)
    said = {"batch_size": len(X), "columns": X.shape[1], "model": MODELS[run.variant]}
    common = {"data": data, "dtype": str(X.dtype), "steps": setting.steps, "seconds_training": result.seconds}
    return Outcome({"seconds_per_step": seconds}, said, elbo=-result.losses, **common)


@experiment(PAPER, "step-function", ("sgp", "dgp2", "dgp3"))
def step_function(run: Run) -> Outcome:
    """A step with little noise, which one layer cannot fit without ringing: the textbook case for depth."""
    rng = np.random.RandomState(run.seed)
    x = np.sort(rng.uniform(-1, 1, 150)).astype(np.float32)
    truth = np.where(x > 0, 1.0, -1.0).astype(np.float32)
    y = truth + 0.05 * rng.standard_normal(150).astype(np.float32)
    test = rng.permutation(150)[:50]
    rest = np.setdiff1d(np.arange(150), test)
    data = Dataset("step-function", x[rest, None], y[rest], x[test, None], y[test], source="generated", sha256={})
    outcome = _train(run, data)
    assert outcome.inspected is not None
    rows, keywords = (outcome.inspected.trained, data.X_train, data.y_train), outcome.inspected.keywords
    drawn = partial(plots.fit_1d, random.key(run.seed), *rows, model_kwargs=keywords)
    return replace(outcome, figures={"functions": drawn})


# -- the regression benchmarks: all folds are trained as one program ---------------------------------------------------

#: The benchmark sets of figure 1, in the order of the figure.
UCI = ("boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine_red")


def _uci(run: Run) -> Outcome:
    """Models on the first folds of a set, by their settings."""
    models = {name: Setting.of({**run.options, **own}) for name, own in run.options["models"].items()}
    return _compared(run, models, run.selection)


uci = experiment(PAPER, "uci", UCI, figure=figure_1)(_uci)
uci_global = experiment(PAPER, "uci-global", UCI, figure=figure_1)(_uci)
uci_natural = experiment(PAPER, "uci-natural", UCI, figure=figure_curves)(_uci)


@experiment(PAPER, "uci-few-steps", UCI, figure=figure_curves)
def uci_few_steps(run: Run) -> Outcome:
    """Two layers in as few steps as natural gradients of the last layer allow, beside Adam alone.

    Every candidate is trained on the first split; the one whose bound on its training rows ends highest trains on all
    splits.
    """
    options = run.options
    rates, decays = options["candidates"]["rates"], options["candidates"]["decays"]
    candidates = [{"rate": rate, "decay": decay} for rate, decay in itertools.product(rates, decays)]
    Setting.of(options).check(run.changes, ("rate", "decay"))
    chosen, bounds, first = {}, {}, datasets.load(f"uci/{run.variant}", split=0)
    for name, own in options["models"].items():
        settings = [Setting.of({**options, **own, **each, "rate": {"warmed": each["rate"]}}) for each in candidates]
        bounds[name] = [_bound(run, first, name, i, setting) for i, setting in enumerate(settings)]
        finite = [-math.inf if bound is None else bound for bound in bounds[name]]
        chosen[name] = settings[finite.index(max(finite))]
    selection = {
        "what": "learning rate and decay of Adam's mean of squares, of each model",
        "rule": "by code, the highest bound after the same number of iterations, among candidates from trials by hand",
        "data": "training rows of the first split; the trials by hand also saw its test rows",
        "candidates": [each | {name: bounds[name][i] for name in bounds} for i, each in enumerate(candidates)],
    }
    return _compared(run, chosen, selection)


def _bound(run: Run, raw: Dataset, name: str, number: int, setting: Setting) -> float | None:
    """The bound at the end of a training on a split; ``None`` if the training failed."""
    data = raw.standardised().flat()
    X, y = jnp.asarray(data.X_train), jnp.asarray(data.y_train)

    def make() -> float | None:
        model, guide, keywords = program_of(name, X, setting)
        title = f"{name}, {setting.learning_rate.name}, {setting.decay}"
        options = {"num_data": len(y), "model_kwargs": keywords, "progress": title}
        try:
            found = training.optimise(random.key(run.seed), model, guide, setting, X, y, **options)
        except NonFiniteError:
            return None
        return float(-found.losses[-_LAST:].mean())

    said = setting.described(len(y)) | {"model": name, "steps": setting.steps, "decay": setting.decay}
    return kept(run.output / f"choice-{name}-{number}.json", run.made_by(said, raw), make)


def _compared(run: Run, models: Mapping[str, Setting], selection: Mapping[str, Any] | None) -> Outcome:
    """Models on the first folds of a set.

    The posterior of the last model is exported, so every start of a run trains this model or resumes its training.

    Args:
        run: the run. Its variant is the set.
        models: the settings of each training. The result states the settings of the last model for all models, and for
            the others only settings that differ.
        selection: how settings were chosen.
    """
    *others, last = models
    models[last].check(run.changes, ("evaluations", "early"))
    K = min(run.options["folds"], run.options["of"])
    raw = [datasets.load(f"uci/{run.variant}", split=k) for k in range(K)]
    parts = [part.standardised() for part in raw]
    first, setting = parts[0].flat(), models[last]
    N, width = first.X_train.shape
    settings = {
        "batch_size": setting.rows(N),
        "learning_rate": setting.learning_rate.name,
        **described(setting),
        "folds": K,
        "models": {name: _model_described(name, N, own, setting) for name, own in models.items()},
        "inner_width": width,
    }
    made_by = run.made_by(settings | {"steps": setting.steps}, raw[0])
    test, which = (first.X_test, first.y_test), f"{title_of(last)}, split 1 of {K}"
    model, _, keywords = program_of(last, jnp.asarray(first.X_train), setting)
    seen = partial(Inspected, args=test, keywords=keywords, which=which, differs=training.units_of(first))
    if run.finished:
        return training.left(run, raw[0], seen(load_model(run.model, model)))
    trained = {name: partial(_on_folds, run, name, own, parts, made_by) for name, own in models.items()}
    scores = {
        name: kept(run.output / f"{name}.json", made_by | {"model": name}, lambda name=name: trained[name]()[0])
        for name in others
    }
    scores[last], result = trained[last]()
    means = {name: metrics.means({metric: each[metric] for metric in METRICS}) for name, each in scores.items()}
    found = {f"{name}_{metric}": value for name, each in means.items() for metric, value in each.items()}
    one = replace(result.member(0), losses=result.losses.mean(axis=0))
    own = settings | {"by_fold": scores}
    drawn = {"curves": figure_curves} if "watched" in run.options else {"figure_1": figure_1}
    said = {"data": raw[0], "metrics": found, "settings": own, "drawn": drawn, "selection": selection}
    said |= {"folds": {"count": K, "of": run.options["of"], "seeds": list(range(K))}}
    said |= {"seconds_training": sum(each["seconds"] for each in scores.values())}
    said |= {"steps": sum(each.steps for each in models.values()) * K}
    return training.outcome_of(run, setting, (first.X_train, first.y_train), seen(one), one, **said)


def _model_described(name: str, num_data: int, setting: Setting, common: Setting) -> dict[str, Any]:
    """The description of a model in a result, without the settings that all models share."""
    own = dict(zip(("layers", "num_inducing"), shape_of(name, num_data, setting), strict=True))
    if name == SGPR:
        start = {"start": started(setting), "steps": setting.steps, "dtype": "float64", "jitter": JITTER}
        return setting.described(num_data) | own | start
    rate = setting.learning_rate.name
    own |= {"start_of_inner_layers": WIDE} if name.endswith("-wide") else {}
    return own | setting.added() | ({"learning_rate": rate} if rate != common.learning_rate.name else {})


#: The metrics of every fold.
METRICS = ("test_log_likelihood", "rmse")


def _on_folds(
    run: Run, name: str, setting: Setting, parts: list[Dataset], made_by: dict[str, Any]
) -> tuple[dict[str, Any], Trained]:
    """Test metrics of every fold in the original units of the target, and the model with a leading axis of folds.

    Every fold has the same number of rows. After the ``watched`` steps, the means of the metrics over folds are kept.
    """
    dtype = np.float64 if setting.collapsed else np.float32
    with jax.enable_x64(True) if setting.collapsed else nullcontext():
        X, y = (np.stack([getattr(part, each) for part in parts]).astype(dtype) for each in ("X_train", "y_train"))
        model, guide, keywords = program_of(name, jnp.asarray(X[0]), setting)
        train_key, test_key = random.split(random.key(run.seed))
        begun = Trained(model, guide, {})

        def scored(params: Mapping[str, Any]) -> dict[str, list[float]]:
            found = []
            for k, part in enumerate(parts):
                X, y = part.X_test.astype(dtype), part.y_test.astype(dtype)
                one = begun.with_params(jax.tree.map(lambda x, k=k: x[k], params))
                test = training.predicted(test_key, one, X, y, setting.test_rows, keywords, setting.test_draws)
                found.append(metrics.of_numbers(test, y, part.y_std))
            return {metric: [each[metric] for each in found] for metric in METRICS}

        options: dict[str, Any] = {"num_data": y.shape[1], "model_kwargs": keywords}
        options |= {"checkpoint": run.checkpoint / name, "progress": name}
        watched = {step for step in run.options.get("watched", ()) if step <= setting.steps and name != SGPR}
        path, origin = run.output / f"{name}-curve.json", made_by | {"model": name}
        curve = training.Curve(path, origin, lambda params: metrics.means(scored(params)), watched.__contains__)
        if watched:
            options |= {"callback": curve, "callback_steps": math.gcd(*watched)}
        keys = random.split(train_key, len(parts))
        result = training.optimise(keys, model, guide, setting, X, y, **options)
        scores = scored(result.params)
    scores |= {"elbo": training.last_bound(result.losses, y.shape[1], setting).tolist(), "seconds": result.seconds}
    return scores | {"curve": curve.until(setting.steps) if watched else ()}, result


# -- statements, and further numbers on the page ----------------------------------------------------------------------

_LL = "test_log_likelihood"


def _too_short(run: Recorded, model: str) -> bool:
    """Whether a training had not converged: its bound is clearly below the bound of SGPR.

    SGPR is SGP at its optimum, and deep GPs and SGP 500 contain SGP. For SGP 500, the bound of SGP is taken, because a
    training of as many steps was too short for it.
    """
    less = _bound_less(run.result, "sgp" if model == "sgp-500" else model, "sgpr")
    return less is not None and _sign([less]) < 0


def _with_doubts(shown: Sequence[Value], doubts: int) -> list[Value]:
    """Values of a statement, and the number of comparisons that decide nothing, because a training was too short."""
    words = "not counted (short training):"
    return [*shown, Value(words, Ours(doubts))] if doubts else [*shown]


def converged(
    found: Found,
    models: Sequence[str],
    than: str = "",
    beyond: str = "",
    allow: str = "",
    margin: float = 0.0,
) -> Judged:
    """In every run, each model is better than ``than``. Differences that more training would change are undecided.

    Without ``than``, each model is compared with the model before, and must itself be trained long enough. A lead over
    ``than`` that is clear over ``beyond``, too, counts however short the training of ``than`` was.
    """
    leads, unsure = [], []
    each = [(model, than) for model in models] if than else [(b, a) for a, b in itertools.pairwise(models)]
    for (name, run), (model, other) in itertools.product(found.items(), each):
        lead = run.lead(_LL, model, other)
        value = Value(f"{title_of(model)} minus {title_of(other)} on {name}", lead, "lead")
        ahead = bool(than) and lead.value > 0
        known = ahead and beyond in run.result["settings"]["by_fold"]
        certain = known and holding([run.lead(_LL, model, beyond)]) is True
        (leads if certain or not _too_short(run, other if ahead else model) else unsure).append(value)
    by: dict[str, Any] = {"allow": allow, "margin": margin}
    holds = holding([each.ours for each in leads], **by)
    against = [each for each in [*leads, *unsure] if holding([each.ours], **by) is not True]
    shown = [*leads, *unsure] if len(leads) + len(unsure) <= 4 else against
    holds = None if holds is not False and unsure else holds
    return Judged(holds, _with_doubts(shown, len(unsure)), len(leads) + len(unsure))


def deepest_is_best(found: Found, least: int) -> Judged:
    """The deepest model is best on at least ``least`` sets. Where the model behind had not converged, a set is open."""
    best, close, values, doubts = set(), set(), [], 0
    for name, run in found.items():
        others = list(MODELS)[:-1]
        leads = [run.lead(_LL, "dgp5", other) for other in others]
        lead, other = min(zip(leads, others, strict=True), key=lambda each: each[0].value)
        values.append(Value(f"{name} ({title_of(other)})", lead, "lead"))
        holds, doubtful = holding(leads), _too_short(run, "sgp" if lead.value > 0 else "dgp5")
        doubts += doubtful
        (close if doubtful or holds is None else best if holds else set()).add(name)
    values[0] = values[0]._replace(name=f"DGP 5 minus the best other model: {values[0].name}")
    holds = True if len(best) >= least else None if len(close | best) >= least else False
    return Judged(holds, _with_doubts(values, doubts), len(values))


def facts(records: Records) -> dict[str, Any]:
    """Numbers for ``pages/deep.md.jinja``, with their errors; ``None`` for missing numbers."""
    keys = [Key("deep", "uci", name, "cpu") for name in UCI]
    figure_1 = [_of_set(records.found[key]) for key in keys if key in records.found]
    natural: list[dict[str, Any]] = [
        {"set": key.variant, "preset": key.preset, "experiment": experiment, "published": _published(key.variant)}
        | {model: _number(result, model) for model in ("sgpr", "dgp2", "dgp2-natural")}
        | {"gain": _number(result, "dgp2-natural", "dgp2")}
        | {f"{model} less sgpr": _number(result, model, "sgpr") for model in ("dgp2", "dgp2-natural")}
        | {"bounds less sgpr": [_bound_less(result, model, "sgpr") for model in ("dgp2", "dgp2-natural")]}
        | {"later": _gain_of_steps(result)}
        for experiment in ("uci-natural", "uci-few-steps")
        for key, result in records.of("deep", experiment)
        if key.preset != "quick" and not key.seed
    ]
    beside = [
        {"set": each["set"] + ", falling rate" * (each["preset"] == "tuned")}
        | {"model": title_of(model), "difference": lead(each[model], theirs, _LL)}
        for each in natural
        if each["experiment"] == "uci-natural"
        for model, theirs in zip(("sgpr", "dgp2-natural"), each["published"], strict=True)
        if None not in (each[model], theirs) and theirs.error is not None
    ]
    return {
        "figure_1": figure_1,
        "splits": _splits(figure_1),
        "not_converged": [each["set"] for each in figure_1 if _sign([each["sgp bound"]]) < 0],
        "deeper": [each["set"] for each in figure_1 if _one_is_ahead(each["leads"])],
        "wider": [each["set"] for each in figure_1 if _sign([each["wider"]]) > 0],
        "dearer": _dearer(records),
        "sgpr_apart": _sgpr_apart(records),
        "layers": _layers(natural),
        "natural": natural,
        "beside": [each for each in beside if _sign([each["difference"]])],
        "their_task": _their_task(records),
        "inducing": _inducing(records),
        "matches": _matches(records),
    }


def _one_is_ahead(leads: Sequence[Ours]) -> bool:
    """Whether one of the leads is clearly positive, for as many leads as there are."""
    wide = [each.wide(among=len(leads)) for each in leads]
    return any(w is not None and each.value > w for each, w in zip(leads, wide, strict=True))


def _dearer(records: Records) -> dict[str, str]:
    """Times of a step of three models beside SGP, and of DGP 5 beside SGP 500 (``wider``); empty without these runs."""
    keys = {name: Key("deep", "timing", name, "paper") for name in ("sgp", "sgp-500", "dgp2", "dgp5")}
    if not records.found.keys() >= set(keys.values()):
        return {}
    sgp, *others = (records.found[key]["metrics"]["seconds_per_step"] for key in keys.values())
    found = {name: f"{seconds / sgp:.2g}" for name, seconds in zip([*keys][1:], others, strict=True)}
    return found | {"wider": f"{others[-1] / others[0]:.3g}"}


def _splits(figure_1: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """Numbers of splits in words, each with its sets; the usual number comes first."""
    sets: dict[str, list[str]] = {}
    for each in figure_1:
        sets.setdefault(each["models"]["sgp"].source, []).append(each["set"])
    return sorted(sets.items(), key=lambda item: -len(item[1]))


def _inducing(records: Records) -> dict[str, Any]:
    """Two and three layers on each set: bounds per row, test log likelihoods, and leads of the global posterior.

    ``told`` has the sets on which a lead is clearly positive or clearly negative, by metric, other posterior, layers.
    """
    found: list[dict[str, Any]] = []
    told: dict[str, list[list[str]]] = {}
    for name, depth in itertools.product(UCI, (2, 3)):
        keys = [Key("deep", "uci-global", name, preset) for preset in ("cpu", "tuned")]
        if not all(key in records.found for key in keys):
            continue
        runs = [records.found[key] for key in keys]
        by = {model: each for run in runs for model, each in run["settings"]["by_fold"].items()}
        rows, each = runs[0]["data"]["sizes"]["train"], {"set": name, "layers": depth}
        over_splits = partial(mean_of, overlap=overlap_of(runs[0]))
        ways = {"near": f"dgp{depth}", "wide": f"dgp{depth}-wide", "all": f"dgp{depth}-global"}
        for metric, unit in (("elbo", rows), (_LL, 1)):
            values = {way: np.asarray(by[model][metric]) / unit for way, model in ways.items()}
            each |= {f"{metric} {way}": over_splits(of.tolist()) for way, of in values.items()}
            for way in ("near", "wide"):
                less = each[f"{metric} less {way}"] = over_splits((values["all"] - values[way]).tolist())
                sign = _sign([less])
                clear = told.setdefault(f"{metric} {way} {depth}", [[], []])
                clear[sign < 0] += [name] if sign else []
        found.append(each)
    return {"each": found, "told": told}


def _sign(leads: Sequence[Ours]) -> int:
    """1 if all leads are positive, -1 if all are negative, 0 if this is undecided."""
    below = [each._replace(value=-each.value) for each in leads]
    return (holding(leads) is True) - (holding(below) is True)


def _layers(natural: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The sets on which two layers after 10,000 steps are above or below SGPR, with Adam and with natural steps.

    On ``slight`` sets, they are above by less than ``margin``, the margin of log likelihoods. On ``unfinished`` sets,
    both bounds are below the bound of SGPR. On ``flat`` sets, Adam gains less than the margin after 2,000 steps.
    """
    names, margin = ("above", "undecided", "below", "slight", "unfinished", "flat"), margin_of(_LL, 0.0)
    told: dict[str, Any] = {name: [] for name in names} | {"margin": margin}
    for each in natural:
        leads = [each[f"{model} less sgpr"] for model in ("dgp2", "dgp2-natural")]
        if (each["preset"], each["experiment"]) == ("cpu", "uci-natural") and None not in leads:
            told[("undecided", "above", "below")[_sign(leads)]].append(each["set"])
            told["slight"] += [each["set"]] if _sign(leads) > 0 and all(within(lead, margin) for lead in leads) else []
            told["unfinished"] += [each["set"]] if _sign(each["bounds less sgpr"]) < 0 else []
            told["flat"] += [each["set"]] if each["later"] < margin else []
    return told


def _sgpr_apart(records: Records) -> list[tuple[str, float]]:
    """The sets on which two trainings of SGPR end apart, by the mean size of the difference of their bounds per row."""
    found = []
    for name in UCI:
        one, other = (records.found.get(Key("deep", of, name, "cpu")) for of in ("uci", "uci-natural"))
        if one is not None and other is not None:
            bounds = (run["settings"]["by_fold"]["sgpr"]["elbo"] for run in (one, other))
            rows = one["data"]["sizes"]["train"]
            less = float(np.mean([abs(b - a) / rows for a, b in zip(*bounds, strict=False)]))
            found += [(name, less)] if less > APART else []
    return found


#: The difference between the bounds of two trainings, in nats per row, from which on they did not end alike.
APART = 0.002


def _matches(records: Records) -> dict[str, Any]:
    """The models whose printed accuracies on MNIST differ from our two layers, and two standard errors of ours.

    ``less`` has the lead of our two layers over our models of one layer.
    """
    models = ("sgp", "sgp-500", "dgp2", "dgp3")
    accuracies = {}
    for model in models:
        for run in records.compared("deep", "mnist", model, ("cpu",)):
            accuracies[model] = run.ours("accuracy")
    if (ours := accuracies.get("dgp2")) is None:
        return {}
    printed = {model: each["accuracy"] for model, each in PAPER.numbers("mnist", models).items()}
    unlike = [m for m, each in printed.items() if each and verdict("accuracy", ours, each).word in (EXCEEDED, SHORT)]
    known = [(model, of) for model in ("sgp", "sgp-500") if (of := accuracies.get(model)) is not None]
    less = [(title_of(model), lead(ours, of, "accuracy")) for model, of in known]
    return {"wide": ours.wide(), "unlike": list(map(title_of, unlike)), "less": less}


def _of_set(result: Mapping[str, Any]) -> dict[str, Any]:
    """A set of figure 1: models, bounds per row, and the differences of SGP and of the best deep GP from SGPR."""
    best = max(list(MODELS)[2:], key=lambda model: result["metrics"][f"{model}_{_LL}"])
    models = {model: _number(result, model) for model in MODELS}
    less: dict[str, Any] = {"sgp": _number(result, "sgp", "sgpr"), "deep": _number(result, best, "sgpr")}
    less |= {"wider": _number(result, "sgp-500", "sgpr"), "sgp bound": _bound_less(result, "sgp", "sgpr")}
    less |= {"leads": [_number(result, model, "sgpr") for model in list(MODELS)[2:]]}
    rows, by = result["data"]["sizes"]["train"], result["settings"]["by_fold"]
    over_splits = partial(mean_of, overlap=overlap_of(result))
    bounds = {model: over_splits([bound / rows for bound in by[model]["elbo"]]) for model in ("sgpr", *MODELS)}
    slower = float(np.sum(by["dgp5"]["seconds"]) / np.sum(by["sgp-500"]["seconds"]))
    return {"set": result["variant"], "best": best, "models": models, "bounds": bounds, "slower": slower, **less}


def _gain_of_steps(result: Mapping[str, Any]) -> float:
    """The mean gain of two layers after 2,000 steps of Adam, in nats; NaN if the file does not have it."""
    curve = result["settings"]["by_fold"].get("dgp2", {}).get("curve", ())
    at = {point["step"]: point[_LL] for point in curve}
    return at.get(10_000, math.nan) - at.get(2_000, math.nan)


def _bound_less(result: Mapping[str, Any], model: str, other: str) -> Ours | None:
    """The bound of a model minus the bound of another, in nats per row; ``None`` if the file does not have them."""
    by, rows = result["settings"]["by_fold"], result["data"]["sizes"]["train"]
    if not by.keys() >= {model, other}:
        return None
    less = [(a - b) / rows for a, b in zip(by[model]["elbo"], by[other]["elbo"], strict=True)]
    return mean_of(less, overlap=overlap_of(result))


def _number(result: Mapping[str, Any], *models: str) -> Ours | None:
    """The number of a model, or its lead over another model; ``None`` if the file does not have them."""
    if not result["settings"]["by_fold"].keys() >= set(models):
        return None
    return error_of(result, f"{models[0]}_{_LL}") if len(models) == 1 else Recorded((), (result,)).lead(_LL, *models)


#: Test rows for each training row if a tenth of the rows is for testing, see :func:`overlap_of`.
_TENTH = 1 / 9


def _published(name: str) -> list[Ours | None]:
    """Published numbers of SGPR and two layers. The standard error comes from a standard deviation over ten splits."""
    each, wide = PAPER.experiments["uci-natural"]["published"].get(name, ()), math.sqrt(1 / 10 + _TENTH)
    found = [Ours(mean, spread * wide if spread else None, "10 splits", 9) for mean, spread in each]
    return [*found, None, None][:2]


def _their_task(records: Records) -> list[dict[str, Any]]:
    """SGPR and two layers in the regression task of bayesian_benchmarks, from the file of our benchmark."""
    path = records.folder.parent.parent / "benchmarks" / "results" / "regression_tasks.json"
    scores = read_json(path)["scores"] if path.is_file() else {}
    return [
        {"set": name, "published": _published(name), "sgpr": None, "sgpr-one": None, "dgp2": None}
        | {
            model: mean_of([each[_LL] for each in of[name]], overlap=_TENTH)
            for model, of in scores.items()
            if name in of
        }
        for name in sorted({name for of in scores.values() for name in of})
    ]


EXPERIMENTS = (
    uci, uci_global, uci_natural, uci_few_steps, rectangles_images, mnist, year, airline, taxi, higgs, susy, timing,
    step_function,
)  # fmt: skip


if __name__ == "__main__":
    from gpzoo.reproductions.cli import script_main

    script_main(EXPERIMENTS)
