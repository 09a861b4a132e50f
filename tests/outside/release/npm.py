#!/usr/bin/env python3
"""Checks that an npm package has each file that it exports: npm.py PACKAGE.JSON OUTPUT-OF-NPM-PACK."""

import json
import sys

with open(sys.argv[1]) as manifest, open(sys.argv[2]) as output:
    manifest = json.load(manifest)
    packed = json.load(output)
# npm 12 names the package first.
packed = packed[0] if isinstance(packed, list) else next(iter(packed.values()))
files = {file["path"] for file in packed["files"]}
needed = {"README.md", "LICENSE-APACHE", "LICENSE-MIT", "package.json"}
if any(file.startswith("dist/") for file in files):
    needed |= {path.removeprefix("./") for export in manifest["exports"].values() for path in export.values()}
missing = sorted(needed - files)
if missing:
    sys.exit(f"the npm package has no {', '.join(missing)}")
# npm refuses a package with provenance from another repository than this one.
if manifest["repository"]["url"] != "git+https://github.com/spillgate/spillgate.git":
    sys.exit(f"package.json: the repository is {manifest['repository']['url']}")
print(f"npm: {packed['filename']}, {len(files)} files")
