"""``python -m tuner``: the command ``tuner``."""

from tuner.cli.main import main

if __name__ == "__main__":
    main()
