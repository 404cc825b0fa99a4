#!/usr/bin/env python3
"""Fills the figures of the pages in from bench/results, and draws their pictures. bench/tables has a function for each.

  python3 bench/figures.py           rewrites what a page has between "<!-- figures: NAME -->" and "<!-- end -->", and
                                     docs/pictures
  python3 bench/figures.py --check   changes nothing. Fails if a page or a picture differs from the results, if the
                                     index of bench/results differs from the folder, or if nothing needs a result file
"""
import fnmatch
import glob
import os
import re
import sys

sys.dont_write_bytecode = True
from tables import data, families, partial, pictures, readme, speed  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGES = ["README.md", "docs/measuring.md"]
# What may quote a result file by its name, besides the tables: pages, and code whose constants were measured.
SOURCES = ["*.md", "docs/*.md", "cache/*.*", "runtime/**/*.*", "tests/cache/*.*"]
TABLES = vars(families) | vars(partial) | vars(speed) | vars(readme)
BLOCK = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
FILE = re.compile(r"[\w.*+-]+\.(?:jsonl?|txt)\b")


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def written(path):
    return os.path.exists(os.path.join(ROOT, path))


def filled(page):
    return BLOCK.sub(lambda found: found[1] + TABLES[found[2]]() + "\n" + found[3], page)


def faults_of_results():
    there = {name for name in os.listdir(os.path.join(ROOT, "bench/results")) if name != "README.md"}
    index = set(re.findall(r"^\| `([^`]+)` \|", read("bench/results/README.md"), re.MULTILINE))
    quoted = set(data.loaded)
    for path in (path for pattern in SOURCES for path in glob.glob(os.path.join(ROOT, pattern), recursive=True)):
        for name in FILE.findall(read(path)):
            quoted |= set(fnmatch.filter(there, name))
    return ([f"bench/results/README.md does not list {name}" for name in sorted(there - index)]
            + [f"bench/results/README.md lists {name}, which is not there" for name in sorted(index - there)]
            + [f"nothing quotes bench/results/{name}: remove it" for name in sorted(there - quoted)])


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.exit(__doc__)
    faults = []
    texts = {path: filled(read(path)) for path in PAGES} | pictures.pictures()
    drawn = {f"docs/pictures/{name}" for name in os.listdir(os.path.join(ROOT, "docs/pictures"))}
    faults += [f"{path} is not made by this script: remove it" for path in sorted(drawn - set(texts))]
    for path, new in texts.items():
        if written(path) and new == read(path):
            continue
        if check:
            faults.append(f"{path} differs from bench/results: run python3 bench/figures.py")
        else:
            with open(os.path.join(ROOT, path), "w", encoding="utf-8") as file:
                file.write(new)
            print(f"{path} rewritten")
    faults += faults_of_results()
    if faults:
        sys.exit("\n".join("figures.py: " + fault for fault in faults))


main()
