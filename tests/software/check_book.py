"""mdBook builds `docs/`: every page, and links that lead to pages and headings."""

import html
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
DOCS = os.path.join(ROOT, "docs")
MDBOOK = os.path.join(os.path.dirname(sys.executable), "mdbook")


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def main():
    with tempfile.TemporaryDirectory() as book:
        built = subprocess.run([MDBOOK, "build", DOCS, "--dest-dir", book], capture_output=True, text=True)
        log = built.stdout + built.stderr
        assert built.returncode == 0 and "WARN" not in log and "ERROR" not in log, log
        pages = re.findall(r"\]\(([^)]+)\.md\)", read(os.path.join(DOCS, "SUMMARY.md")))
        # The first page is the index.
        paths = [os.path.join(book, "index" if page == "README" else page) + ".html" for page in pages]
        texts = {path: read(path) for path in paths}
        links, faults = 0, []
        for path, text in texts.items():
            main_part = re.search(r"<main>(.*?)</main>", text, re.DOTALL).group(1)
            for link in map(html.unescape, re.findall(r'href="([^"]+)"', main_part)):
                if re.match(r"https?:", link):
                    continue
                links += 1
                file, _, anchor = link.partition("#")
                target = os.path.normpath(os.path.join(os.path.dirname(path), file)) if file else path
                is_there = os.path.exists(target)
                if not is_there or (anchor and f'id="{anchor}"' not in texts.get(target, "")):
                    faults.append(f"{os.path.relpath(path, book)}: {link}")
        assert len(pages) > 30 and links > 200, (len(pages), links)
        assert not faults, faults
    print(f"book: ok, {len(pages)} pages, {links} links")


main()
