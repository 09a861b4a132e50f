#!/usr/bin/env python3
"""Checks the site that mdbook built: every page is there and in the navigation, every link has a target, nothing is fetched.

A page may show a file outside docs/: its whole text is then one `{{#include FILE}}`, and its links are relative to that file.
This program rewrites links, so that each leads to the page that shows its target, or to the repository if no page does. The
edit link of a page leads to the file that the page shows.

Usage: book.py DOCS BUILT
"""

import html.parser
import os
import pathlib
import re
import sys
import urllib.parse


class Page(html.parser.HTMLParser):
    """The title of a page, its anchors, its links, and the files that a browser loads with it."""

    def __init__(self, path):
        super().__init__()
        self.title, self.in_title = "", False
        self.anchors, self.links, self.loaded = set(), [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.in_title = tag == "title"
        if attributes.get("id"):
            self.anchors.add(attributes["id"])
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        elif attributes.get("src"):
            self.loaded.append(attributes["src"])
        elif tag == "link" and attributes.get("href"):
            self.loaded.append(attributes["href"])

    def handle_endtag(self, tag):
        self.in_title = False

    def handle_data(self, data):
        if self.in_title:
            self.title += data


def main(docs, built):
    docs, built = pathlib.Path(docs).resolve(), pathlib.Path(built).resolve()
    findings = []
    summary = (docs / "SUMMARY.md").read_text(encoding="utf-8")
    sources = [path for path in sorted(docs.rglob("*.md")) if path.name != "SUMMARY.md"]
    for source in sources:
        if f"({source.relative_to(docs)})" not in summary:
            findings.append(f"docs/SUMMARY.md: no line for {source.relative_to(docs)}")
    repository = of_workspace(docs, "repository")
    shown = {page_of(source, docs, built): shown_by(source) for source in sources}
    places = {file: page_of(source, docs, built) for source in sources for file in (source, shown_by(source))}
    for path, file in shown.items():
        if path.exists():
            rewrite(path, file, places, docs, repository)
    pages = {path: Page(path) for path in sorted(built.rglob("*.html")) if path.name not in ("404.html", "toc.html")}
    for path, page in pages.items():
        name = path.relative_to(built)
        if "{{#include" in path.read_text(encoding="utf-8"):
            findings.append(f"{name}: a file that it includes is not there")
        if not page.title.endswith(f"Spillgate {of_workspace(docs, 'version')}"):
            findings.append(f"{name}: the title {page.title!r} lacks the version of Cargo.toml")
        if path in shown and edit_link(repository, shown[path], docs) not in page.links:
            findings.append(f"{name}: no link to edit {shown[path]} in the repository that Cargo.toml names")
        for target in page.loaded:
            if "://" in target or target.startswith("//"):
                findings.append(f"{name}: loads {target} from elsewhere")
            elif not target.startswith("data:"):
                findings += lost(path, target, built, pages)
        for target in page.links:
            if not urllib.parse.urlsplit(target).scheme:
                findings += lost(path, target, built, pages)
    if len(pages) < len(sources):
        findings.append(f"{len(pages)} pages of {len(sources)}")
    if not list(built.glob("searchindex*.js")):
        findings.append("there is no search index")
    for finding in findings:
        print(finding, file=sys.stderr)
    print(f"the site: {len(pages)} pages, {sum(len(page.links) for page in pages.values())} links, {len(findings)} findings")
    return 1 if findings else 0


def of_workspace(docs, name):
    """Returns a value that Cargo.toml has for all crates of the workspace."""
    text = (docs.parent / "Cargo.toml").read_text(encoding="utf-8").split("[workspace.package]")[1]
    return re.search(rf'^{name} = "(.*)"$', text, re.MULTILINE)[1]


def page_of(source, docs, built):
    """Returns the page that mdbook makes of a file of docs/."""
    page = built / source.relative_to(docs)
    return page.with_name("index.html") if page.name == "README.md" else page.with_suffix(".html")


def shown_by(source):
    """Returns the file with the text of a page: the one that its source includes, or the source itself."""
    included = re.fullmatch(r"\{\{#include (\S+)\}\}", source.read_text(encoding="utf-8").strip())
    return (source.parent / included[1]).resolve() if included else source


def edit_link(repository, file, docs):
    return f"{repository}/edit/main/{os.path.relpath(file, docs.parent)}"


def rewrite(path, file, places, docs, repository):
    """Rewrites the links of a page to other pages and to files outside docs/, and its edit link."""

    def place(target):
        """Returns the link to a page, or to another file of the repository, or nothing if there is neither."""
        if target.suffix == ".html" and not target.exists():
            target = target.with_suffix(".md")
        if target in places:
            return os.path.relpath(places[target], path.parent)
        if target.is_relative_to(docs.parent) and not target.is_relative_to(docs) and target.exists():
            return f"{repository}/blob/main/{target.relative_to(docs.parent)}"
        return None

    def replaced(match):
        link, anchor = match[1], match[2] or ""
        if link.startswith(f"{repository}/blob/main/"):
            target = docs.parent / link.removeprefix(f"{repository}/blob/main/")
        elif urllib.parse.urlsplit(link).scheme:
            return match[0]
        else:
            target = (file.parent / urllib.parse.unquote(link)).resolve()
        to = place(target)
        return f'href="{to}{anchor}"' if to else match[0]

    # Links around the content, such as the one to the next page, are relative to the page and not to the file that it shows.
    before, main, rest = path.read_text(encoding="utf-8").partition("<main>")
    content, end, after = rest.partition("</main>")
    before = re.sub(rf'href="{re.escape(repository)}/edit/[^"]*"', f'href="{edit_link(repository, file, docs)}"', before)
    content = re.sub(r'href="([^"#]+)(#[^"]*)?"', replaced, content)
    path.write_text(before + main + content + end + after, encoding="utf-8")


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
