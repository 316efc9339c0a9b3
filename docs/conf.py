"""How the site is built: pages are executed, formulae become MathML, and nothing is fetched from anywhere."""

import os
import sys
import warnings
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "gpzoo"
copyright = "the gpzoo developers"
release = version = version_of("gpzoo")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "native_math",
    "notebooks",
    "public_names",
    "zoo",
]
exclude_patterns = ["_build", "_ext"]
nitpicky = False
suppress_warnings = ["mystnb.unknown_mime_type"]

# -- pages that run ----------------------------------------------------------------------------------------------------

os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
# What tqdm says of notebooks without widgets is of no use on a page.
os.environ.setdefault("PYTHONWARNINGS", "ignore:IProgress not found")
# ipykernel warns on every page that the interpreter of the page is reached over TCP.
_ipython = Path(__file__).resolve().parents[1] / "build" / "ipython"
(_ipython / "profile_default").mkdir(parents=True, exist_ok=True)
(_ipython / "profile_default" / "ipython_kernel_config.py").write_text('c.IPKernelApp.log_level = "ERROR"\n')
os.environ["IPYTHONDIR"] = str(_ipython)
with warnings.catch_warnings():
    # ArviZ 0.23 warns of its future at the first import of a day, which would stand on a page.
    warnings.simplefilter("ignore")
    import arviz  # noqa: F401
if _quick := os.environ.get("GPZOO_DOCS") == "quick":
    # Most of a short training's time is compilation: tests/conftest.py says of these flags what they leave out. With
    # level 0, the compiler gives one page a gradient that is not finite, which no other level and no plain call has.
    _flags = "--xla_backend_optimization_level=1"
    if version_of("jaxlib").startswith("0.10."):
        _flags += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    os.environ.setdefault("XLA_FLAGS", _flags)
    # IPython runs this file before a page.
    os.environ["PYTHONSTARTUP"] = str(Path(__file__).parent / "_ext" / "quick.py")
_data = Path(__file__).resolve().parents[2] / "shared" / "data"
if _data.is_dir():
    os.environ.setdefault("GPZOO_DATA", str(_data))

nb_execution_mode = "force"
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
myst_enable_extensions = ["dollarmath", "deflist", "colon_fence", "attrs_inline"]
myst_heading_anchors = 3

# -- reference ---------------------------------------------------------------------------------------------------------

autodoc_member_order = "bysource"
autodoc_typehints = "none"
# scikit-learn's own, whose docstrings point into its own pages.
autodoc_default_options = {"exclude-members": "set_predict_request, set_score_request"}
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_use_rtype = False
napoleon_use_ivar = True

# -- looks -------------------------------------------------------------------------------------------------------------

html_theme = "furo"
_said = "A quick build: outputs and pictures are of shortened trainings, numbers in the text are of whole ones."
html_theme_options = {"announcement": _said} if _quick else {}
html_title = f"gpzoo {release}"
html_static_path = ["_static"]
html_logo = html_favicon = "_static/logo.svg"
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
