"""The entry point of the command line, which says what to install if click is missing."""

import sys

from gpzoo._extras import MissingExtraError


def main() -> None:
    """Run the ``gpzoo`` command."""
    try:
        from gpzoo.reproductions.cli import main as command
    except MissingExtraError as error:
        sys.exit(f"gpzoo: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    command()


if __name__ == "__main__":
    main()
