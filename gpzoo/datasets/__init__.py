"""The data sets of the reproductions: ``load`` reads, generates or downloads one, ``available`` lists them.

Files are looked for in the folder that the environment variable ``GPZOO_DATA`` names, then in the user's cache folder.
What is found is checked against a known checksum or count before it is used; what is not is downloaded from its public
home.

Tables larger than the device or than memory (``ArrayTable``, ``ParquetTable``) are standardised in one pass with
``standardised`` and drawn from with ``Minibatches``.
"""

from gpzoo.datasets.catalogue import Entry, available, load
from gpzoo.datasets.dataset import Dataset
from gpzoo.datasets.files import DatasetError
from gpzoo.datasets.holdout import hold_out
from gpzoo.datasets.minibatches import Minibatches
from gpzoo.datasets.standardise import Moments, Standardised, moments, standardised
from gpzoo.datasets.tables import ArrayTable, ColumnGroup, ParquetTable, Table

__all__ = [
    "ArrayTable",
    "ColumnGroup",
    "Dataset",
    "DatasetError",
    "Entry",
    "Minibatches",
    "Moments",
    "ParquetTable",
    "Standardised",
    "Table",
    "available",
    "hold_out",
    "load",
    "moments",
    "standardised",
]
