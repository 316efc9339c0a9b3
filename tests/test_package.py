"""The package as users install it: its modules, its import names, and which way its imports go."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gpzoo

ROOT = Path(__file__).resolve().parents[1]
#: Each layer's folder and the layers it must not import.
LAYERS = {
    "gpzoo": ("gpzoo", ("gpzoo.inference", "gpzoo.models", "gpzoo.reproductions")),
    "gpzoo.inference": ("inference", ("gpzoo.models", "gpzoo.reproductions")),
    "gpzoo.models": ("models", ("gpzoo.reproductions",)),
    "gpzoo.reproductions": ("reproductions", ()),
}
HEAVY = ("arviz", "flax", "matplotlib", "pooch", "sklearn")


def modules() -> list[str]:
    """Every module of the source tree by its import name."""
    names = []
    for package, (folder, _) in LAYERS.items():
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            names.append(".".join((package, *(part for part in parts if part != "__init__"))))
    return sorted(names)


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
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(wheels), str(source))
    (wheel,) = wheels.glob("*.whl")
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", str(target), str(wheel))
    return target


def test_wheel_installs_one_import_name(installed):
    names = {path.name for path in installed.iterdir() if path.suffix != ".dist-info"}
    assert names - {"bin"} == {"gpzoo"}
    assert (installed / "bin" / "gpzoo").exists()


def test_every_module_imports_from_the_wheel(installed):
    code = f"""
import importlib, sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in getattr(finder, "__module__", "")]
for name in {modules()!r}:
    module = importlib.import_module(name)
    assert module.__file__.startswith({str(installed)!r}), module.__file__
print(importlib.import_module("gpzoo").__version__)
"""
    assert run(sys.executable, "-c", code, PYTHONPATH=str(installed)).strip() == gpzoo.__version__


def test_version_is_the_wheels(installed):
    assert [path.name for path in installed.glob("*.dist-info")] == [f"gpzoo-{gpzoo.__version__}.dist-info"]


def imported(path: Path, package: str) -> set[str]:
    """Absolute names of everything a file imports, inside functions too."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
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
    paths = list((ROOT / folder).rglob("*.py"))
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
    path.write_text("def f():\n    from ..models import sparse\n    from . import elbo\n    import gpzoo.views\n")
    found = imported(path, "gpzoo.inference")
    assert {"gpzoo.models.sparse", "gpzoo.inference.elbo", "gpzoo.views"} <= found


def test_heavy_libraries_are_not_imported_with_the_package():
    code = f"""
import sys
import gpzoo, gpzoo.inference, gpzoo.models
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    assert run(sys.executable, "-c", code).strip() == "[]"
