"""Libraries of extras that are not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class MissingExtraError(ModuleNotFoundError):
    """A library of one of gpzoo's extras that is not installed; the message is one line and names the extra."""


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Say of imports that fail inside which extra to install.

    Args:
        extra: name of the extra that declares the library.
        what: takes the library, the subject of the message: ``"Reading Parquet files"``.

    Raises:
        MissingExtraError: in place of ``ModuleNotFoundError``.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "a library").partition(".")[0]
        raise MissingExtraError(
            f"{what} needs {library}, which is not installed: pip install 'gpzoo[{extra}]'.", name=error.name
        ) from error
