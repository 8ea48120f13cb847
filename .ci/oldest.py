"""Print the lower bounds of pyproject.toml as constraints, for ``make test-oldest``.

torch is left out: its version is that of ``.ci/constraints.txt``, since older builds would be gigabytes more to load.
"""

from pathlib import Path

import tomllib

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
for requirement in [*project["dependencies"], *project["optional-dependencies"]["bundle"]]:
    name, bound = requirement.split(">=")
    if name != "torch":
        print(f"{name}=={bound}")
