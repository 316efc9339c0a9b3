"""What every test shares: float64, strict dtype promotion, one BLAS thread, seeded property tests, golden numbers."""

import ctypes
import gc
import hashlib
import os
import sys
import zlib
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("MPLBACKEND", "Agg")
# Of the processes that tests start; they leave nothing in the user's cache.
os.environ.setdefault("GPZOO_COMPILED", "off")
# Where each operation was written is for messages of the compiler, and costs a twentieth of all time.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
# Most of a test's time is compilation, which takes half as long without the compiler's last optimisations and again a
# quarter less in one piece. The programs that users have are tested with XLA_FLAGS=--xla_backend_optimization_level=3.
# Later versions end the process at flags that they do not know.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0"
    + (
        " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
        if version("jaxlib").startswith("0.10.")
        else ""
    ),
)

import hypothesis
import jax
import numpyro
import pytest
import threadpoolctl
from jaxtyping import install_import_hook

from tests.shapes import checked

#: Of the source tree.
ROOT = Path(__file__).resolve().parents[1]

# Before the first import of gpzoo. Other folders of it have no shapes in their annotations. `make test` leaves the
# checks to the slow tests, because they cost a tenth of all time.
CHECKED = ("linalg", "views", "kernels", "inducing", "processes", "posteriors", "likelihoods")
# What is checked has more calls above it, which a warning of load counts, and refuses unknown options in other words.
NOT_CHECKED = ("__init__", "saved", "trained", "guide", "options")
IN_INFERENCE = [path.relative_to(ROOT).with_suffix("") for path in (ROOT / "inference").rglob("*.py")]
if os.environ.get("GPZOO_SHAPES") != "off":
    install_import_hook(
        [f"gpzoo.{folder}" for folder in CHECKED]
        + [f"gpzoo.{'.'.join(path.parts)}" for path in IN_INFERENCE if path.stem not in NOT_CHECKED],
        f"{checked.__module__}.{checked.__name__}",
    )

numpyro.enable_x64()
jax.config.update("jax_numpy_dtype_promotion", "strict")

hypothesis.settings.register_profile("gpzoo", derandomize=True, deadline=None, max_examples=20)
hypothesis.settings.load_profile("gpzoo")

# A data folder beside the checkout serves where the user has named none.
_beside = ROOT.parent / "shared" / "data"
if _beside.is_dir():
    os.environ.setdefault("GPZOO_DATA", str(_beside))


def pytest_addoption(parser):
    """A share of the tests, for a machine that has no time for all."""
    parser.addoption("--share", help="the tests whose names hash to I modulo N: --share I/N")


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(config, items):
    """Marks as slow the cases that ``slow_but`` does not name, and leaves out tests of other shares."""
    if share := config.getoption("--share"):
        part, count = map(int, share.split("/"))
        own = [item for item in items if zlib.crc32(item.nodeid.encode()) % count == part % count]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(own)])
        items[:] = own
    for item in items:
        for mark in item.iter_markers("slow_but"):
            if any(item.callspec.params[name] not in quick for name, quick in mark.kwargs.items()):
                item.add_marker(pytest.mark.slow)


def pytest_sessionstart():
    """What an earlier run has compiled is not compiled again: that takes most of the time of most tests.

    Files compile already where they are imported.
    """
    from gpzoo._compiled import processor  # not before the import hook

    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        folder = ROOT / ".compiled" / hashlib.sha256(processor()).hexdigest()[:16]
        jax.config.update("jax_compilation_cache_dir", str(folder))
    # Thousands of programs of one operation take more time together than the long ones.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.fixture(autouse=True, scope="module")
def old_objects_left_alone():
    """What earlier files compiled stays; looking through gigabytes of it at every collection takes seconds."""
    gc.collect()
    gc.freeze()


#: Bytes of a process beyond which it forgets what earlier files compiled.
MUCH = 2 << 30


@pytest.fixture(autouse=True, scope="module")
def memory_given_back():
    """Thousands of compiled programs take gigabytes; the few that later files share are read from the disk again."""
    yield
    pages = Path("/proc/self/statm")
    if pages.exists() and int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") > MUCH:
        jax.clear_caches()
        gc.unfreeze()
        gc.collect()
        # Small pieces of memory go back to the system only when it is asked for.
        if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
            trim(0)


@pytest.fixture(autouse=True, scope="session")
def one_blas_thread():
    """Of NumPy's BLAS too, whose threads compete with the other workers."""
    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        yield


@pytest.fixture
def standard_promotion():
    """Relax dtype promotion for a test that runs somebody else's code which mixes dtypes."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture(autouse=True)
def closed_figures():
    """Figures that a test leaves open would pile up over the session."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


def pytest_terminal_summary(terminalreporter):
    """Of each way in: how many odd arguments were refused, and how many were what their plain arrays are."""
    passed = terminalreporter.stats.get("passed", [])
    rows = [value for report in passed for name, value in report.user_properties if name == "robustness"]
    if rows:
        rows += [("all", *(sum(counts) for counts in zip(*(row[1:] for row in rows), strict=True)))]
        terminalreporter.section("odd arguments: refused, and the same as plain arrays")
        for entry, refused, equal in rows:
            terminalreporter.write_line(f"{entry:30} {refused:6} {equal:6}")


@pytest.fixture(scope="session")
def golden():
    """``golden(name)``: the arrays (``in_*``, ``out_*``) and the description of one golden case."""
    from tests.programs import golden_case  # not before the import hook

    return golden_case
