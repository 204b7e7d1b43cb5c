"""What `pip install farthing` puts on a disk, package by package, compiled .pyc files included.

python benchmarks/installed_size.py [--json]
"""

from __future__ import annotations

import argparse
import json
from importlib.metadata import Distribution, distribution
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement


def required_distributions(name: str) -> dict[str, Distribution]:
    """The distribution and everything it needs without extras, by name."""
    found: dict[str, Distribution] = {}
    pending = [name]
    while pending:
        dist = distribution(pending.pop())
        if dist.name in found:
            continue
        found[dist.name] = dist
        for text in dist.requires or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                pending.append(requirement.name)
    return found


def installed_files(dist: Distribution) -> set[Path]:
    """The distribution's files on disk; an editable farthing's live in its source tree as well."""
    files = {Path(str(dist.locate_file(file))) for file in dist.files or []}
    if dist.name == "farthing":
        spec = find_spec("farthing")
        assert spec is not None
        for folder in spec.submodule_search_locations or []:
            files |= set(Path(folder).rglob("*"))
    return {file.resolve() for file in files if file.is_file()}


def installed_sizes() -> dict[str, int]:
    """Bytes by distribution name, largest first."""
    sizes = {
        name: sum(file.stat().st_size for file in installed_files(dist))
        for name, dist in required_distributions("farthing").items()
    }
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def main() -> None:
    """Print the sizes as a table, or as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    sizes = installed_sizes()
    if arguments.json:
        print(json.dumps({"packages": sizes, "total": sum(sizes.values())}))
        return
    for name, size in [*sizes.items(), ("total", sum(sizes.values()))]:
        print(f"{name:24} {size / 1e6:8.2f} MB")


if __name__ == "__main__":
    main()
