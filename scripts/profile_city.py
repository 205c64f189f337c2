"""Adds to a profile of examples/aicity that its accuracies are of other vehicles: profile_city.py PROFILE OUT"""
import pathlib
import re
import sys

HEAD = """# yaml-language-server: $schema=../../spec/schemas/profile.schema.json
# Made by tidemill profile (scripts/profile_aicity.sh); `tidemill profile show` prints it as tables. Ratios and accuracies are those of
# other traffic before the same cameras (seed 7100).
"""


def main():
    text = pathlib.Path(sys.argv[1]).read_text()
    text = re.sub(r"(?m)\A(?:#.*\n)*", HEAD, text)
    said = "  scored_on: other traffic before the same cameras (seed 7100)\n"
    if "\n  scored_on:" in text:
        text = re.sub(r"\n  scored_on: .*\n", "\n" + said, text)
    else:
        text = re.sub(r"(\naccuracy:\n(?:  (?:metric|sink|samples): .*\n)+)", lambda found: found[1] + said, text)
    pathlib.Path(sys.argv[2]).write_text(text)


if __name__ == "__main__":
    main()
