"""Fails unless every requirement of thiefbench, its extras' too, is installed at its lower bound, last digits aside.

Another package may ask for more than a bound says; what is then installed, and tested, is no longer what it says.
"""

import sys
from importlib import metadata

from packaging.requirements import Requirement
from packaging.version import Version

EXTRAS = ("", *metadata.metadata("thiefbench").get_all("Provides-Extra", []))

above = []
for line in metadata.requires("thiefbench") or []:
    requirement = Requirement(line)
    bounds = [each.version for each in requirement.specifier if each.operator == ">="]
    if requirement.marker is not None and not any(requirement.marker.evaluate({"extra": extra}) for extra in EXTRAS):
        continue
    if bounds:
        installed, bound = Version(metadata.version(requirement.name)), Version(bounds[0])
        if (installed.major, installed.minor) != (bound.major, bound.minor):
            above.append(f"{requirement.name} {installed} in place of {bound}")
if above:
    sys.exit(f"these are not at the lower bounds of pyproject.toml; raise the bounds: {', '.join(above)}")
