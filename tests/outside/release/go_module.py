#!/usr/bin/env python3
"""Writes the module in clients/go as a proxy of Go has it: go_module.py MODULE VERSION FOLDER."""

import json
import os
import subprocess
import sys
import zipfile

module, version, folder = sys.argv[1:]
source = "clients/go"
files = subprocess.run(["git", "ls-files", "-z", source], check=True, capture_output=True, text=True).stdout.split("\0")
files = [file.removeprefix(f"{source}/") for file in files if os.path.exists(file)]
# Go refuses two names that differ only in case, and links.
if len({file.lower() for file in files}) != len(files):
    sys.exit(f"{source}: two names differ only in case")
links = [file for file in files if os.path.islink(os.path.join(source, file))]
if links:
    sys.exit(f"{source}: Go leaves out the links {links}")
for needed in ["go.mod", "README.md", "LICENSE-APACHE", "LICENSE-MIT"]:
    if needed not in files:
        sys.exit(f"{source} has no {needed}")

os.makedirs(f"{folder}/{module}/@v")
versions = f"{folder}/{module}/@v/{version}"
with zipfile.ZipFile(f"{versions}.zip", "w") as archive:
    for file in files:
        archive.write(os.path.join(source, file), f"{module}@{version}/{file}")
with open(f"{source}/go.mod") as go_mod, open(f"{versions}.mod", "w") as copy:
    copy.write(go_mod.read())
with open(f"{versions}.info", "w") as info:
    json.dump({"Version": version, "Time": "2026-01-01T00:00:00Z"}, info)
with open(f"{folder}/{module}/@v/list", "w") as known:
    known.write(f"{version}\n")
