#!/usr/bin/env python3
"""Checks the site that mdbook built: every page is there and in the navigation, every link has a target, nothing is fetched.

It turns a link to a file of the repository outside docs/ into one to the repository's page of that file.

Usage: book.py DOCS BUILT
"""

import html.parser
import pathlib
import re
import sys
import urllib.parse


REPOSITORY = "https://github.com/spillgate/spillgate/blob/main"


class Page(html.parser.HTMLParser):
    """The anchors of a page, its links, and the files that a browser loads with it."""

    def __init__(self, path):
        super().__init__()
        self.anchors, self.links, self.loaded = set(), [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if attributes.get("id"):
            self.anchors.add(attributes["id"])
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        elif attributes.get("src"):
            self.loaded.append(attributes["src"])
        elif tag == "link" and attributes.get("href"):
            self.loaded.append(attributes["href"])


def main(docs, built):
    docs, built = pathlib.Path(docs).resolve(), pathlib.Path(built).resolve()
    findings = []
    summary = (docs / "SUMMARY.md").read_text(encoding="utf-8")
    sources = sorted(path.relative_to(docs) for path in docs.rglob("*.md"))
    for source in sources:
        if str(source) != "SUMMARY.md" and f"({source})" not in summary:
            findings.append(f"docs/SUMMARY.md: no line for {source}")
    for path in built.rglob("*.html"):
        link_to_repository(path, docs, built)
    pages = {path: Page(path) for path in sorted(built.rglob("*.html")) if path.name not in ("404.html", "toc.html")}
    for path, page in pages.items():
        if "{{#include" in path.read_text(encoding="utf-8"):
            findings.append(f"{path.relative_to(built)}: a file that it includes is not there")
        for target in page.loaded:
            if "://" in target or target.startswith("//"):
                findings.append(f"{path.relative_to(built)}: loads {target} from elsewhere")
            elif not target.startswith("data:"):
                findings += lost(path, target, built, pages)
        for target in page.links:
            if not urllib.parse.urlsplit(target).scheme:
                findings += lost(path, target, built, pages)
    if len(pages) < len(sources) - 1:
        findings.append(f"{len(pages)} pages of {len(sources) - 1}")
    if not list(built.glob("searchindex*.js")):
        findings.append("there is no search index")
    for finding in findings:
        print(finding, file=sys.stderr)
    print(f"the site: {len(pages)} pages, {sum(len(page.links) for page in pages.values())} links, {len(findings)} lost")
    return 1 if findings else 0


def link_to_repository(path, docs, built):
    """Rewrites the links of a page that lead to files of the repository outside docs/."""
    folder = (docs / path.relative_to(built)).parent

    def replaced(match):
        target = (folder / urllib.parse.unquote(match[1])).resolve()
        if target.suffix == ".html" and not target.exists():
            target = target.with_suffix(".md")
        if target.is_relative_to(docs) or not target.is_relative_to(docs.parent) or not target.exists():
            return match[0]
        return f'href="{REPOSITORY}/{target.relative_to(docs.parent)}"'

    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub(r'href="(\.\./[^"#:]*)"', replaced, text), encoding="utf-8")


def lost(path, target, built, pages):
    """Returns why a link on a page has no target, if it has none."""
    parts = urllib.parse.urlsplit(target)
    place = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
    if place.is_dir():
        place = place / "index.html"
    where = f"{path.relative_to(built)}: {target}"
    if not place.is_relative_to(built):
        return [f"{where} leaves the site"]
    if not place.exists():
        return [f"{where} leads nowhere"]
    anchor = urllib.parse.unquote(parts.fragment)
    if anchor and place in pages and anchor not in pages[place].anchors:
        return [f"{where}: no such heading"]
    return []


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
