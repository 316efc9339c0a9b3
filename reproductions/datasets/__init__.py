"""The data sets of the reproductions: ``load`` reads, generates or downloads one, ``available`` lists them.

Files are looked for in the folder that the environment variable ``GPZOO_DATA`` names, then in the user's cache folder.
What is found is checked against a known checksum or count before it is used; what is not is downloaded from its public
home.
"""

from gpzoo.reproductions.datasets.catalogue import Entry, available, load
from gpzoo.reproductions.datasets.dataset import Dataset

__all__ = ["Dataset", "Entry", "available", "load"]
