"""The data sets of the reproductions: ``load`` reads, generates or downloads one, ``available`` lists them.

Files are looked for in the folder that the environment variable ``GPZOO_DATA`` names, then in the user's cache folder.
What is found is checked against a known checksum or count before it is used; what is not is downloaded from its public
home. ``dataset`` enters a loader into the list.
"""

from importlib import import_module
from pkgutil import iter_modules

from gpzoo.reproductions.datasets.in_memory import Dataset
from gpzoo.reproductions.datasets.registry import Entry, available, dataset, load

__all__ = ["Dataset", "Entry", "available", "dataset", "load"]

# A module enters what it loads when it is imported: a file beside this one is all that another data set takes.
for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
