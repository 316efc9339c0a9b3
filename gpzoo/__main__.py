"""The command ``gpzoo``, as ``python -m gpzoo``."""

from gpzoo.reproductions.__main__ import main

if __name__ == "__main__":
    main()
