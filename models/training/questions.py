"""Questions about a scene: templates, wording and the true answer.

A question is a *program*: a template and up to two descriptions ("A" and "B"). A description
maps some of the groups shape, color, size and texture to a value; a group that is left out
matches everything.
"""

from scene import COLORS, GRID, GROUPS, MOST_OBJECTS, SHAPES, SIZES, TEXTURES

NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight"]
HOW_OFTEN = [0.14, 0.2, 0.22, 0.17, 0.1, 0.06, 0.05, 0.03, 0.03]
assert len(NUMBERS) == len(HOW_OFTEN) == 1 + MOST_OBJECTS
ANSWERS = COLORS + SHAPES + SIZES + TEXTURES + NUMBERS + ["yes", "no"]

# name -> (wording, how often)
TEMPLATES = {
    "color": ("what color is the {a}", 2.0),
    "shape": ("what shape is the {a}", 2.0),
    "size": ("what size is the {a}", 1.0),
    "texture": ("what pattern is on the {a}", 1.5),
    "count": ("how many {as} are there", 3.0),
    "exists": ("is there {an}", 1.5),
    "more": ("are there more {as} than {bs}", 1.0),
    "fewer": ("are there fewer {as} than {bs}", 1.0),
    "left": ("is the {a} left of the {b}", 1.0),
    "above": ("is the {a} above the {b}", 1.0),
    "same_color": ("do the {a} and the {b} have the same color", 1.0),
    "same_shape": ("do the {a} and the {b} have the same shape", 1.0),
    "equal": ("are there as many {as} as {bs}", 1.0),
    "top": ("is the {a} in the top half", 0.7),
}
TEMPLATE_NAMES = list(TEMPLATES)
WORD_ORDER = ["size", "texture", "color"]
MAX_CHARACTERS = 60


def phrase(description, plural=False):
    words = [description[group] for group in WORD_ORDER if group in description]
    noun = description.get("shape", "object")
    return " ".join(words + [noun + ("s" if plural else "")])


def wording(program):
    a, b = program["a"], program.get("b", {})
    single = phrase(a)
    article = "an " if single[0] in "aeiou" else "a "
    return TEMPLATES[program["template"]][0].format(
        **{"a": single, "as": phrase(a, True), "an": article + single,
           "b": phrase(b), "bs": phrase(b, True)}
    )


def matches(description, item):
    return all(item[group] == value for group, value in description.items())


def find(description, objects):
    return [item for item in objects if matches(description, item)]


def answer(program, objects):
    """The true answer, or None where the question does not make sense for the scene."""
    kind = program["template"]
    found = find(program["a"], objects)
    yes_no = lambda truth: "yes" if truth else "no"
    if kind in GROUPS:
        return found[0][kind] if len(found) == 1 else None
    if kind == "count":
        return NUMBERS[len(found)]
    if kind == "exists":
        return yes_no(found)
    if kind == "top":
        return yes_no(found[0]["cell"] // GRID < GRID // 2) if len(found) == 1 else None
    others = find(program["b"], objects)
    if kind == "more":
        return yes_no(len(found) > len(others))
    if kind == "fewer":
        return yes_no(len(found) < len(others))
    if kind == "equal":
        return yes_no(len(found) == len(others))
    if len(found) != 1 or len(others) != 1 or found[0] is others[0]:
        return None
    one, two = found[0], others[0]
    if kind.startswith("same_"):
        group = kind.removeprefix("same_")
        return yes_no(one[group] == two[group])
    axis = 0 if kind == "above" else 1
    first = divmod(one["cell"], GRID)[axis]
    second = divmod(two["cell"], GRID)[axis]
    return None if first == second else yes_no(first < second)


def _describe(rng, objects, forbidden=(), most=2):
    """One or two properties, usually of an object that is there."""
    source = objects[int(rng.integers(len(objects)))]
    if rng.random() < 0.25:
        source = {g: v[int(rng.integers(len(v)))] for g, v in GROUPS.items()}
    groups = [g for g in GROUPS if g not in forbidden]
    weight = {"shape": 3.0, "color": 2.0, "size": 1.0, "texture": 1.0}
    p = [weight[g] for g in groups]
    total = sum(p)
    count = int(rng.integers(1, most + 1))
    chosen = rng.choice(len(groups), size=count, replace=False, p=[x / total for x in p])
    return {groups[int(i)]: source[groups[int(i)]] for i in chosen}


def _candidate(rng, kind, objects):
    if kind in GROUPS:
        return {"template": kind, "a": _describe(rng, objects, [kind])}
    if kind == "top":
        return {"template": kind, "a": _describe(rng, objects)}
    if kind == "count":
        a = {} if rng.random() < 0.12 else _describe(rng, objects)
        return {"template": kind, "a": a}
    if kind == "exists":
        return {"template": kind, "a": _describe(rng, objects, most=3)}
    forbidden = [kind.removeprefix("same_")] if kind.startswith("same_") else []
    a = _describe(rng, objects, forbidden)
    b = _describe(rng, objects, forbidden)
    return None if a == b else {"template": kind, "a": a, "b": b}


def random_question(rng, objects):
    """(program, question, answer); the answers of each template are kept balanced."""
    names = list(TEMPLATES)
    weights = [TEMPLATES[name][1] for name in names]
    total = sum(weights)
    while True:
        kind = names[int(rng.choice(len(names), p=[w / total for w in weights]))]
        wanted = None
        if kind == "count":
            wanted = NUMBERS[int(rng.choice(len(NUMBERS), p=HOW_OFTEN))]
        elif kind not in GROUPS:
            wanted = "yes" if rng.random() < 0.5 else "no"
        for _ in range(40):
            program = _candidate(rng, kind, objects)
            if program is None:
                continue
            text, truth = wording(program), answer(program, objects)
            if truth is None or len(text) > MAX_CHARACTERS:
                continue
            if wanted is None or truth == wanted:
                return program, text, truth
