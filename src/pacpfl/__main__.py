"""`python -m pacpfl` is `pacpfl`."""

from pacpfl.cli import main

if __name__ == "__main__":
    main()
