#!/usr/bin/env python3
"""Counts phrases that make comments and documents hard to read.

    scripts/plain_english.py [--list PHRASE] [PATH...]

Reads the comment lines of Rust files and the lines of Markdown files, without code and link targets. Prints a table with each phrase's count
per 1,000 lines and what to write instead, and exits 1 when one exceeds LIMIT (`make lint`). `--list` prints the places of one phrase; PATH
limits the count to files or folders.
"""

import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONTINUED = "... "
LIMIT = 3  # per 1,000 lines; ripgrep and tokio have at most 0.5
PHRASES = {  # name: (pattern of a line's text, what to write instead)
    "what": (r"^What\b(?!.*\?)", "a verb, or the noun that is defined"),
    "those": (r"^(Those|That of|The same)\b", "the noun itself"),
    "tell": (r"\b(told|tells?|telling)\b", "report, print, say"),
    "nobody": (r"\b(nobody|somebody|whoever)\b", "no caller, the user, who"),
    "so many": (r"\bso (many|much|long|often)\b", "the number or the condition"),
    "way": (r"\bways?\b", "path, link, route, method"),
    "goes on": (r"\bgo(es)? on\b", "continue"),
    "behind": (r"\bbehind\b", "after"),
    "dear": (r"\bdear(er|est)?\b", "expensive"),
    "anew": (r"\banew\b", "again, new"),
    "heard": (r"\b(heard|hears?)\b", "received, read"),
    "mend": (r"\bmend(s|ed|ing)?\b", "fix"),
}


def files(paths):
    listed = subprocess.run(["git", "ls-files", "*.rs", "*.md", "--", *paths], cwd=ROOT, capture_output=True, text=True, check=True)
    chosen = [pathlib.Path(name) for name in listed.stdout.splitlines()]
    if not paths:
        return chosen
    return [path for path in chosen if any(path.is_relative_to(given) for given in paths)]


def lines(path):
    """(line number, text) of each comment line or line of prose; a line that continues a sentence starts with CONTINUED."""
    text = (ROOT / path).read_text(errors="replace").splitlines()
    in_block, before, last = False, "", 0
    for number, line in enumerate(text, 1):
        if path.suffix == ".rs":
            found = re.match(r"\s*//[/!]?\s?(.*)", line)
            raw = found.group(1).strip() if found else ""
        else:
            raw = line.strip()
        if raw.startswith("```"):
            in_block = not in_block
        elif path.suffix == ".rs" and not raw:
            in_block = in_block and found is not None
        elif not in_block and raw:
            is_item = re.match(r"[#>*|-]|\d+\.", raw) is not None
            continues = raw.startswith("|") or last == number - 1 and not is_item and not re.search(r"[.:!?|]$", before)
            prose = re.sub(r"`[^`]*`|\]\([^)]*\)", "`", raw.lstrip("#|-*> "))
            yield number, (CONTINUED if continues else "") + prose
            before, last = raw, number


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", choices=PHRASES, metavar="PHRASE", help=f"print the places of one: {', '.join(PHRASES)}")
    parser.add_argument("paths", nargs="*", metavar="PATH")
    arguments = parser.parse_args()
    worst = 0
    for kind, suffix in (("comments", ".rs"), ("documents", ".md")):
        counted = [(path, number, text) for path in files(arguments.paths) if path.suffix == suffix for number, text in lines(path)]
        if arguments.list:
            pattern = re.compile(PHRASES[arguments.list][0], re.IGNORECASE)
            for path, number, text in counted:
                if pattern.search(text):
                    print(f"{path}:{number}: {text}")
            continue
        if not counted:
            continue
        print(f"{len(counted)} lines of {kind}; per 1,000:")
        for name, (pattern, instead) in PHRASES.items():
            count = sum(len(re.findall(pattern, text, re.IGNORECASE)) for _, _, text in counted)
            rate = 1000 * count / len(counted)
            worst = max(worst, rate)
            print(f"  {rate:5.1f}{' !' if rate > LIMIT else '  '} {name:10} ({count}) instead: {instead}")
    return 1 if worst > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
