"""Reports: one HTML file without script or network, whatever the names in it are; in Chromium too, by make browser."""

import os
from contextlib import nullcontext
from functools import cache, partial
from html.parser import HTMLParser
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from click.testing import CliRunner
from jax import random

import gpzoo
from gpzoo import random_subset
from gpzoo.inference.diagnosis.findings import Finding, Section
from gpzoo.inference.plots import _axes, blank
from gpzoo.inference.plots._axes import curve
from gpzoo.inference.reports.document import Code, Part, page
from gpzoo.inference.reports.drawn import picture
from gpzoo.inference.reports.report import _again, report
from gpzoo.kernels import RBF, Convolutional
from gpzoo.likelihoods import Bernoulli
from gpzoo.processes.process import GaussianProcess
from gpzoo.reproductions import cli
from gpzoo.reproductions.experiment import Inspected
from tests.inference.diagnosis.browser import Browser
from tests.programs import KEY, at_start, bayesian_regression, deep, positive, regression, sine
from tests.reproductions.test_execute import experiment, outcome

in_browser = pytest.mark.skipif("GPZOO_BROWSER" not in os.environ, reason="needs Chromium; make browser")

VOID = {"br", "hr", "img", "input", "link", "meta"}


class Page(HTMLParser):
    """What is in a page, checked on the way: every tag closed, ids unique, headings in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.ids, self.headings, self.text = [], [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        assert len(attributes) == len(attrs)
        self.tags.append((tag, attributes, tuple(self.open)))
        if "id" in attributes:
            self.ids.append(attributes["id"])
        if tag in ("h1", "h2", "h3", "h4"):
            self.headings.append(int(tag[1]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text.append(data)

    def of(self, name):
        return [attributes for tag, attributes, _ in self.tags if tag == name]


def checked(path):
    """The page of a report that keeps all that reports promise."""
    text = Path(path).read_text(encoding="utf-8")
    assert len(text.encode()) < 5_000_000
    found = Page(text)
    names = {tag for tag, *_ in found.tags}
    assert not names & {"script", "iframe", "object", "embed", "link", "video", "audio", "form", "base"}
    assert found.of("html") == [{"lang": "en"}] and found.of("main") and found.of("title")
    metas = {attributes.get("name") or attributes.get("http-equiv"): attributes for attributes in found.of("meta")}
    assert "width=device-width" in metas["viewport"]["content"] and metas["color-scheme"]["content"] == "light dark"
    assert metas["Content-Security-Policy"]["content"].startswith("default-src 'none';")
    assert len(set(found.ids)) == len(found.ids)
    for _, attributes, _ in found.tags:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href", "srcset", "action", "data"):
            assert attributes.get(name, "#").startswith(("#", "data:image/"))
        for name in ("aria-labelledby", "href"):
            target = attributes.get(name, "").removeprefix("#")
            assert not target or target in found.ids
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style and "@import" not in style and "prefers-color-scheme: dark" in style
    assert found.headings[0] == 1 and found.headings.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(found.headings, found.headings[1:], strict=False))
    figures, images, folded = found.of("figure"), found.of("img"), [t for t in found.tags if t[0] == "details"]
    assert len(figures) == len(images) == sum("figure" in inside for *_, inside in folded)
    assert all(len(image["alt"]) > 20 for image in images)
    assert all(cell.get("scope") in ("col", "row") for cell in found.of("th"))
    assert len(found.of("caption")) == len(found.of("table"))
    return found


# -- what is written ---------------------------------------------------------------------------------------------------

HOSTILE = "<script>alert(1)</script> & \"quotes\" '$body' https://example.org \x00\x1b[31m\u202e\u2028 \ud800"


def test_words_are_shown_and_never_obeyed(tmp_path):
    figure = blank(2, 2)
    axes = figure.subplots()
    curve(axes, [1, 2, 3], [1, 4, 9], "squares <b>")
    axes.set(xlabel="<i>x</i>", ylabel="y")
    axes.legend()
    parts = [
        Part(HOSTILE, [HOSTILE, Code(HOSTILE), (Finding(HOSTILE, HOSTILE, HOSTILE),)]),
        Part("Tables", [Section(HOSTILE, (HOSTILE, "n"), ((HOSTILE, 1.23456), ("", None)), HOSTILE)]),
        Part("Pictures", [picture(HOSTILE, HOSTILE, axes)]),
        Part("Empty", []),
    ]
    path = tmp_path / "report.html"
    path.write_text(page(HOSTILE, HOSTILE, parts), encoding="utf-8")
    found = checked(path)
    words = "".join(found.text)
    assert words.count("<script>alert(1)</script> & \"quotes\" '$body'") >= 10
    assert "\\x00\\x1b[31m\\u202e" in words and "\u202e" not in words and "\x1b" not in words
    assert "1.235" in words and "Empty" not in words
    (image,) = found.of("img")
    assert "<script>" in image["alt"] and "squares <b>" in image["alt"]
    assert [cell for cell in found.text if cell in ("1", "4", "9")].count("9") == 1  # the numbers of the picture


def test_tables_beside_pictures_have_the_numbers_that_are_drawn():
    figure = blank(4, 4)
    line, bars, matrix, images = figure.subplots(2, 2).ravel()
    _axes.curve(line, [0.0, 1.0], [2.0, 3.0], "a")
    _axes.band(line, np.array([0.0, 1.0]), [[1.0, 2.0], [3.0, 4.0]], "band", "b", 0.5)
    _axes.curve(line, [5.0, 6.0], [7.0, 8.0], "dots", "o", named=["p", "q"])
    _axes.curve(line, [0.0], [0.0])
    line.set(xlabel="x", ylabel="y")
    _axes.bars(bars, [0.1, 0.2, 0.7], "3 data", bins=2, range=(0, 1))
    _axes.image(matrix, [[0.25, 0.75]])
    _axes.image(images, np.zeros((2, 2)), extent=(0, 1, 0, 1), caption="-1.5")
    _axes.image(images, np.ones((2, 2)), extent=(1, 2, 0, 1), caption="2")
    tables = picture("All", "Words.", [line, bars, matrix, images]).tables
    assert tables[0].columns == ("shown", "x", "y")
    assert tables[0].rows == (
        ("a", 0, 2), ("a", 1, 3), ("band", 0, "1 to 3"), ("band", 1, "2 to 4"), ("dots", 5, "p"), ("dots", 6, "q"),
    )  # fmt: skip
    assert [row[1:] for row in tables[1].rows] == [("0 to 0.5", 2.0), ("0.5 to 1", 1.0)]
    assert tables[2].rows == (("0", 0.25, 0.75),)
    assert [row[1:] for row in tables[3].rows] == [("-1.5", 0, 0, 0), ("2", 1, 1, 1)]


# -- reports of trained models -----------------------------------------------------------------------------------------


def images(X, y=None, *, num_data=None):
    """A convolutional classifier of small images, one site of which has an ill name."""
    base = RBF(positive("variance", 1.0), positive("<lengthscale>", 1.0))
    weights = numpyro.param("weights", jnp.ones(9, X.dtype))
    f = numpyro.sample("f", GaussianProcess(Convolutional(base, (4, 4, 1), (2, 2), weights=weights), X))
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", Bernoulli(f), obs=y)


def pictures(n, seed):
    """Images with a bar, upright or lying, and which it is."""
    rng = np.random.default_rng(seed)
    X, y = rng.uniform(0, 0.2, (n, 4, 4, 1)), rng.integers(0, 2, n)
    for image, upright in zip(X, y, strict=True):
        at = rng.integers(0, 4)
        image[(slice(None), at) if upright else (at, slice(None))] = 1.0
    return jnp.asarray(X), jnp.asarray(y)


@cache
def trained(name):
    """A model, at its start as if it had been trained, and rows to look at: of numbers, of images, or a deep one."""
    program, inducing, data, test, options = {
        "numbers": (bayesian_regression, 8, sine(30), sine(40, 1), {"hyperparameters": "normal"}),
        "images": (images, 8, pictures(40, 0), pictures(60, 1), {}),
        "deep": (deep, 6, sine(30), sine(40, 1), {}),
    }[name]
    patches = gpzoo.unique_patches if name == "images" else gpzoo.random_subset
    options |= {"losses": np.geomspace(200.0, 50.0, 60), "data": {"argument X sha256": "0123456789abcdef"}}
    return at_start(program, patches(inducing), *data, **options), test


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """``written(name)``: the path of a model's report; that of numbers is written by the command line, of its file."""
    folder = tmp_path_factory.mktemp("reports")

    @cache
    def made(name):
        model, (X, y) = trained(name)
        if name != "numbers":
            return report(KEY, model, X, y, path=folder / f"{name}.html")
        model.save(folder / "model.gpzoo")
        np.savez(folder / "data.npz", X=X, y=y, num_data=np.array(1000))
        asked = ("--program", "tests.programs:bayesian_regression", "--data", str(folder / "data.npz"))
        done = called("inspect", str(folder / "model.gpzoo"), *asked)
        assert done.exit_code == 0, done.output
        return folder / "model.html"

    return made


def called(*args):
    """The command line; its programs are compiled as those of the library are, not once more."""
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr("gpzoo._platform.compiled_for_one_run", nullcontext)
        return CliRunner().invoke(cli.main, args, catch_exceptions=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shown", "left_out"),
    [
        ("numbers", {"Fit", "Calibration of y", "Bound", "Lengthscales"}, {"Field", "Layers", "Images"}),
        (
            "images",
            {"Confusion of y", "Reliability of y", "Bound", "Inducing images", "Weights of patches", "Lengthscales",
             "Covariance by class"},
            {"Fit", "Field", "Layers", "Augmentations"},
        ),
        pytest.param(
            "deep",
            {"Fit", "Calibration of y", "Bound", "Layers", "Lengthscales"},
            {"Field", "Images"},
            marks=in_browser,
        ),
    ],
)  # fmt: skip
def test_a_report_says_what_the_program_is_and_shows_the_pictures_that_fit(written, name, shown, left_out):
    found = checked(written(name))
    words = "".join(found.text)
    assert found.headings.count(3) == len(shown)
    assert all(f"Numbers of: {title}" in words for title in shown)
    assert not any(f"Numbers of: {title}" in words for title in left_out) and all(
        each in found.text for each in left_out
    )
    model, _ = trained(name)
    hidden = {f"{name}_{part}" for name in ("lengthscale", "noise") for part in ("loc", "scale")}
    sites = {"f", "y", "lengthscale", *model.params} if name == "deep" else {"f", "y", *model.params}
    assert sites - hidden <= set(found.text)
    assert (
        "The bound by site" in words
        and "-KL[q(u) || p(u)]" in words
        and "float64" in words
        and gpzoo.__version__ in words
    )
    assert f"import {name}" in words or "from tests.programs import" in words
    assert "random.key(0)" in words and model.data["argument X sha256"] in words
    if name == "numbers":
        assert "LogNormal(loc=0, scale=1)" in words and "GP, kernel RBF(variance, lengthscale)" in words
        assert "data (40 of 1000)" in words and "{'num_data': 1000}" in words
    if name == "images":
        assert "Patches(image_shape=(4, 4, 1)" in words and "<lengthscale>" in words and "Bernoulli(f)" in words


@pytest.mark.parametrize("key", [KEY, random.split(KEY)[1]], ids=["of a seed", "split"])
@pytest.mark.parametrize("program", [regression, partial(regression, num_data=9)], ids=["plain", "partial"])
def test_its_lines_import_what_they_use(key, program):
    X, y = sine(9)
    _, code = _again(key, at_start(program, random_subset(3), X, y), (X, y), {}, None, None)
    assert isinstance(code, Code)
    *before, last = code.text.split("trained = load")
    known = {"trained": None, "X": X, "y": y}
    exec(before[0], known)
    known["report"] = lambda key, *args, **options: key
    made = eval(last.splitlines()[-1], known)
    assert np.array_equal(random.key_data(made), random.key_data(key))


def test_a_report_needs_data_and_a_path(tmp_path):
    model, test = trained("numbers")
    with pytest.raises(ValueError, match="report needs the program's arguments"):
        report(KEY, model, path=tmp_path / "report.html")
    with pytest.raises(ValueError, match="path must be"):
        report(KEY, model, *test, path="")


# -- the command line --------------------------------------------------------------------------------------------------


@pytest.fixture
def toy(monkeypatch, tmp_path):
    """``toy(*args)`` calls the command line with one experiment, whose model is the one of images."""
    monkeypatch.chdir(tmp_path)
    model, test = trained("images")
    seen = []

    def run(run):
        seen.append(run)
        return outcome(
            inspected=Inspected(model, test, {}, "plain, split 1 of 3"),
            curve=[{"step": i, "seconds": 1.0 * i, "error": 0.1 / i} for i in (1, 2, 3)],
            settings={"rate": 0.1 if run.variant == "plain" else 0.2, "same": {"deep": 1}},
        )

    def call(*args):
        monkeypatch.setattr(cli, "all_experiments", lambda own: (experiment(run=run),))
        return called(*args)

    call.seen = seen
    return call


@pytest.mark.slow
def test_inspect_writes_the_report_of_a_run(toy, tmp_path):
    assert toy("reproduce", "toy", "squares", "--output", "here").exit_code == 0
    assert (tmp_path / "here" / "model.gpzoo").is_file()
    done = toy("inspect", "here")
    assert done.exit_code == 0 and done.stdout.splitlines()[-1] == f"Report: {Path('here/report.html')}", done.output
    words = "".join(checked(tmp_path / "here" / "report.html").text)
    assert "This run beside the paper" in words and "gpzoo reproduce toy squares --variant plain" in words
    assert "Of the models of this run, it shows plain, split 1 of 3." in words
    assert (
        "Numbers of: Confusion of y" in words
        and "Numbers of: Test metrics during training" in words
        and "same.deep" in words
    )
    assert [run.finished for run in toy.seen] == [False, True]
    # Without its model nothing is run, and the numbers are still there.
    (tmp_path / "here" / "model.gpzoo").unlink()
    assert toy("inspect", "here", "--output", "there.html").exit_code == 0 and len(toy.seen) == 2
    words = "".join(checked(tmp_path / "there.html").text)
    assert "There is no model.gpzoo" in words and "beside the paper" in words and "Confusion of y" not in words


@pytest.mark.parametrize(
    ("prepare", "args", "told"),
    [
        (lambda: None, ("nowhere",), "nowhere"),
        (lambda: Path("empty").mkdir(), ("empty",), "has no result.json"),
        (lambda: (Path("bad").mkdir(), Path("bad/result.json").write_text("[]")), ("bad",), "is damaged"),
        (lambda: Path("bad.gpzoo").write_text("no model"), ("bad.gpzoo",), "cannot be loaded as a trained model"),
        (lambda: Path("m.gpzoo").touch(), ("m.gpzoo", "--program", "a:b"), "Name both the program"),
    ],
)
def test_what_cannot_be_inspected_is_one_line(toy, prepare, args, told):
    prepare()
    failed = toy("inspect", *args)
    assert failed.exit_code in (1, 2) and told in failed.stderr and failed.stderr.count("\n") == 1


def test_inspect_writes_the_report_of_a_model_without_its_program(toy, tmp_path):
    model, (X, y) = trained("numbers")
    model.save(tmp_path / "model.gpzoo")
    assert toy("inspect", "model.gpzoo").exit_code == 0
    words = "".join(checked(tmp_path / "model.html").text)
    assert "neither the program nor data" in words and "lengthscale_loc" in words and "Numbers of: Bound" in words
    np.savez(tmp_path / "data.npz", X=X, y=y)
    asked = ("inspect", "model.gpzoo", "--data", "data.npz", "--program")
    assert "There is no program 'tests.programs:nothing'" in toy(*asked, "tests.programs:nothing").stderr
    assert "is no program" in toy(*asked, "tests.programs:KEY").stderr
    np.savez(tmp_path / "data.npz", X=X, z=y)
    assert "has arrays ['z']" in toy(*asked, "tests.programs:bayesian_regression").stderr
    np.savez(tmp_path / "data.npz", y=y)
    assert "has no arrays ['X']" in toy(*asked, "tests.programs:bayesian_regression").stderr


def test_compare_writes_the_candidates_side_by_side(toy, tmp_path):
    done = toy("compare", "toy", "squares", "--output", "runs")
    assert done.exit_code == 0 and done.stdout.splitlines()[-1].startswith("Report: runs"), done.output
    found = checked(tmp_path / "runs" / "toy-squares-quick-seed0.html")
    words = "".join(found.text)
    for part in ("plain", "fancy", "plain, in the paper", "Settings that differ", "gpzoo inspect runs"):
        assert part in words
    assert "rate" in found.text and "same.deep" not in words


# -- in a browser ------------------------------------------------------------------------------------------------------


@in_browser
def test_chromium_shows_reports_without_errors_or_requests(written):
    folder = Path(os.environ["GPZOO_BROWSER"])
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: Path(written(name)) for name in ("numbers", "images", "deep")}
    paths |= {
        f"{path.parent.name}-{path.stem}": path for path in map(Path, os.environ.get("GPZOO_REPORTS", "").split())
    }
    browser = Browser()
    try:
        for name, path in paths.items():
            for width in (1200, 400):
                for dark in (False, True):
                    found, said, asked = browser.open(path, width, dark)
                    where = folder / f"{name}-{width}-{'dark' if dark else 'light'}.png"
                    browser.screenshot(where, found["height"])
                    assert not said, said
                    assert asked == [path.absolute().as_uri()], asked
                    assert found["width"] <= width and found["broken"] == 0, found
                    # WCAG 2.2: contrast of text 1.4.3, size of targets 2.5.8.
                    assert found["contrast"] >= 4.5 and found["targets"] >= 24 and found["letters"] >= 13, found
    finally:
        browser.close()
