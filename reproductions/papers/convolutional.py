"""Convolutional Gaussian processes (van der Wilk, Rasmussen and Hensman 2017): what the paper claims."""

from __future__ import annotations

from functools import partial

from gpzoo.reproductions.claims import Answer, Claim, Column, Judged, Paper, Table
from gpzoo.reproductions.markdown import markdown
from gpzoo.reproductions.printed import Printed
from gpzoo.reproductions.records import Records

_COLUMNS = (Column("error (%)", "error", percent=True, metric="error"), Column("nlpp", "nlpp", metric="nlpp"))

_RECTANGLES = Table(
    where="sections 4.1 and 4.2",
    title="rectangles",
    answer="rectangles {row} {column}",
    columns=_COLUMNS,
    rows=(("RBF", "rbf", "5.0 0.258"), ("invariant", "invariant", "1.4 0.055"), ("weighted", "weighted", "0.0 0.005")),
)

_ZEROS = Table(
    where="section 4.1",
    title="zeros against ones",
    answer="mnist-0-vs-1 {row} {column}",
    columns=_COLUMNS[:1],
    rows=(("invariant", "invariant", "0.3"),),
)

_MNIST = Table(
    where="table 1",
    title="MNIST",
    answer="mnist {row} {column}",
    columns=_COLUMNS,
    rows=(
        ("invariant", "invariant", "2.08 0.077"),
        ("RBF", "rbf", "1.90 0.068"),
        ("weighted", "weighted", "1.22 0.048"),
        ("weighted + RBF", "weighted-rbf", "1.17 0.039"),
    ),
)

_KRAUTH = Table(
    where="sections 4.2 and 4.4",
    title="RBF with a leave-one-out objective (Krauth et al. 2016), of others",
    answer="",
    columns=(Column("MNIST error (%)", percent=True), Column("CIFAR-10 error (%)", percent=True)),
    rows=(("Krauth et al.", "", "1.55 44.95"),),
)

_CIFAR = Table(
    where="section 4.4",
    title="CIFAR-10",
    answer="cifar10 {row} {column}",
    columns=_COLUMNS[:1],
    rows=(("RBF", "rbf", "48.6"), ("multi-channel", "multi-channel", "35.4")),
)


def _between(variant: str, records: Records) -> Judged | None:
    """Is a variant's error below the RBF's, and above that of the multi-channel kernel?"""
    names = ("rbf", variant, "multi-channel")
    found = records.together("convolutional", "cifar10", names, ("quick", "tuned", "paper"))
    if found is None:
        return None
    low, middle, high = (records.found[found[name]]["metrics"]["error"] for name in ("multi-channel", variant, "rbf"))
    ours = f"{100 * high:.1f} > {100 * middle:.1f} > {100 * low:.1f} %"
    return Judged(ours, low < middle < high, list(found.values()))


def _sizes(records: Records) -> list[str]:
    """How far the sizes of the runs on MNIST are from the paper's."""
    rows = []
    for variant in ("invariant", "rbf", "weighted", "weighted-rbf"):
        for key, *_ in records.compared("convolutional", "mnist", variant, ("quick", "cpu", "tuned", "paper")):
            result = records.found[key]
            settings, steps = result["settings"], result["steps"]
            images = settings["batch_size"]
            epochs = steps * images / result["data"]["sizes"]["train"]
            M, rate = settings["num_inducing"], settings["learning_rate"]
            rows.append((f"{variant}, {key.preset}", f"{M:,}", f"{steps:,} of {images} images", f"{epochs:.0f}", rate))
    if not rows:
        return []
    paper = ("the paper", "750", "not printed, of 200 images", "–", "Adam, a tenth every 90,000 steps (authors' code)")
    return [
        "## MNIST: sizes of the runs and of the paper's",
        "",
        *markdown(("run", "inducing variables", "steps", "epochs", "learning rate"), [*rows, paper]),
        "",
        "The preset `paper` takes 90,000 steps (RBF 180,000, weighted + RBF 60,000), and its rate falls as in the "
        "authors' code: to 0.46 of itself after each third. How many steps the authors took is not known. Where a run "
        "falls short, fewer inducing patches or steps, its rates and the model can each be the reason.",
    ]


CONVOLUTIONAL = Paper(
    key="convolutional",
    title="Convolutional Gaussian processes",
    source="van der Wilk, Rasmussen and Hensman 2017",
    about="A GP on images that is a sum over patches, with inducing patches in place of inducing images. Sums with "
    "weights, with an RBF, and over colours follow.",
    tables=(_RECTANGLES, _ZEROS, _MNIST, _CIFAR, _KRAUTH),
    others=(
        *(
            Claim(
                "figure 3",
                f"CIFAR-10: error of {variant} lies between those of the RBF and of multi-channel",
                judge=partial(_between, variant),
                needs=("cifar10", ("rbf", variant, "multi-channel")),
            )
            for variant in ("weighted", "colour-patch", "additive")
        ),
        Claim(
            "figure 3",
            "CIFAR-10, RBF: nlpp",
            Printed("1.85"),
            Answer("cifar10", "rbf", "nlpp"),
            reading=True,
        ),
        *(
            Claim(
                "section 4.3",
                f"MNIST, weighted + RBF: learned variance of the {part}",
                Printed(value),
                Answer("mnist", "weighted-rbf", f"{part.lower()}_variance"),
            )
            for part, value in (("convolution", "14.3"), ("RBF", "0.011"))
        ),
        *(
            Claim(figure, f"{data}: hours of training", Printed(hours), reading=True, why="a GPU of 2017")
            for figure, data, hours in (("figure 2", "MNIST", "10"), ("figure 3", "CIFAR-10", "40"))
        ),
    ),
    beyond=_sizes,
    rows={"rectangles": 51_200, "mnist-0-vs-1": 14_780, "mnist": 70_000, "cifar10": 60_000},
    reasons={"cifar10": "more than its hours on two cores"},
    drawn_by_runs={
        "inducing_patches": "Trained inducing patches by the mean of their outputs, the least first (figure 1)"
    },
    telling=(
        ("mnist-paper", "mnist-tuned", "mnist-cpu"),
        "MNIST: test error and nlpp against time in training; dashed, the paper's values.",
    ),
)
