"""Builds the documentation site: `just docs-site`, `just docs-serve`.

zensical makes pages of Markdown. Around it stands what it does not do:

1. Pages are copied to build/docs/pages. Remarks for the tests are left out, each page gets its title and a description, and a link to a
   file outside docs/ becomes a link to a page that shows the file: the site is whole by itself.
2. zensical builds build/docs/site from them, and a warning ends the build.
3. The script of the theme loads diagrams from a copy of mermaid that the site carries, in place of a public host.
4. llms.txt and llms-full.txt are written from the navigation, with the Markdown of each page beside its HTML.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
DOCS: Final = ROOT / "docs"
CONFIGURATION: Final = ROOT / "zensical.toml"
BUILD: Final = ROOT / "build" / "docs"
PAGES: Final = BUILD / "pages"
SITE: Final = BUILD / "site"

MERMAID: Final = "11.17.2"
MERMAID_SHA256: Final = "581ed7d74bd9048d0e3a91363927d72ef22942d7722546b27f7cc29e35390eb8"
MERMAID_REMOTE: Final = re.compile(r"https://unpkg\.com/mermaid@[\d.]+/dist/mermaid\.min\.js")
MERMAID_LOCAL: Final = "assets/javascripts/mermaid.min.js"

ROOT_PAGES: Final = {
    "README.md": "start.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "CODE_OF_CONDUCT.md": "project/code-of-conduct.md",
}
"""Files beside docs/ and their pages in the site."""
SOURCE_LANGUAGES: Final = {
    ".py": "python",
    ".mjs": "javascript",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".json": "json",
    ".toml": "toml",
    ".proto": "protobuf",
    ".html": "html",
    ".sh": "bash",
}
DESCRIPTION_CHARS_MAX: Final = 180
ASSETS: Final = {".png", ".svg", ".json", ".css"}

_FENCED: Final = re.compile(r"^([ ]*)```.*?^\1```[ ]*$", re.MULTILINE | re.DOTALL)
_REMARK: Final = re.compile(r"^[ ]*<!--.*?-->[ ]*\n?", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
_FILE: Final = re.compile(r"^([ ]*)<!-- file: (\S+) -->\n\1```(\w+)$", re.MULTILINE)
_HEADING: Final = re.compile(r"^# (.+)$", re.MULTILINE)


class Entry(NamedTuple):
    """A page of the navigation."""

    path: str
    """Below docs/."""
    sections: tuple[str, ...]


def configuration() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads(CONFIGURATION.read_text())["project"]
    return project


def entries() -> list[Entry]:
    """The pages of the navigation, in order."""
    return list(_entries(configuration()["nav"], ()))


def _entries(nav: list[Any], sections: tuple[str, ...]) -> Iterator[Entry]:
    for item in nav:
        if isinstance(item, str):
            yield Entry(item, sections)
        else:
            for name, below in item.items():
                if isinstance(below, str):
                    yield Entry(below, sections)
                else:
                    yield from _entries(below, (*sections, name))


# -- reading -------------------------------------------------------------------------------------------------------------


def title_of(text: str) -> str:
    found = _HEADING.search(_FENCED.sub("", text))
    assert found is not None, f"a page has no heading: {text[:80]}"
    return plain(found[1])


def description_of(text: str) -> str:
    """The first paragraph of a page, cut at the end of a sentence where one fits."""
    rest = _REMARK.sub("", _FENCED.sub("", text)).partition("\n# ")[2] or _REMARK.sub("", text)
    for part in re.split(r"\n\s*\n", rest)[1:]:
        line = plain(part)
        if line and not part.lstrip().startswith(("#", "|", "- ", "<", "!", "```")):
            return _cut(line)
    return ""


def _cut(line: str) -> str:
    if len(line) <= DESCRIPTION_CHARS_MAX:
        return line.rstrip(":")
    sentence = re.match(rf"(.{{20,{DESCRIPTION_CHARS_MAX - 1}}}\.)\s", line)
    return sentence[1] if sentence else line[: DESCRIPTION_CHARS_MAX - 1].rpartition(" ")[0] + "…"


def plain(text: str) -> str:
    """Without the marks of Markdown, in one line."""
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"\s+", " ", re.sub(r"[`*]", "", text)).strip()


def with_lists(prose: str) -> str:
    """With an empty line before a list that follows a paragraph, as zensical needs and others do not."""
    return re.sub(r"^((?![-*] |\d+\. |#|\s|\|).+)\n(?=([-*]|\d+\.) )", r"\1\n\n", prose, flags=re.MULTILINE)


def indented(text: str) -> str:
    """With four spaces before what belongs to an item of a list, where two or three do elsewhere."""

    def deeper(block: re.Match[str]) -> str:
        missing = 4 - len(block[1]) if block[1] else 0
        return "\n".join(" " * missing + line if line else line for line in block[0].split("\n"))

    prose = outside_fences(text, lambda part: re.sub(r"^ {2,3}(?=\S)", "    ", part, flags=re.MULTILINE))
    return _FENCED.sub(deeper, prose)


def outside_fences(text: str, change: Any) -> str:
    """`text` with `change` made to what is not in a fenced block."""
    out: list[str] = []
    end = 0
    for block in _FENCED.finditer(text):
        out += [change(text[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*out, change(text[end:])])


# -- pages ---------------------------------------------------------------------------------------------------------------


class Pages:
    """Copies of the pages, and of the files that they lead to."""

    def __init__(self) -> None:
        self._shown: set[Path] = set()

    def write(self) -> None:
        for page in sorted(DOCS.rglob("*.md")):
            self._page(page, PAGES / page.relative_to(DOCS))
        for name, to in ROOT_PAGES.items():
            if (ROOT / name).exists() and not (DOCS / to).exists():
                self._page(ROOT / name, PAGES / to)
        for file in sorted(DOCS.rglob("*")):
            if file.suffix in ASSETS and file.is_file() and "theme" not in file.relative_to(DOCS).parts:
                _copy(file, PAGES / file.relative_to(DOCS))
        for file in sorted((DOCS / "theme" / "assets").iterdir()):
            _copy(file, PAGES / "assets" / file.name)

    def _page(self, source: Path, to: Path) -> None:
        text = source.read_text(encoding="utf-8")
        named = _FILE.sub(r'\1```\3 title="\2"', text)
        body = outside_fences(
            indented(named), lambda prose: self._links(with_lists(_REMARK.sub("", prose)), source, to)
        )
        head = {"title": title_of(text), "description": description_of(text)}
        if to == PAGES / "index.md":
            head |= {"hide": ["navigation", "toc", "path"]}
        _write(to, f"{front_matter(head)}{body.lstrip()}")

    def _links(self, prose: str, source: Path, to: Path) -> str:
        def link(found: re.Match[str]) -> str:
            target = self._target(found[2], source, to)
            return f"[{found[1]}]({target})" if target else found[1]

        return _LINK.sub(link, prose)

    def _target(self, link: str, source: Path, to: Path) -> str:
        """Where a link of a page leads in the site; empty if it leads out of the repository."""
        if re.match(r"[a-z]+:|#", link):
            return link
        target, hash_, anchor = link.partition("#")
        file = (source.parent / target).resolve()
        if not file.is_relative_to(ROOT):
            return ""
        if file.is_relative_to(DOCS):
            goal = PAGES / file.relative_to(DOCS)
        elif str(file.relative_to(ROOT)) in ROOT_PAGES:
            goal = PAGES / ROOT_PAGES[str(file.relative_to(ROOT))]
        else:
            goal = self._source_page(file)
        return f"{os.path.relpath(goal, to.parent)}{hash_}{anchor}"

    def _source_page(self, file: Path) -> Path:
        """A page that shows a file, or the files of a folder."""
        goal = PAGES / "files" / f"{file.relative_to(ROOT)}.md"
        if file not in self._shown:
            self._shown.add(file)
            if file.suffix == ".md":
                self._page(file, goal)
            else:
                _write(goal, _listing(file))
        return goal


def _listing(place: Path) -> str:
    name = str(place.relative_to(ROOT))
    files = [place] if place.is_file() else sorted(f for f in place.rglob("*") if f.is_file())
    head = {"title": name, "description": f"{name} of the repository.", "search": {"exclude": True}}
    out = [
        f"{front_matter(head)}# {name}",
        "",
        "A file of the repository." if place.is_file() else "Files of the repository.",
        "",
    ]
    for file in files:
        if "__pycache__" in file.parts:
            continue
        if place.is_dir():
            out += [f"## {file.relative_to(place)}", ""]
        out += [
            f"````{SOURCE_LANGUAGES.get(file.suffix, 'text')}",
            file.read_text(encoding="utf-8").rstrip(),
            "````",
            "",
        ]
    return "\n".join(out)


def front_matter(values: dict[str, Any]) -> str:
    """YAML, of which JSON is a part."""
    return (
        "---\n"
        + "".join(f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items())
        + "---\n"
    )


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _copy(file: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, to)


# -- mermaid -------------------------------------------------------------------------------------------------------------


def mermaid() -> Path:
    """The script that draws diagrams, from the npm registry, once."""
    file = BUILD / f"mermaid-{MERMAID}.min.js"
    if not file.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["npm", "pack", "--silent", f"mermaid@{MERMAID}"], cwd=BUILD, check=True, stdout=subprocess.DEVNULL
        )
        archive = BUILD / f"mermaid-{MERMAID}.tgz"
        with tarfile.open(archive) as opened:
            content = opened.extractfile("package/dist/mermaid.min.js")
            assert content is not None
            data = content.read()
        archive.unlink()
        found = hashlib.sha256(data).hexdigest()
        if found != MERMAID_SHA256:
            raise SystemExit(f"mermaid {MERMAID} has the checksum {found}; tools/docs_site.py expects {MERMAID_SHA256}")
        file.write_bytes(data)
    return file


def keep_requests_at_home() -> None:
    """The theme's script takes mermaid from a public host. It is pointed to the site's own copy, relative to itself."""
    (bundle,) = (SITE / "assets" / "javascripts").glob("bundle.*.js")
    text, count = MERMAID_REMOTE.subn(f"/{MERMAID_LOCAL}", bundle.read_text(encoding="utf-8"))
    if count != 1:
        raise SystemExit(f"{bundle.name} names mermaid {count} times, not once: look at what this zensical does")
    own = 'new URL("mermaid.min.js",Array.from(document.scripts).find(s=>s.src.includes("/bundle.")).src).href'
    bundle.write_text(text.replace(f'"/{MERMAID_LOCAL}"', own), encoding="utf-8")
    _copy(mermaid(), SITE / MERMAID_LOCAL)


# -- llms.txt ------------------------------------------------------------------------------------------------------------


def contents(link: str = "{path}") -> Iterator[tuple[tuple[str, ...], str]]:
    """For each page of the navigation, its sections and a line that links to it."""
    for entry in entries():
        if entry.path in ("index.md", "contents.md"):
            continue
        text = (DOCS / entry.path).read_text(encoding="utf-8")
        yield entry.sections, f"- [{title_of(text)}]({link.format(path=entry.path)}): {description_of(text)}"


def write_llms() -> None:
    """https://llmstxt.org: a list of the pages, each as Markdown beside its HTML, and all of them in one file."""
    project = configuration()
    out = [f"# {project['site_name']}", "", f"> {project['site_description']}"]
    section = ""
    for sections, line in contents():
        if sections[0] != section:
            section = sections[0]
            out += ["", f"## {section}", ""]
        out.append(line)
    _write(SITE / "llms.txt", "\n".join([*out, ""]))
    for page in PAGES.rglob("*.md"):
        text = re.sub(r"\A---\n.*?\n---\n", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        _write(SITE / page.relative_to(PAGES), text)
    whole = [f"<!-- {e.path} -->\n{(SITE / e.path).read_text(encoding='utf-8').strip()}\n" for e in entries()]
    _write(SITE / "llms-full.txt", "\n\n".join(whole))


# -- building ------------------------------------------------------------------------------------------------------------


def build() -> None:
    for folder in (PAGES, SITE):
        shutil.rmtree(folder, ignore_errors=True)
    Pages().write()
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "-f", str(CONFIGURATION)],
        cwd=ROOT,
        env=os.environ | {"NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"zensical did not build the site\n{done.stdout}{done.stderr}")
    keep_requests_at_home()
    write_llms()


def serve(port: int) -> None:
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        sys.stdout.write(f"http://127.0.0.1:{port}/\n")
        server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the documentation site.")
    parser.add_argument("--serve", type=int, metavar="PORT", help="then serve it on 127.0.0.1")
    arguments = parser.parse_args()
    build()
    pages = len(list(SITE.rglob("*.html")))
    sys.stdout.write(f"{pages} pages in {SITE.relative_to(ROOT)}\n")
    if arguments.serve:
        serve(arguments.serve)


if __name__ == "__main__":
    main()
