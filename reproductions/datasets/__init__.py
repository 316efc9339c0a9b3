"""The data sets of the reproductions: ``load`` reads, generates or downloads one, and ``available`` lists them.

Files are searched for in the folder that the environment variable ``GPZOO_DATA`` names, then in the user's cache
folder. Missing files are downloaded from their public address. Files are checked against a known checksum or count
before use. ``dataset`` adds a loader to the list.
"""

from importlib import import_module
from pkgutil import iter_modules

from gpzoo.reproductions.datasets.in_memory import Dataset
from gpzoo.reproductions.datasets.registry import Entry, available, dataset, load

__all__ = ["Dataset", "Entry", "available", "dataset", "load"]

# The import of a module adds its data sets to the list. A new data set therefore needs only a new file here.
for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
