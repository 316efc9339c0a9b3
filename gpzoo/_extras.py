"""Optional libraries, which are imported only when they are used and may not be installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class MissingExtraError(ModuleNotFoundError):
    """The error for a library that is not installed; the message is one line and says what to install."""


@contextmanager
def needs(extra: str | None, what: str) -> Iterator[None]:
    """Tell users what to install if an import inside this context fails.

    Args:
        extra: name of the extra that declares the library; ``None`` if gpzoo itself declares it.
        what: the feature that needs the library. The message begins with it: ``"Reading Parquet files"``.

    Raises:
        MissingExtraError: in place of ``ModuleNotFoundError``.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "a library").partition(".")[0]
        install = library if extra is None else f"'gpzoo[{extra}]'"
        raise MissingExtraError(
            f"{what} needs {library}, which is not installed: pip install {install}.", name=error.name
        ) from error
