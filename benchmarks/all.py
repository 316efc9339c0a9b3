"""Every kind of work beside every peer: ratios of seconds and of memory in one table, kept in one file.

    python benchmarks/all.py [--only sparse "M 500" ...] [--pairs 5] [--output benchmarks/results/all.json]
    python benchmarks/all.py --gpflow-python PATH --gpytorch-python PATH --gpjax-python PATH --pymc-python PATH

``make bench`` runs it; interpreters are also taken from variables such as ``GPFLOW_PYTHON``. GPflux is in GPflow's
environment, tinygp and BlackJAX in GPJax's; a peer that is nowhere is not run. The benchmarks named in the table say
what each case is, and ``python benchmarks/<benchmark>.py`` runs one of them with the same options. Where the output
is there already, its ratios are printed beside the new ones; its rows that are not run again stay, each with its own
command and commit.
"""

from importlib import import_module

from peer import main

SCRIPTS = ("sparse", "classes", "deep", "deep_convolutional", "deep_kernel")
SCRIPTS += ("exact", "prediction", "marginal", "start", "members", "programs")

if __name__ == "__main__":
    main(__doc__, {name: import_module(name).CASES for name in SCRIPTS}, __file__)
