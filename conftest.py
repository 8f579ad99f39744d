"""Keeps doctest collection away from the rooms' conftest files, which all have one module name, and from programs of
environments that have other packages.
"""

import os

collect_ignore_glob = ["tests/*/conftest.py", "tests/gateway/cookbook/write_play.py"]

# The tests start hundreds of processes, and compiling the package takes longer than all else about starting one: what
# Python keeps by default is kept even where the environment says otherwise.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Set before torch is loaded, for the processes that tests start too: what they compute is tiny, and two threads that
# meet after each operation take longer than one, above all where other work has the processors as well.
os.environ.setdefault("OMP_NUM_THREADS", "1")
