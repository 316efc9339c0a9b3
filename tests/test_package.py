"""The package as users install it: its modules, its import names, and which way its imports go."""

import ast
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

import pytest

import gpzoo
from tests.conftest import ROOT

#: Each layer's folder and the layers it must not import.
LAYERS = {
    "gpzoo": ("gpzoo", ("gpzoo.inference", "gpzoo.models", "gpzoo.reproductions")),
    "gpzoo.inference": ("inference", ("gpzoo.models", "gpzoo.reproductions")),
    "gpzoo.models": ("models", ("gpzoo.reproductions",)),
    "gpzoo.adapters": ("gpzoo/adapters", ("gpzoo.reproductions",)),
    "gpzoo.reproductions": ("reproductions", ()),
}


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Everything in the syntax tree of a file."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def modules() -> list[str]:
    """Every module of the source tree by its import name, less those of libraries that development does without."""
    names = []
    for package, (folder, _) in LAYERS.items():
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            names.append(".".join((package, *(part for part in parts if part != "__init__"))))
    absent = {"gpzoo.adapters.botorch"} if find_spec("botorch") is None else set()
    return sorted({*names} - absent)


def private_names(path: Path) -> set[tuple[str, str]]:
    """Names with an underscore in front that a module imports from NumPyro, reads of objects, or has as texts."""
    found = set[tuple[str, str]]()
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("numpyro"):
            found |= {("import", alias.name) for alias in node.names}
        elif isinstance(node, ast.Attribute):
            found.add(("attribute", node.attr))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(("text", node.value))
    return {(kind, name) for kind, name in found if re.fullmatch(r"_[A-Za-z]\w+", name)}


def test_names_that_numpyro_does_not_promise_stand_in_one_module():
    """A change of NumPyro then touches one file."""
    one = ROOT / "gpzoo" / "_numpyro.py"
    known = private_names(one)
    assert known >= {("text", "_control_flow_done"), ("attribute", "_mask"), ("import", "_PYRO_STACK")}
    for path in (path for folder, _ in LAYERS.values() for path in (ROOT / folder).rglob("*.py") if path != one):
        others = private_names(path)
        assert not known & others and not [name for kind, name in others if kind == "import"], path


def test_no_string_stands_alone():
    """A string on a line of its own continues the one above it only within brackets, and is else lost."""
    lost = []
    for path in (path for folder, _ in LAYERS.values() for path in (ROOT / folder).rglob("*.py")):
        for node in nodes_of(path):
            for block in (getattr(node, name, ()) for name in ("body", "orelse", "finalbody")):
                # The first of a block may be a docstring.
                for each in block[1:] if isinstance(block, list) else ():
                    value = each.value if isinstance(each, ast.Expr) else None
                    if isinstance(value, ast.JoinedStr) or isinstance(getattr(value, "value", None), str):
                        lost.append(f"{path}:{each.lineno}")
    assert not lost


def run(*command: str, **environment: str) -> str:
    """Run a command away from the source tree and return what it prints."""
    done = subprocess.run(command, env={**os.environ, **environment}, cwd="/", capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder into which the package, and nothing else, is installed from its wheel."""
    source, wheels, target = (tmp_path_factory.mktemp(name) for name in ("source", "wheels", "target"))
    # Built from a copy: setuptools leaves a build folder in the source, from which removed files would come back.
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for folder, _ in LAYERS.values():
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, source / folder, ignore=ignored, dirs_exist_ok=True)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(wheels), str(source))
    (wheel,) = wheels.glob("*.whl")
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", str(target), str(wheel))
    return target


@pytest.mark.slow
def test_wheel_installs_one_import_name(installed):
    names = {path.name for path in installed.iterdir() if path.suffix != ".dist-info"}
    assert names - {"bin"} == {"gpzoo"}
    assert (installed / "bin" / "gpzoo").exists()


#: Of the core's distributions, by import name: imported by what uses them, and not by a training on arrays of NumPy.
LATE = ("arviz", "funsor", "h5netcdf", "h5py", "pandas", "rich", "xarray")

#: Of the extras.
OPTIONAL = (
    "botorch",
    "click",
    "flax",
    "jinja2",
    "matplotlib",
    "PIL",
    "pooch",
    "pyarrow",
    "requests",
    "sklearn",
    "torch",
)

#: Imported neither by the core nor by the list of data sets.
LAZY = (*LATE, *OPTIONAL, "beartype")


@pytest.mark.slow
def test_every_module_imports_from_the_wheel_and_the_package_without_heavy_libraries(installed):
    code = f"""
import importlib, sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in getattr(finder, "__module__", "")]
import gpzoo, gpzoo.inference, gpzoo.models
print([name for name in {LAZY!r} if name in sys.modules])
import gpzoo.reproductions.datasets
print([name for name in {LAZY!r} if name in sys.modules])
for name in {modules()!r}:
    module = importlib.import_module(name)
    assert module.__file__.startswith({str(installed)!r}), module.__file__
# The style of reports is no module.
assert "</html>" in importlib.import_module("gpzoo.inference.reports.document").page("title", "subtitle", [])
print(importlib.import_module("gpzoo").__version__)
"""
    assert run(sys.executable, "-c", code, PYTHONPATH=str(installed)).splitlines() == ["[]", "[]", gpzoo.__version__]


def test_the_command_line_answers_before_jax_is_imported():
    code = "import sys, gpzoo.reproductions.cli; print([name for name in ('jax', 'numpy') if name in sys.modules])"
    assert run(sys.executable, "-c", code) == "[]\n"


@pytest.mark.slow
def test_version_is_the_wheels(installed):
    assert [path.name for path in installed.glob("*.dist-info")] == [f"gpzoo-{gpzoo.__version__}.dist-info"]


def test_what_is_said_of_the_package_is_said_alike():
    """In pyproject.toml, CITATION.cff, .zenodo.json and the changelog."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    cited = dict(re.findall(r'^([\w-]+): "?(.+?)"?$', citation, re.MULTILINE))
    (author,) = re.findall(r'^  - name: "(.+)"$', citation, re.MULTILINE)
    archived = json.loads((ROOT / ".zenodo.json").read_text(encoding="utf-8"))
    for key in ("title", "version", "license"):
        assert archived[key] == cited[key]
    assert (cited["version"], cited["license"]) == (project["version"], project["license"])
    assert cited["title"].startswith(f"{project['name']}:")
    assert [{"name": author}] == archived["creators"] == project["authors"]
    urls = project.get("urls", {})
    assert (cited.get("repository-code"), cited.get("url")) == (urls.get("Homepage"), urls.get("Documentation"))
    recipe = (ROOT / "packaging" / "conda" / "recipe.yaml").read_text(encoding="utf-8")
    needed = {line.replace(" ", "") for line in re.findall(r"^    - (.+)$", recipe.split("  run:")[1], re.MULTILINE)}
    assert {name.replace("[h5py]", "") for name in project["dependencies"]} <= needed
    assert f'version: "{project["version"]}"' in recipe
    first = re.search(r"^## ([\d.]+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert first and first[1] == gpzoo.__version__ == project["version"]


def test_publishing_is_one_change(tmp_path):
    """No file names an address that is not there yet; one command puts it everywhere."""
    publish = runpy.run_path(str(ROOT / "packaging" / "publish.py"))["publish"]
    names = ["pyproject.toml", "CITATION.cff", "README.md", "docs/index.md", ".zenodo.json"]
    (tmp_path / "docs").mkdir()
    for name in names:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert "gpzoo.github.io" not in text and "pip install gpzoo" not in text, name
        (tmp_path / name).write_text(text, encoding="utf-8")
    publish(tmp_path, "https://example.org/gpzoo", "https://example.org/site/")
    urls = tomllib.loads((tmp_path / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    assert urls["Documentation"] == "https://example.org/site/" and urls["Homepage"] == "https://example.org/gpzoo"
    for name in names[1:4]:
        said = (tmp_path / name).read_text(encoding="utf-8")
        assert "url: https://example.org/site/" in said or "`pip install gpzoo`, or `pip install -e .`" in said, name
    archived = json.loads((tmp_path / ".zenodo.json").read_text(encoding="utf-8"))
    assert archived["related_identifiers"][0]["identifier"] == urls["Documentation"]
    with pytest.raises(SystemExit, match="published already"):
        publish(tmp_path, "https://example.org/gpzoo", "https://example.org/site/")


@cache
def imports(path: Path, types: bool = True) -> list[ast.Import | ast.ImportFrom]:
    """The imports of a file, inside functions too, and for types alone unless told otherwise."""
    nodes = nodes_of(path)
    for node in nodes if not types else ():
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for_types = set(ast.walk(node))
            nodes = [each for each in nodes if each not in for_types]
    return [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]


@cache
def imports_in_functions(path: Path) -> list[ast.AST]:
    """The imports inside the functions of a file."""
    functions = [node for node in nodes_of(path) if isinstance(node, ast.FunctionDef)]
    nodes = [node for function in functions for node in ast.walk(function)]
    return [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]


def imported(path: Path, package: str) -> set[str]:
    """Absolute names of everything a file imports."""
    return imported_by(imports(path), package)


def imported_by(nodes: Iterable[ast.AST], package: str) -> set[str]:
    """Absolute names of everything that the imports among these nodes of a file name."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*base, *([node.module] if node.module else [])])
            names |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return names


@pytest.mark.parametrize("package", LAYERS)
def test_imports_go_one_way(package):
    folder, forbidden = LAYERS[package]
    apart = [ROOT / inner for inner, _ in LAYERS.values() if inner.startswith(f"{folder}/")]
    paths = [path for path in (ROOT / folder).rglob("*.py") if path.parent not in apart]
    assert paths
    for path in paths:
        inside = ".".join((package, *path.relative_to(ROOT / folder).parent.parts))
        for name in imported(path, inside):
            wrong = [layer for layer in forbidden if name == layer or name.startswith(layer + ".")]
            assert not wrong, f"{path.relative_to(ROOT)} imports {name}"
            top_level = name.split(".")[0]
            assert top_level not in ("inference", "models", "reproductions"), f"{path.relative_to(ROOT)} imports {name}"


def test_import_scan_sees_relative_imports(tmp_path):
    path = tmp_path / "file.py"
    path.write_text("def f():\n    from ..models import sparse\n    from .bounds import elbo\n    import gpzoo.views\n")
    found = imported(path, "gpzoo.inference")
    assert {"gpzoo.models.sparse", "gpzoo.inference.bounds.elbo", "gpzoo.views"} <= found


#: The floors of the package, from the lowest: a module imports from its own floor and from those below.
FLOORS = (
    ("gpzoo._", "gpzoo.errors"),
    ("gpzoo.linalg", "gpzoo.tables", "gpzoo.views"),
    ("gpzoo.kernels",),
    ("gpzoo.inducing", "gpzoo.processes"),
    ("gpzoo.likelihoods", "gpzoo.posteriors"),
    ("gpzoo",),
    ("gpzoo.inference.programs",),
    ("gpzoo.inference.guides", "gpzoo.inference.bounds"),
    ("gpzoo.inference.training", "gpzoo.inference.fitted"),
    ("gpzoo.inference.diagnosis", "gpzoo.inference.plots"),
    ("gpzoo.inference.reports", "gpzoo.inference.trackers", "gpzoo.inference.launch"),
    ("gpzoo.inference",),
    ("gpzoo.models",),
    ("gpzoo.adapters",),
)

#: Known, and to go: imports from a higher floor, and modules that import each other.
KNOWN_UPWARDS: set[tuple[str, str]] = set()
KNOWN_CIRCLES: set[frozenset[str]] = set()


def floor(module: str) -> int:
    """The number of a module's floor: that of the longest name in :data:`FLOORS` that it starts with."""
    found = [(len(name), i) for i, names in enumerate(FLOORS) for name in names if module.startswith(name)]
    return max(found)[1]


@cache
def paths_of_modules() -> dict[str, tuple[Path, str]]:
    """The file of each module of the package but for the reproductions, and the package that it is in."""
    paths = {}
    for package, (folder, _) in LAYERS.items():
        for path in (ROOT / folder).rglob("*.py") if package != "gpzoo.reproductions" else ():
            inside = (package, *path.relative_to(ROOT / folder).parent.parts)
            paths[".".join(inside if path.stem == "__init__" else (*inside, path.stem))] = path, ".".join(inside)
    return paths


@cache
def imports_between_modules() -> dict[str, set[str]]:
    """The modules of the package that each of them imports: late, and for types alone, too."""
    paths, found = paths_of_modules(), {}
    for module, (path, inside) in paths.items():
        names = imported(path, inside)
        names -= {name.rpartition(".")[0] for name in names}
        found[module] = {name if name in paths else name.rpartition(".")[0] for name in names} & paths.keys() - {module}
    return found


def test_no_module_imports_from_a_higher_floor():
    found = {(a, b) for a, names in imports_between_modules().items() for b in names if floor(b) > floor(a)}
    assert found == KNOWN_UPWARDS


def test_no_modules_import_each_other():
    graph = imports_between_modules()

    def below(module: str, seen: set[str]) -> set[str]:
        for name in graph[module] - seen:
            seen.add(name)
            below(name, seen)
        return seen

    reached = {module: below(module, set()) for module in graph}
    circles = {frozenset(b for b in reached[a] if a in reached[b]) for a in graph if a in reached[a]}
    assert circles == KNOWN_CIRCLES


#: Optional parts, which cost nothing to who does not use them, and the parts that build on each. Front doors name them.
LEAVES = {
    "gpzoo.adapters": (),
    "gpzoo.tables": (),
    "gpzoo.inference.diagnosis": ("gpzoo.inference.plots", "gpzoo.inference.reports"),
    "gpzoo.inference.plots": ("gpzoo.inference.reports",),
    "gpzoo.inference.reports": (),
    "gpzoo.inference.trackers": (),
    "gpzoo.inference.launch": (),
}

#: Who imports a leaf all the same: inside a function.
IN_FUNCTIONS = {("gpzoo.inference.training.sources", "gpzoo.tables")}


def test_nothing_but_front_doors_imports_leaves():
    at_import, in_functions = set(), set()
    for module, (path, inside) in paths_of_modules().items():
        for leaf in (x for x in LEAVES if not any(_within(module, part) for part in (x, *LEAVES[x]))):
            late = imported_by(imports_in_functions(path), inside)
            early = imported_by(imports(path, types=False), inside)
            in_functions |= {(module, leaf) for name in late if _within(name, leaf)}
            at_import |= {(module, name) for name in early - late if _within(name, leaf)}
    assert not at_import
    assert in_functions == IN_FUNCTIONS


def _within(name: str, package: str) -> bool:
    return f"{name}.".startswith(f"{package}.")


#: A training on arrays of NumPy, with its bar, and a prediction.
TRAINING = """
import sys
import jax, numpy as np, optax
from numpyro.infer import SVI
import gpzoo, gpzoo.models
from gpzoo.inference import GaussianProcessELBO, InducingGuide, fit, predict

X = np.linspace(-1, 1, 20, dtype=np.float32)[:, None]
y = np.sin(3 * X[:, 0])
guide = InducingGuide(gpzoo.models.gp_regression, gpzoo.random_subset(5))
svi = SVI(gpzoo.models.gp_regression, guide, optax.adam(0.01), GaussianProcessELBO())
trained = fit(jax.random.key(0), svi, 1, X, y)
print()
print(trained.predict(jax.random.key(1), X, quantiles=(0.1, 0.9))["y"].mean.shape)
"""


@pytest.mark.slow
def test_a_training_and_a_prediction_import_no_library_that_they_do_not_use():
    code = f"{TRAINING}print([name for name in {LAZY!r} if name in sys.modules])"
    assert run(sys.executable, "-c", code).splitlines()[-2:] == ["(20,)", "[]"]


@pytest.mark.slow
def test_the_core_trains_without_what_is_imported_late_and_says_what_is_missing(tmp_path):
    code = f"""
import sys

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {(*LATE, *OPTIONAL)!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refusing())
{TRAINING}
import numpyro, numpyro.distributions as dist

def told(call):
    try:
        call()
    except (ImportError, SystemExit) as error:
        print(error)

def networks():
    import gpzoo.models.networks

def estimators():
    import gpzoo.adapters.sklearn

def ensemble():
    import gpzoo.adapters.botorch

def command():
    from gpzoo.reproductions.__main__ import main
    main()

def execute():
    from gpzoo.reproductions import execute
    execute.execute(None, None)

def data(name):
    from gpzoo.reproductions import datasets
    datasets.load(name)

def mixture(X, y=None):
    f = numpyro.sample("f", gpzoo.GaussianProcess(gpzoo.kernels.RBF(), X))
    with numpyro.plate("data", len(X)):
        z = numpyro.sample("z", dist.Bernoulli(0.5), infer={{"enumerate": "parallel"}})
        numpyro.sample("y", dist.Normal(gpzoo.draws(f), 1.0 + z), obs=y)

def enumerated():
    svi = SVI(mixture, InducingGuide(mixture, gpzoo.random_subset(5)), optax.adam(0.01), GaussianProcessELBO())
    fit(jax.random.key(0), svi, 1, X, y, progress=False)

told(lambda: trained.to_arviz(jax.random.key(0), X, y))
told(lambda: str(gpzoo.inference.Diagnosis()))
told(lambda: gpzoo.inference.Diagnosis().to_xarray())
told(enumerated)
told(command)
told(execute)
told(lambda: data("mnist"))
told(networks)
told(estimators)
told(ensemble)
told(lambda: gpzoo.tables.ParquetTable({str(tmp_path)!r}, columns=["a"]))
told(lambda: data("rectangles") or print("generated"))
"""
    assert run(sys.executable, "-c", code).splitlines()[-13:] == [
        "(20,)",
        "An export, k-hat, R-hat or leave-one-out density needs arviz, which is not installed: pip install arviz.",
        "Printing a diagnosis needs rich, which is not installed: pip install rich.",
        "A diagnosis as a dataset needs xarray, which is not installed: pip install xarray.",
        # NumPyro's own words.
        "Looking like you want to do inference for models with discrete latent variables. This is an experimental "
        "feature. You need to install `funsor` to be able to use this feature. It can be installed with "
        "`pip install funsor`.",
        "gpzoo: The command line needs click, which is not installed: pip install 'gpzoo[reproductions]'.",
        "Drawing the figures of an experiment needs matplotlib, which is not installed: "
        "pip install 'gpzoo[reproductions]'.",
        "Looking for data sets needs pooch, which is not installed: pip install 'gpzoo[reproductions]'.",
        "A network of the deep-kernel experiments needs flax, which is not installed: pip install 'gpzoo[flax]'.",
        "An estimator needs sklearn, which is not installed: pip install 'gpzoo[sklearn]'.",
        "A model for BoTorch needs torch, which is not installed: pip install 'gpzoo[botorch]'.",
        "Reading Parquet files needs pyarrow, which is not installed: pip install 'gpzoo[parquet]'.",
        "generated",
    ]


#: Declared and not imported by name: what needs each.
UNSEEN = {
    "jaxlib": "the compiled half of JAX",
    "h5netcdf": "what ArviZ writes netCDF with",
    "pytest-xdist": "pytest -n",
    "pytest-timeout": "timeout in pyproject.toml",
    "ruff": "make lint",
    "pyright": "make types",
    "build": "the wheel of these tests",
    "setuptools": "the same",
    "equinox": "one of its networks is tested where it is installed",
    "zarr": "what xarray writes Zarr with",
}

#: Imported and not declared: what brings each.
BROUGHT = {"multipledispatch": "numpyro", "tqdm": "numpyro", "xarray": "arviz"}


def declared() -> dict[str, set[str]]:
    """The distributions that pyproject.toml names: under ``""`` those of the core, else those of an extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {"": project["dependencies"], **project["optional-dependencies"]}
    named = {
        extra: {re.match(r"gpzoo\[[\w,]+\]|[\w.-]+", requirement)[0] for requirement in requirements}
        for extra, requirements in extras.items()
    }
    for names in named.values():
        for name in [name for name in names if name.startswith("gpzoo[")]:
            names.remove(name)
            names |= set().union(*(named[extra] for extra in name[len("gpzoo[") : -1].split(",")))
    return named


def distributions(*folders: str) -> set[str]:
    """The distributions that the files of these folders import, inside functions too, but for gpzoo's."""
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert paths
    names = {name.split(".")[0] for path in paths for name in imported(path, "") if name}
    known = {"mlflow": ["mlflow-skinny"]} | packages_distributions()
    names -= {"gpzoo", "tests", *sys.stdlib_module_names}
    return {known.get(name, [name])[0].lower() for name in names} - BROUGHT.keys()


def test_what_is_imported_is_declared_and_what_is_declared_is_imported():
    named = declared()
    named.pop("cuda")  # JAX itself, for GPUs
    assert len(named[""] - {"jax", "jaxlib", "numpy", "scipy"}) <= 10 and {*BROUGHT.values()} <= named[""]
    core, papers = distributions("gpzoo", "inference", "models"), distributions("reproductions")
    tests = distributions("tests")
    used = [named[extra] for extra in ("", "plots", "parquet", "flax", "sklearn", "botorch", "trackers")]
    assert core <= set().union(*used)
    assert papers <= named[""] | named["reproductions"] | named["cluster"]
    assert tests <= named[""] | named["dev"] | named["botorch"]
    assert named[""] <= core | UNSEEN.keys()
    assert named["reproductions"] <= core | papers | UNSEEN.keys()
    assert named["dev"] <= core | papers | tests | UNSEEN.keys()


@pytest.mark.slow
def test_nothing_at_import_needs_posix():
    """Every module is imported where POSIX's own modules and calls are not there, as on Windows."""
    code = f"""
import importlib, os, signal, sys
import jax, matplotlib, numpyro.infer, optax, pandas, sklearn.cluster, xarray  # others' imports are theirs
for name in ("fcntl", "grp", "posix", "pwd", "resource", "termios"):
    sys.modules[name] = None
for module, name in ((os, "getuid"), (os, "fork"), (os, "kill"), (signal, "SIGKILL"), (signal, "SIGHUP")):
    delattr(module, name)
for name in {modules()!r}:
    if not name.endswith("__main__"):
        importlib.import_module(name)
print("all")
"""
    assert run(sys.executable, "-c", code, MPLBACKEND="Agg") == "all\n"


def test_every_planted_defect_has_its_place():
    """``make planted``, which takes minutes, would pass over a defect whose text has moved."""
    defects = tomllib.loads((ROOT / "tests/robustness/planted.toml").read_text(encoding="utf-8"))["defect"]
    places = {each["kind"]: (ROOT / each["file"]).read_text(encoding="utf-8").count(each["old"]) for each in defects}
    assert set(places.values()) == {1}, places
