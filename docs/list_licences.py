"""Print the licences of the packages that Recombine needs, and of what they need, as a page.

python docs/list_licences.py > docs/licences.md
"""

from __future__ import annotations

from importlib import metadata

from packaging.requirements import Requirement


def read_licence(distribution: metadata.Distribution) -> str:
    """The licence as the package states it: an expression, a classifier, or the first line of the field."""
    about = distribution.metadata
    if expression := about.get("License-Expression"):
        return str(expression)
    named = [line.split(" :: ")[-1] for line in about.get_all("Classifier") or [] if line.startswith("License ::")]
    if named:
        return ", ".join(named)
    return (about.get("License") or "not stated").strip().splitlines()[0][:60]


def main() -> None:
    todo, found = ["recombine"], {}
    while todo:
        name = todo.pop()
        if name.lower().replace("-", "_") in found:
            continue
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        found[name.lower().replace("-", "_")] = (
            distribution.metadata["Name"],
            distribution.version,
            read_licence(distribution),
        )
        wanted = [Requirement(line) for line in distribution.requires or []]
        todo += [each.name for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})]
    print(
        "# Licences\n\nRecombine is under the Apache License 2.0. It needs the packages below, directly or through others"
    )
    print("(`make licences`; versions as tested). Their licences are as they state them.\n")
    print("| package | version | licence |\n| --- | --- | --- |")
    for name, version, licence in sorted(list(found.values())[1:], key=lambda row: row[0].lower()):
        print(f"| {name} | {version} | {licence} |")


if __name__ == "__main__":
    main()
