"""`python -m thiefbench` is `thiefbench`."""

from thiefbench.cli import main

if __name__ == "__main__":
    main()
