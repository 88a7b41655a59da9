r"""Which answer a text gives, and whether it is right where that needs no algebra.

The rule of place is fixed before anyone looks at the gold answer: else a policy learns to write
lists of answers. Of the text after the thinking it is the last \boxed{...}; else the last declared
answer ("the answer is x", <answer>x</answer>, a last line "#### x"); else what alone is bold in the
last sentence; else its last number or, where the gold answer is no number, its last stretch without
words. Other boxes or declared answers must be right, too. A gold number wants a plain number: these
are compared here, as fractions; words, times and dates as they are; the rest by Math-Verify."""
import calendar
import functools
import re
import tomllib
from fractions import Fraction
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

LONGEST_ANSWER = 400  # the longest gold answer in MATH has about 160; longer ones are wrong
MOST_ANSWERS = 20  # in different words; a text with more of them is a list
LONGEST_TEXT = 10_000  # of what follows the thinking its end is read, within .1 s

WORDS = tomllib.loads(Path(__file__).with_name("words.toml").read_text("utf-8"))
RE = SimpleNamespace()  # RE.declared: the pattern "declared" of that file, with the parts it names
filled = functools.partial(  # a regular expression with the parts that it names
    re.sub, "|".join(WORDS["parts"]), lambda name: getattr(RE, name[0]).pattern)
for key, text in (WORDS["parts"] | WORDS["patterns"]).items():
    setattr(RE, key, re.compile(filled("".join(text)), re.I | re.M))
NUMBERS = dict(row.rsplit(" ", 1) for row in WORDS["numbers"].split(", "))
NUMBERS |= {f"{ten} {one}": str(int(value) + i) for ten, value in NUMBERS.items()
            if ten.endswith("ty") for i, one in enumerate([*NUMBERS][1:10], 1)}  # forty two
UNITS = {name + end: (kind, names.split()[0]) for kind, row in WORDS["units"].items()
         for names in row.split(",") for name in names.split() for end in ("", "s")}

# A box closes; in it braces up to eight deep: "\boxed{" 7,000 times must not cost 7,000 scans.
INSIDE = functools.reduce(lambda inside, _: rf"(?:[^{{}}\\]|\\.|\{{{inside}\}})*+", range(8), "")
BOX = re.compile(rf"\\(?:boxed|fbox|framebox)\s*\{{({INSIDE})\}}", re.S)

ROWS = [row.split("\t") for row in Path(__file__).with_name("spellings.tsv").read_text(
    "utf-8").split("\n") if row and not row.startswith("#")]  # pattern, replacement, example, ...
SIGNS = str.maketrans({row[0]: row[1] for row in ROWS if len(row[0]) == 1})
SPELLINGS = [(re.compile(filled(row[0])), row[1]) for row in ROWS if len(row[0]) > 1]
SPELLINGS.append((  # 0.1\overline{6} = 15/90
    re.compile(r"([0-9]*)\.([0-9]*)\\(?:overline|bar|dot)\s*\{?([0-9]+)\}?"), lambda m: (
        rf"\frac{{{int(m[1] + m[2] + m[3]) - int(m[1] + m[2] or 0)}}}"
        rf"{{{10 ** len(m[2]) * (10 ** len(m[3]) - 1)}}}")))
SPELLINGS.append((re.compile(r"(?<!\S)([12]\d{3})-(0[1-9]|1[0-2])-([0-3]\d)(?![-\d])"), lambda m: (
    f"{calendar.month_name[int(m[2])]} {int(m[3])}, {m[1]}")))  # 2023-10-12


def by_choice(text, gold, question):
    """What `judged` returns, where the question shows the gold answer as the letter or the value of
    a choice, and the text gives the other one: "C" for 9, 9 for "C". Else None."""
    choices = RE.choices.findall(RE.gap.sub(" ", RE.text.sub(r"\1", question)))
    for pair in choices:
        for one, other in (pair, pair[::-1]):
            if clean(one) in (clean(gold), RE.text.sub(r"\1", clean(gold))):
                parts, right = judged(text, other)
                part = RE.text.sub(r"\1", parts[0]) if parts else ""
                both = RE.lettered.fullmatch(part)
                own = {clean(x) for a, x in choices if a == pair[0]}
                rest = clean(re.sub(r"^\W*?[A-J](?:\\ |[).:,\s])+", "", part))
                if both and both[1] != pair[0] or rest in {clean(x) for _, x in choices} - own:
                    return parts, [False]  # (D) 9, where C is 9, or (C) 8, where D is 8
                found = judged(rf"\boxed{{{both[2]}}}", pair[1], question) if both else (
                    parts, [{*right} == {True} or parts == [clean(other)]])  # the latter: a formula
                if both and one == pair[1] or found[1] == [True] and (
                        both or word(part) == pair[0] or not RE.choice.fullmatch(part)):
                    return found


def judged(text, gold, question=""):
    """(the answers of a text, cleaned, and of each whether it is right; None: ask Math-Verify)."""
    if found := by_choice(text, gold, question):
        return found
    marked = RE.aside.sub("", RE.decoration.sub("", RE.emphasis.sub(
        lambda found: ("\1{}\2" if found[2] else "{}").format(found[3].strip("*_`")),
        text[-LONGEST_TEXT:].replace("\0", " "))).strip())
    for asked, bound in ((RE.asked_least, RE.at_least), (RE.asked_most, RE.at_most)):
        marked = bound.sub("", marked) if asked.search(question) else marked
    if re.search("[0-9]", gold) and not re.search("boxed|answer", text[-LONGEST_TEXT:]):
        marked = marked[:-400] + RE.remark.sub(r"\1", marked[-400:])
    marked = marked[:-400] + RE.trailing.sub(r"\1", RE.roughly.sub("", marked[-400:]))
    text = marked.replace("\1", "").replace("\2", "")
    text = RE.exclaimed.sub(r"\1.", RE.one_line.sub(lambda one: one[0].replace("\n", " "), text))
    text = RE.explained.sub("<answer>", RE.corrected.sub("", text)) if plain_number(gold) else text
    text = RE.tagged.sub(r"\\boxed{\1}", text)
    text = RE.field.sub(lambda x: r"\boxed{%s}" % x[1].strip('"').replace(r"\\", "\\"), text)
    several = re.search(r",|;.*\w$|\\pm|\bor\b|^\(a\).* \(b\)", gold) and not plain_number(gold)
    if several:  # of bullets at the end, and of boxes, one list
        text = RE.named_box.sub(r"\2\1", text) if RE.named_box.findall(text)[1:] else text
        text = RE.bullets.sub(lambda list_: RE.bullet.sub(", ", list_[0]).strip(", \n"), text)
    boxes, text = (pieces := BOX.split(text))[1::2], "\0".join(pieces[::2])
    if several:  # "\boxed{6} and \boxed{-6}"
        names, each = re.findall(r"(?:^|[,;] | (?=\())(\([a-z]\)|[a-z]{3,}) ", gold), iter(boxes)
        near = names and re.findall("(%s)[^\\w\0]{0,9}(?:is|are|was)?[^\\w\0]{0,9}\0" % "|".join(
            map(re.escape, names)), text.lower())
        order = near if sorted(near) == sorted(names) else names
        if len(boxes) == len(names) and all(map(str.count, text.lower().split("\0"), order)):
            pairs = sorted(zip(order, boxes), key=lambda pair: names.index(pair[0]))
            boxes = [", ".join(map(" ".join, pairs))]  # the quotient is \boxed{7}, ...
        else:
            boxes = [", ".join(islice(each, one.count("\0"))) for one in RE.boxes.findall(text)]
            if 1 < len(boxes) == gold.count(",") + 1 and not (
                    "," in "".join(boxes) or RE.no_list.search(text)):  # words between them
                boxes, question = [", ".join(boxes)], f"{question} in this order"
    found = [part for part in boxes if part.strip()]
    said = [RE.end_of_answer.split(part.lstrip(" \t\n*_:"), 1)[0]
            for part in RE.declared.split(text)[1:]]
    said = [RE.reason.split(part)[0] for part in said if "\0" not in part and part.strip(" *_$`")]
    moment = RE.moment.search(clean(gold)) and not re.search("ratio|odds|scale", question)
    number = not (moment or "=" in gold) and plain_number(gold, bool(RE.ratio.fullmatch(gold)))
    ratio = number and (":" in gold or number[0].denominator > 1)
    wanted = "" if number else word(gold)
    said = [part for part in said if not found or not RE.prose.search(part)]
    if number and len(said) <= MOST_ANSWERS:  # of a sentence the last number, as of a last one
        said = [each for part in said for each in (
            len(part) <= LONGEST_ANSWER and RE.prose.search(part) and not plain_number(part, ratio)
            and undeclared(part, part, question, number, ratio)[0] or [part])]
    found += said
    listed = not (number or moment or RE.choice.fullmatch(wanted))  # "x = 3 or x = 5" is one list
    reading = RE.yes_no if wanted in ("yes", "no") else RE.choice if not listed else RE.said
    beside = found + [f"0 {part}" for part in RE.beside_box.findall(text)]
    nothing = [one[0] for one in RE.no_answer.finditer(text.rpartition("\n")[2][-LONGEST_ANSWER:])
               if one[0].lower() not in question.lower()]  # "the total reward is 50" may be asked
    if not found and not nothing:
        reading = (wanted.isalpha() or moment and ":" not in gold) and reading
        found, beside = undeclared(text, marked, question, number, ratio, reading, "=" in gold)
    if listed:
        found = [said[said.lastindex] if wanted.isalpha() and (
            said := reading.fullmatch(RE.text.sub(r"\1", part))) and word(part) != wanted
            else not RE.denied.match(part) and ", ".join(
                RE.formula.findall(part[: LONGEST_ANSWER + 100])) or part for part in found]
    found = [each for part in found for each in (RE.either.split(part) if number else [part])]
    found = list(dict.fromkeys(found))
    if len(found) > MOST_ANSWERS or RE.not_boxed.search(text) or RE.supposed.search(marked) or any(
            other_unit(part[:LONGEST_ANSWER], gold, question) for part in {*beside}):
        return [], [False]
    while any(map(BOX.search, found)):  # a box in a box
        found = [BOX.sub(r" \1 ", part) for part in found]
    parts = found if number else list(map(clean, found))
    return parts, [
        False if len(part) > LONGEST_ANSWER or RE.unfinished.search(raw[:LONGEST_ANSWER])
        or RE.huge.search(part) and not RE.huge.search(gold)
        or number and RE.other_form.search(f"{question}\0{clean(part).rpartition('=')[2]}")
        and not RE.other_form.search(f"{question}\0{clean(gold)}")
        else same_number(part, number, question, ratio) if number
        else same_moment(part, clean(gold), question) if moment else same_text(part, gold, question)
        for part, raw in zip(parts, found)]


def formulas_of(question):
    """The formulas that a question shows, as LaTeX or, of numbers, as plain text."""
    for words, formula in WORDS["asked"].items():
        question = re.sub(words, formula, question)
    question = RE.to_sort.sub(" ", question)
    found, rest = RE.formula.findall(question), RE.formula.sub(" $ ", question)
    found += [part for part in RE.piece.findall(rest) if RE.signed.search(part)]
    return tuple(part for part in found if not RE.no_formula.search(part))


def undeclared(text, marked, question, number, ratio, reading=False, whole=False):
    """([an answer], [it and its unit]): what alone is bold in the last sentence, else the last
    number with the words around it or, where no number is asked for, `last_stretch`; or []."""
    line = text.rpartition("\n")[2][-LONGEST_ANSWER:]
    sentence = RE.sentence.split(marked[-LONGEST_ANSWER:])[-1]
    bold = "\1" in sentence and not RE.hedged.search(sentence) and RE.bold.fullmatch(sentence)
    if not number:
        said = RE.conclusion.sub("", RE.sentence.split(line)[-1])
        part = bold[2] if bold and re.fullmatch(r"(?: [a-z]+){0,4}\W*", bold[3]) and not (
            not RE.LEAD.fullmatch(bold[1]) and reading.fullmatch(line) if reading
            else RE.prose.search(bold[2])) else (  # Bob of "So **Bob** is the oldest"
            line if reading is RE.yes_no and RE.opens.match(line) else said if reading or
            RE.in_words.search(said) or clean(said) == r"\emptyset" else last_stretch(line, whole))
        return ([part], [part]) if part else ([], [])
    if bold and re.search("[0-9]", bold[2]):  # and what follows, to the next number
        text = RE.exclaimed.sub(r"\1.", bold[1] + bold[2] + re.match("[^0-9(]*", bold[3])[0])
    above, _, alone = text[-LONGEST_ANSWER // 2 :].rpartition("\n")  # a number in the last line
    last, before = map(plain_number, (alone, above.rstrip().rpartition("\n")[2]))
    text = alone if last and (before or last)[0] == last[0] else f"{above}\n{alone}"
    while (again := RE.again.search(text)) and re.search(rf"(?<![0-9.]){again[1]}\b", question):
        text = text[: again.start()]  # "15 primes below 50", where 50 is the question's
    found = not RE.both.search(text) and RE.last_number.search(bare(text, ratio))
    # "|" stands for the number before it: a word has to follow, or the two are a list.
    part = found and ("|" if found.start() > 0 else "") + found[0]
    ends = bold or not RE.hedged.search(sentence) and RE.ends.fullmatch(sentence)
    said = part and all(map(plain_number, RE.either.split(part))) and part or ends and (
        RE.constant.fullmatch(clean(ends[2]))) and ends[2]
    return [said] if said else [], re.findall(r"[$€£]?[0-9][0-9.,]*[^0-9]*\Z", text)


def last_stretch(line, whole):
    """The last stretch without words of a line's last sentence that has one: "x = 2, x = 3" of "so
    the roots are x = 2 and x = 3." Of a chain of equations its last side, if not `whole`."""
    formulas = dict(zip(map(chr, range(0xE000, 0xF000)), RE.formula.findall(line)))
    line = RE.formula.sub(lambda _, signs=iter(formulas): next(signs), line)
    for sentence in reversed(RE.sentence.split(line)):
        sentence = RE.conclusion.sub("", sentence)
        if RE.taken_back.search(sentence) or RE.unfinished.search(sentence):
            return ""
        parts = [one for one in RE.stop.split(sentence) if re.search("[\\w\ue000-\uefff∅∞]", one)]
        if parts:
            part = re.sub("[\ue000-\uefff]", lambda one: formulas.get(one[0], ""), parts[-1])
            part = RE.joint.sub(",", part).strip(" ,;:.")
            sides = part.rpartition("=")
            return part if whole or re.search("[,;]", sides[0]) else sides[2]
    return ""


@functools.lru_cache(maxsize=1024)  # gold answers come again: a quarter of the time
def clean(part):
    """An answer as Math-Verify reads it, without its delimiters and closing period."""
    part = part.strip().translate(SIGNS)
    if len(part) <= LONGEST_ANSWER:
        for pattern, replacement in SPELLINGS:
            part = pattern.sub(replacement, part)
    left, _, right = part.partition(r"\approx")  # 22/7, about 3.14; x, about 11
    part = left if re.search("[0-9]", left) else right or left
    part = part.strip("*_` ").strip(" ,;:").rstrip(" .\\")  # .5 keeps its point
    part = NUMBERS.get(RE.text.sub(r"\1", part).lower().replace("-", " "), part)
    names = list(map(RE.named.fullmatch, re.split(r",|\\text\s*\{\s*and\s*\}|\band\b", part)))
    if all(names) and len({found["name"] for found in names}) == len(names) > 1:
        return f"({','.join(one['value'] for one in sorted(names, key=lambda one: one['name']))})"
    return part[1:-1] if re.fullmatch(rf"\{{{RE.ONE.pattern}\}}", part) else part  # {7}


def bare(part, ratio=False):
    r"""A clean part without LaTeX around its number, "1 1/2 cm" of 1\frac12\text{ cm}^2."""
    part = RE.cjk.sub(
        lambda found: " not hundred " if RE.cjk_changed.search(found[0]) else " word ", part)
    part = RE.text.sub(r" \1 ", RE.decimal.sub(".", clean(part)))
    part = RE.fraction.sub(r" \1\5\3\7\2\4/\6\8 ", part)
    part = re.sub(r"(?<=[A-Za-z])\s*\^\s*\{?-?[0-9]\}?|[()]", " ", part)
    part = re.sub(r"\s*(?:/|(?<=[A-Za-z])\s*\\cdot)\s*(?=[A-Za-z])", "/", part)  # mg / mL
    part = re.sub("(?<=[0-9]):(?=[0-9])", "/", part) if ratio else part
    return re.sub("- ?-|- (?=-)", "", part).replace("- ", "-").strip().rstrip(" .")


@functools.lru_cache(maxsize=4096)  # the samples of a prompt repeat
def plain_number(part, ratio=False):
    """(value, percent, unit, in lowest terms) of one plain number, perhaps with words; or None."""
    found = len(part) < 4000 and RE.plain.fullmatch(bare(part, ratio))  # Python's int ends at 4,300
    if not found or RE.changed.search(found[1]):
        return None
    _, sign, whole, top, bottom, power, share, unit = (x.replace(",", "") for x in found.groups(""))
    number = Fraction(top) / int(bottom or 1)
    lowest = not bottom or number.denominator == int(bottom)
    number = (number + int(whole or 0)) * Fraction(10) ** int(power or 0)
    return -number if sign == "-" else number, bool(share), unit.lower(), lowest


def same_number(part, gold, question="", ratio=False):
    """Whether a text is right, for a gold answer of plain_number; None: ask Math-Verify."""
    if not (found := plain_number(RE.remainder.sub(r"\1", RE.point.sub(r"\1.", part)), ratio)):
        return None if not gold[1] and RE.constant.fullmatch(
            RE.unit_at_end.sub("", clean(part))) else False
    (value, percent, unit, lowest), (gold_value, gold_percent, gold_unit, _) = found, gold
    side = not percent and (side := RE.first_side.match(part)) and plain_number(side[1])
    if side and abs(side[0] - value) * 100 > abs(value) * (side[0].denominator > 1):
        return False  # 6 = 5; but 1/3 = .333
    if unit and gold_unit and unit != gold_unit or not lowest and RE.lowest.search(question):
        return False
    if abs(value - gold_value) * 10**9 <= abs(gold_value) * (gold_value.denominator > 10**9):
        # 1/6 for .16666666667; .05% for .05, also as a probability, and 7% of apples
        if percent and not gold_percent and (question or abs(value) < 1) and not RE.percent.search(
                question if abs(value) > 1 else question.replace("probab", "")):
            return False
        if gold_percent and not percent and 0 < abs(value) < 1 and "probability" in question and (
                not re.search("(?i)[cz]ent|%|％|процент|百分", question + part)):
            return False  # .2 for .2%
        return None if "^" in part.rpartition("=")[2] and RE.tens.search(question) else True
    return percent != gold_percent and (  # 50% for 0.5; but 2500% for 25 is a slip
        value == 100 * gold_value and abs(value) <= 1000 if percent else 100 * value == gold_value)


@functools.lru_cache(maxsize=4096)
def unit_of(part):
    """[(kind, name), ...] of an answer's unit: "5 square feet" has "2" and ft. []: none known."""
    part = re.sub(r"(?<=\w) (?:in|on|for|at) (?:an?|the|one|each|all|total)\b.*", "", part)
    if degree := RE.degree.search(part):
        return [("angle", f"degree_{degree[1].lower()}".strip("_"))]
    end = RE.money.search(part) or RE.unit_at_end.search(clean(part))
    end = RE.beside_unit.sub("", end[0]) if end else ""
    words = re.findall(r"[a-z$€£]+|[2-9]", RE.text.sub(r" \1 ", end).lower())
    found = [UNITS.get(word) for word in words if word != "per"]
    return [] if None in found else sorted(found)


def other_unit(part, gold, question):
    """Whether an answer has another unit than the gold one or, if that has none, the question."""
    found, wanted = unit_of(part), unit_of(gold)
    found = found or [("share", "percent")] * ("%" in part and len(wanted) > 0)  # 42% for $42
    if wanted or not found:
        return found not in ([], wanted)
    question = RE.squared.sub(r"square \1", RE.cubed.sub(r"cubic \1", question.lower().strip()))
    asked = [re.split(" per |[ /]", phrase) for phrase in RE.asked_unit.findall(question)]
    asked = {tuple(sorted(map(UNITS.get, words))) for words in asked if UNITS.keys() >= {*words}}
    if len(asked) != 1:
        return False
    kinds = [[kind for kind, _ in one] for one in (found, *asked)]
    if kinds[0] == kinds[1] or kinds == [["money", "time"], ["money"]]:
        return any(one not in (two, two.partition("_")[0])
                   for (_, one), (_, two) in zip(found, *asked))
    rate = r"\b(?:per|each|every)\b" + "|area|volume|surface" * (len(kinds[1]) == 1)
    return not re.search(rate, RE.sentence.split(question)[-1]) and (
        "share" in kinds[1] or "length" in kinds[0] and kinds[1] in (
            ["length"], ["length", "square"], ["cubic", "length"]))


def same_moment(part, gold, question=""):
    """Whether a time or date is right, as it is written, 16:20 as 4:20 PM; of 12 hours as 4:20."""
    half = "am" if RE.clock.search(f"{question} {gold}\0{gold}") else ""
    found, wanted = (RE.date.sub(r"\2\3 \1", RE.no_date.sub("", RE.hour.sub(
        lambda t: f"{t[1]}:00" if t[1] else f"{int(t[2]) - 12}:{t[3]} pm" if RE.late.search(gold)
        else t[0], RE.text.sub(r" \1", one))).lower()) for one in (part, gold))
    if not (time := re.fullmatch(r"([0-9]+:[0-9]+) *([ap]m)?", wanted)):
        return found.split() == wanted.split()
    said = re.findall("([0-9]+:[0-9]+) *([ap]m)?", found)
    return len(said) == 1 and said[0] in (
        (time[1], half and time[2] or ""), (time[1], time[2] or half or said[0][1])
    ) and not re.search(r"[0-9=\\$]|\b(?:or|not?|and|but|except)\b", found.replace(time[1], "", 1))


def same_text(part, gold, question=""):
    """Whether a cleaned answer is right; None: ask Math-Verify, for which "der" is "red"."""
    several, letters = (re.sub(r"\band\b|[\s,;、和]|\\[{}]|\((?=[A-J]\))|(?<=\([A-J])\)", "",
                               RE.text.sub(r"\1", clean(one))) for one in (gold, part))
    if re.fullmatch("(?=..)A?B?C?D?E?F?G?H?I?J?", several) and re.fullmatch("[A-J]+", letters):
        return "".join(sorted(letters)) == several  # "B, D" and BD
    wanted = word(gold)
    if re.fullmatch("[A-J]|[0-9A-Z]+_[0-9]+", wanted) or re.fullmatch("[a-z'-]{2,}", wanted) and (
            r"\text" in clean(gold) or RE.words.fullmatch(clean(gold))):
        part = re.sub(r"\([a-j]\)(?!\w)", lambda one: one[0].upper(), part)
        part = re.sub(r"^\([A-J]\)\s+", "", part) if wanted[1:] else part  # "(B) surplus"
        return word(part) in (wanted, *re.findall("^([0-9]|[0-9A-Z]{2,})_", wanted))
    if RE.sorted.search(question) or clean(gold).count(":") > 1:  # the order counts
        found, right = ([(plain_number(one) or (one.strip(),))[0] for one in RE.item.split(side)]
                        for side in (part, clean(gold)))
        if found != right and set(found) == set(right):
            return False
    names, asked = RE.letters.findall(part.partition("=")[0]), RE.pair.findall(question)
    if (asked or gold[:1] == "\\") and clean(gold)[:1] == "(" and re.match(
            r"\\\{\s*[^\s(]", part) or any(
            one != two and sorted(one) == sorted(two) for one in names for two in asked):
        return False  # {1, 2} for (1, 2), or (b, a) = (1, 2), where (a, b) is asked
    sides = [part, clean(gold)] if ("=" in part) == ("=" in gold) else [
        side.rpartition("=")[2] for side in (part, clean(gold))]
    marks = list(map(RE.mark.findall, sides))  # f'(x), \bar{A}
    value = re.sub(r"_\s*\{[^{}]*\}", "", part).rpartition("=")[2]  # no "=" of a sum's bound
    return False if marks[0] != marks[1] or len(value) > 80 + 4 * len(gold) or (
        len(RE.comma.findall(part)) > 8 + 2 * gold.count(",")) or (  # a list of other things
        RE.unevaluated.search(value) and not RE.unevaluated.search(clean(gold))) or (
        RE.words.fullmatch(RE.text.sub(r"\1", part)) and re.search("[0-9]", gold)) or (
        RE.lowest.search(question) and "frac" in part and not re.search("frac|/|-", gold)) else None


def word(part):
    """"B" of "(B) 12 cm", "sunday" of "Sunday", 25_7 of 25_{7}."""
    text = RE.text.sub(r"\1", clean(part)).strip(" *`")
    if found := RE.choice.fullmatch(text):
        return found[1]
    if base := re.fullmatch(r"\(?(\w+)\)?\s*(?:_\s*[{(]*|\(?(?:in )?base )(\w+)\W*", text):
        return f"{base[1]}_{NUMBERS.get(base[2], base[2])}"
    if not re.search("[0-9_]", text) and len(text) > 1:
        text = re.sub("^(?:the|an?) ", "", text.lower())
    return re.sub(r"[{}\s]", "", text)
