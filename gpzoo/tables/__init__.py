"""Tables of rows that may be larger than memory: arrays and Parquet files, their standardisation and minibatches."""

from gpzoo.tables.arrays import ArrayTable
from gpzoo.tables.hold_out import hold_out
from gpzoo.tables.minibatches import Minibatches
from gpzoo.tables.parquet import ParquetTable
from gpzoo.tables.standardise import Moments, Standardised, moments, standardised
from gpzoo.tables.table import ColumnGroup, Table

__all__ = [
    "ArrayTable",
    "ColumnGroup",
    "Minibatches",
    "Moments",
    "ParquetTable",
    "Standardised",
    "Table",
    "hold_out",
    "moments",
    "standardised",
]
