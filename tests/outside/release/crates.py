#!/usr/bin/env python3
"""Checks what `cargo metadata --no-deps` says of the crates that are published, and prints the options that leave out the
others: crates.py VERSION."""

import json
import os
import sys

version = sys.argv[1]
packages = json.load(sys.stdin)["packages"]
published = {package["name"]: package for package in packages if package["publish"] is None}
wrong = []
for name, package in published.items():
    folder = os.path.dirname(package["manifest_path"])
    if package["version"] != version:
        wrong.append(f"{name} has the version {package['version']}, not {version}")
    # crates.io refuses a crate without the first two; its page and search use the others.
    for field in ["description", "license", "repository", "homepage", "readme", "keywords", "categories"]:
        if not package[field]:
            wrong.append(f"{name} has no {field}")
    if not os.path.exists(os.path.join(folder, package["readme"] or "none")):
        wrong.append(f"{name}: there is no {package['readme']}")
    if len(package["keywords"]) > 5:
        wrong.append(f"{name} has more than the 5 keywords that crates.io accepts")
    for dependency in package["dependencies"]:
        if not dependency.get("path"):
            continue
        # Cargo drops a development dependency that has a path but no version.
        if dependency["kind"] == "dev" and dependency["req"] == "*":
            continue
        if dependency["name"] not in published:
            wrong.append(f"{name} needs {dependency['name']}, which is not published")
        if dependency["req"] != f"={version}":
            wrong.append(f"{name} needs {dependency['name']} {dependency['req']}, expected ={version}")
if wrong:
    sys.exit("\n".join(wrong))
print(" ".join(f"--exclude {package['name']}" for package in packages if package["name"] not in published))
