"""`python -m thiefbench` is `thiefbench`, except that Python itself may import from the current folder as it starts."""

import os
import sys

if not sys.flags.safe_path and os.path.realpath(sys.path[0]) == os.path.realpath("."):
    del sys.path[0]  # the folder may be a stranger's, and a torch.py in it would be taken for torch

from thiefbench.cli import main

if __name__ == "__main__":
    main()
