#!/usr/bin/env python3
"""Searches the site that mdbook built, as a browser does: the first three results of each search must have its pages.

It needs node, which runs the site's own search program on the site's own index.

Usage: search.py BUILT [WORDS...]
With WORDS, it prints the first results for them.
"""

import json
import pathlib
import subprocess
import sys

# What a reader types, and the pages of which each must be among the first three results.
SEARCHES = {
    "redis down": ["explain/outages", "how-to/troubleshoot"],
    "api key": ["how-to/api-keys-and-addresses"],
    "change a limit": ["how-to/change-a-limit"],
    "failover": ["how-to/sentinel"],
    "fail open": ["learn/behind-a-proxy"],
    "429": ["how-to/operate"],
    "nginx": ["how-to/nginx"],
    "block a network": ["how-to/operate"],
    "raise a limit": ["how-to/operate"],
    "tokens": ["how-to/tls-and-tokens", "how-to/llm-tokens"],
}

# The folders that the search leaves out: see docs/book.toml.
LEFT_OUT = ("internals/", "decisions/")

PROGRAM = """
const [program, index, searches] = process.argv.slice(1);
const elasticlunr = require(program);
global.window = { search: {} };
require(index);
const { doc_urls, search_options, ...search } = window.search;
const built = elasticlunr.Index.load(search.index);
const found = JSON.parse(searches).map(words => built.search(words, search_options).map(({ ref }) => doc_urls[ref]));
console.log(JSON.stringify({ found, all: doc_urls.filter((url, ref) => built.documentStore.hasDoc(ref)) }));
"""


def main(built, *words):
    built = pathlib.Path(built).resolve()
    (program,), (index,) = built.glob("elasticlunr*.js"), built.glob("searchindex*.js")
    searches = list(words or SEARCHES)
    node = ["node", "-e", PROGRAM, str(program), str(index), json.dumps(searches)]
    answer = json.loads(subprocess.run(node, check=True, stdout=subprocess.PIPE, text=True).stdout)
    findings = [f"the search must leave {url} out" for url in answer["all"] if url.startswith(LEFT_OUT)]
    for search, found in zip(searches, answer["found"]):
        if words:
            print(f"{search}: {', '.join(found[:6]) or 'nothing'}")
            continue
        first = [url.partition("#")[0].removesuffix(".html") for url in found[:3]]
        for page in SEARCHES[search]:
            if page not in first:
                findings.append(f"{search!r} does not find {page}, but {', '.join(found[:3]) or 'nothing'}")
    for finding in findings:
        print(finding, file=sys.stderr)
    print(f"the search: {len(searches)} searches, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
