"""The data sets of the reproductions: ``load`` reads, generates or downloads one, ``available`` lists them.

Files are looked for in the folder that the environment variable ``GPZOO_DATA`` names, then in the user's cache folder.
What is found is checked against a known sha256 before it is used; what is not is downloaded from its public home.
"""

from gpzoo.datasets.catalogue import Entry, available, load
from gpzoo.datasets.dataset import Dataset
from gpzoo.datasets.files import DatasetError

__all__ = ["Dataset", "DatasetError", "Entry", "available", "load"]
