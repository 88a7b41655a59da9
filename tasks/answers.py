r"""Which answer a text gives, and whether it is right where that needs no algebra.

The rule of place is fixed before anyone looks at the gold answer. A policy that is paid for lists
of answers learns to write lists.
 1. Only the text after the last </think> counts, and nothing after a <think> that stays open.
 2. The answer is the last \boxed{...}; else the last declared answer ("Answer: x", "the answer is
    x", <answer>x</answer>, a last line "#### x"), to the end of its sentence or line; else the last
    number of the prose or, where the gold answer is no number, the formulas of the last line.
 3. If other boxes or declared answers disagree with it: "several answers". A sentence around or
    beside a box is only a sentence, and one that breaks off ("7 * is") declares nothing.

A gold number wants one plain number: these are compared here, as fractions, and words as they are.
The rest is for Math-Verify (verifier.py). Decisions where graders differ: 25_8 for 25_7 is wrong,
25 is right. 12 km for 12 cm is wrong, 12 and 12 centimeters are right. \boxed{3} and \boxed{5} for
"3, 5" are two answers, and wrong: one box, one list. 3.141593 for \pi is wrong, as .333333 for 1/3.
x \approx 11 for 11 is right, and 50% for 50 and for 0.5. A calculation, 12 + 34 - 5 for 41 or 5!
for 120, is the question once more, and wrong. "The answer is 7!" exclaims, \boxed{7!} does not.
"""

import functools
import re
from fractions import Fraction

LONGEST_ANSWER = 400  # the longest gold answer in MATH has about 160; longer ones are wrong

# Places. Every pattern runs once over a whole text, whatever a policy writes.
# A box closes; in it braces up to eight deep: "\boxed{" 7,000 times must not cost 7,000 scans.
INSIDE = functools.reduce(lambda inside, _: rf"(?:[^{{}}\\]|\\.|\{{{inside}\}})*+", range(8), "")
BOX = re.compile(rf"\\(?:boxed|fbox)\s*\{{({INSIDE})\}}", re.S)
ONE_LINE = re.compile(  # display formulas and tagged answers
    r"(?<!\\)\\\[(?:(?!(?<!\\)\\[\[\]]).)*\\\]|\$\$[^$]*\$\$|<answer>[^<]*</answer>", re.S | re.I)
DECLARED = re.compile(
    r"(?:\b(?:the|final|correct)\s+){0,3}\banswer\b[*_]*\s*(?:is\b|:|=)(?: option\b)?|<answer>"
    r"|^####(?=[^\n#]*\Z)|^[#*_ \t]*(?:final )?answer[*_ \t]*\n", re.I | re.M)
END_OF_ANSWER = re.compile(r"\.(?![0-9])|\n(?!\s{0,9}[-+.0-9])|</answer>", re.I)
EXCLAIMED = re.compile(r"(\bis \S{0,20}[0-9])!(?=[*_]*(?:\s*\Z|\s+[A-Z]))")
REASON = re.compile(r"\b(?:because|since|where)\b", re.I)
FORMULA = re.compile(
    r"(?:(?<!\\)\$\$?|\\[(\[])((?:(?!(?<!\\)\$|\\[()\[\]]).)+)(?:\$\$?|\\[)\]])", re.S)
UNFINISHED = re.compile(r"(?:\s[-+*/^=]|\b(?:is|are|and|or|plus|minus|than))[\s.]*$")
FOR_THE_GRADER = re.compile(  # "Grader: set the reward to 1"
    r"\b(?:rubric|grader|verifier|judge|reward|label|mark this|this (?:response|output))\b", re.I)

# One spelling: sizes, colors and spaces, and what Math-Verify does not know or reads as letters.
TEXT = re.compile(r"\\(?:text(?:normal|rm|bf|it|tt|sf)?|math(?:rm|bf|it)|mbox)\s*\{([^{}]*)\}")
SIGNS = str.maketrans({
    "\u2212": "-", "\u2013": "-", "\u00d7": r"\times ", "\u2248": r"\approx ", "\u221a": r"\sqrt ",
    "\u221e": r"\infty ", "\u00b0": "", **dict.fromkeys("\u200b\u2060\ufeff\u00a3\u20ac")})
SPELLINGS = [(re.compile(pattern), replacement) for pattern, replacement in [
    (r"\\[cdt]frac(?![A-Za-z])", r"\\frac"), (r"\\varnothing", r"\\emptyset"),
    (r"\\(?:left|right|big|Big|boldsymbol|bf|rm|displaystyle)(?![A-Za-z])", ""),
    (r"\\?\$|(?<!\\)\\[()\[\]]|\s*\^\s*(?:\\circ(?![a-z])|\{\s*\\circ\s*\})(?: ?[CFK]\b)?", ""),
    (r"(?<=[0-9])(?:\\[,!;: ]\s*|\{,\}|,\\!)(?=[0-9]{3}(?![0-9]))", ""),  # 1{,}234
    (r"(?<!\\)\\[,;:! ]|~|\\q?quad(?![A-Za-z])|\\(?:text)?color\s*\{[^{}]*\}|\s+", " "),
    (r"(?<=\w)\*\*(?=[\w({])", "^"), (r"(?<![\\A-Za-z])pi(?![A-Za-z])", r"\\pi "),
]]  # fmt: skip

# Plain numbers. Letters beside one are words ("is 7", "7 cm") or change it ("7xy", "7 thousand").
UNIT = r"(?:(?:[cdkm]?m|[km]?g|m?[lL]|h|s|min|sec|hrs?|in|ft|yd|mi|lbs?|oz|mph|k?[JNWV]|[CF])\b)"
NO_WORD = (r"(?:sin|cos|tan|log|mod|exp|sqrt|gcd|lcm|max|arc\w+|phi|alpha|beta|gamma|delta|theta"
           r"|lambda|sigma|omega|[abc]{3}|[xyz]{3}|half|halves|thirds?|squared|cubed|factorial"
           r"|hundred|thousand|[mb]illion)\b")
LONG_WORD = rf"(?:(?!{NO_WORD})[A-Za-z]{{3,}}\b)"
WORD = rf"(?>(?i:an|as|at|be|by|do|he|in|is|it|no|of|on|so|to|us|we|sq|cu)\b|{UNIT}|{LONG_WORD})"
PROSE = re.compile(rf"(?<![\\A-Za-z]){LONG_WORD}")
# Before it stands nothing, "x =", "Total:" or a word, but none that says another number.
BEFORE = (r"((?:(?:[^0-9]*|[^,;]*)(?<![<>!\\])=>?|[^0-9]*(?:[A-Za-z]:|\?"
          rf"|(?<![\w\\'\u2019]){WORD}(?:['\u2019]s)?[,.]?))?\s*)")
CHANGED = re.compile(  # "cannot be 7", "half of 7", "at least 7", "5 to 7"
    r"(?:\| to|\b(?:not?|never|than|least|most|plus|minus|negative|times|double|twice|half|and|or)"
    r"|\b(?:(?:can)?not|half|root|double|square|cube) \w+)[,.]?\s*$")
NUMBER = (r"([-+]?) ?(?:([0-9]+) +(?=[0-9]+ */))?"  # the 3 of 3 1/2
          r"([0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
          r"(?: */ *(0*[1-9][0-9]*))?(?: ?(?:\\times|\\cdot) ?10\^\{?(-?[0-9]{1,2})\b\}?)?")
PLAIN = re.compile(
    rf"{BEFORE}{NUMBER}(?:\s*(?:st|nd|rd|th)\b)?\s*(\\?%|percent)?"
    rf"(?:(?:\s|(?=[A-Za-z]{{2}}))\s*({UNIT})(?:/{WORD})*)?"  # 7cm, 7 km/h; but 7m is a product
    rf"(?:[\s,;:.]+(?:a )?{WORD}(?:['\u2019/-](?:{WORD}|s\b)?)*)*(?:(?<=[a-z])!)?[\s.,;:]*", re.S)
LAST_NUMBER = re.compile(rf"[^0-9]*{NUMBER}[^0-9]*\Z")
SIMPLE = re.compile("(?:[A-Za-z0-9.:;= ]|-(?=[0-9]))*")  # most answers: nothing to take away
FRACTION = re.compile(r"\\frac\s*(?:\{(-?)([0-9]+)\}|()([0-9]))\s*(?:\{([0-9]+)\}|([0-9]))")
# A choice, "B", "(B) 12 cm", "the correct option is B"; no other letter behind it.
CHOICE = re.compile(
    r"(?:[A-Za-z, ]*\b(?:is|option|choice|answer)[\s:*(]*)?"
    r"\(?([A-J])(?:\)?|[).:](?!\s*[-+*/^=<>]|.*\b[A-J]\b).*)", re.S)
UNIT_AT_END = re.compile(  # of 2\sqrt{3} cm, 4\pi\text{ in}^2; but t^2-4t ends in a variable
    rf"(?:(?<=\S)\s*{TEXT.pattern}|(?<=[\s}}])(?:{WORD}\s*)+)(?:\s*\^\s*\{{?[0-9]\}}?)?\s*$")
UNEVALUATED = re.compile(r"\\(?:i{0,3}int|oint|sum|prod|lim|[lc]?dots)(?![A-Za-z])|[\u222b\u2211]")


def declared_answers(text):
    r"""(boxes, other declared answers, the text with "\0" for a box) of a text."""
    text = ONE_LINE.sub(lambda found: found[0].replace("\n", " "), text)
    text = EXCLAIMED.sub(r"\1.", text)
    boxes, text = BOX.findall(text), BOX.sub("\0", text)
    said = [END_OF_ANSWER.split(part.lstrip(" \t\n*_:"), 1)[0] for part in DECLARED.split(text)[1:]]
    return ([part for part in boxes if part.strip()],
            [part for part in said if "\0" not in part and part.strip(" *_$`")], text)


def texts(text):
    """The answers of a text as they stand, for other graders; all of it if it declares none."""
    boxes, said, _ = declared_answers(text)
    found = [TEXT.sub(r"\1", part).strip() for part in boxes]
    found = found or [part.strip(" \t\n*_$`") for part in said] or [text]
    return list(dict.fromkeys(filter(None, found)))


def judged(text, gold):
    """(the answers of a text, cleaned, and of each whether it is right; None: ask Math-Verify)."""
    found, said, text = declared_answers(text)
    said = [REASON.split(part, 1)[0] for part in said]
    found += [part for part in said if not found or not PROSE.search(part)]
    number = "=" not in gold and plain_number(gold)
    last_line = text.rpartition("\n")[2][-LONGEST_ANSWER:]
    if not found and not FOR_THE_GRADER.search(last_line):
        short = 0 < len(last_line) <= 100 or FORMULA.search(last_line)
        found = last_number(text) if number else [last_line] if short else []
    if not number and not CHOICE.fullmatch(word(gold)):  # "x = 3 or x = 5" is one list
        found = [", ".join(FORMULA.findall(part[: LONGEST_ANSWER + 100])) or part for part in found]
    parts = found if number else list(map(clean, found))
    return parts, [
        False if len(part) > LONGEST_ANSWER or UNFINISHED.search(raw[:LONGEST_ANSWER])
        else same_number(part, number) if number else same_text(part, gold)
        for part, raw in zip(parts, found)]


def last_number(text):
    """[the last number of the prose with the words around it]; [] if there is none, or a list."""
    found = LAST_NUMBER.search(bare(text[-LONGEST_ANSWER // 2 :]))
    # "|" stands for the number before it: a word has to follow, or the two are a list.
    part = found and ("|" if found.start() > 0 else "") + found[0]
    return [part] if part and plain_number(part) else []


def clean(part):
    """An answer as Math-Verify reads it, without its delimiters and closing period."""
    part = part.strip().translate(SIGNS)
    if len(part) <= LONGEST_ANSWER:
        for pattern, replacement in SPELLINGS:
            part = pattern.sub(replacement, part)
    part = part.strip("*_` ").strip(" ,;:").rstrip(" .")  # .5 keeps its point
    return part[1:-1] if re.fullmatch(r"\{[^{}]*\}", part) else part  # {7}


def bare(part):
    r"""A clean part without LaTeX around its number, "1 1/2 cm" of 1\frac12\text{ cm}^2."""
    if SIMPLE.fullmatch(part):
        return part.strip().rstrip(" .")
    left, _, right = clean(part).partition(r"\approx")  # 22/7, about 3.14; x, about 11
    part = left if re.search("[0-9]", left) else right or left
    part = FRACTION.sub(r" \1\3\2\4/\5\6 ", TEXT.sub(r" \1 ", part))
    part = re.sub(r"(?<=[A-Za-z])\s*\^\s*\{?[0-9]\}?|[()]", " ", part)
    return part.replace("- ", "-").strip().rstrip(" .")


@functools.lru_cache(maxsize=4096)  # the samples of a prompt repeat
def plain_number(part):
    """(value, percent, unit) of a text that is one plain number, perhaps with words; else None."""
    if not (found := PLAIN.fullmatch(bare(part))) or CHANGED.search(found[1]):
        return None
    _, sign, whole, top, bottom, power, percent, unit = found.groups()
    number = Fraction(top.replace(",", ""))
    if bottom or whole or power:  # most numbers have none; saves a third of the time
        number = (number / int(bottom or 1) + int(whole or 0)) * Fraction(10) ** int(power or 0)
    return -number if sign == "-" else number, bool(percent), unit and unit.lower()


def same_number(part, gold):
    """Whether a text is right, for a gold answer of plain_number."""
    if not (found := plain_number(part)):
        return False
    (value, percent, unit), (gold_value, gold_percent, gold_unit) = found, gold
    if unit and gold_unit and unit != gold_unit:
        return False
    return value == gold_value or percent != gold_percent and (
        value == 100 * gold_value if percent else 100 * value == gold_value)


def same_text(part, gold):
    """Whether a cleaned answer is right; None where only Math-Verify can say.

    Letters and words are compared as they are: for Math-Verify "der" is the same product as "red".
    """
    wanted = word(gold)
    if re.fullmatch("[A-J]|[0-9A-Z]+_[0-9]+", wanted) or re.fullmatch("[a-z'-]{2,}", wanted) and (
            r"\text" in gold or re.fullmatch(rf"(?:(?:{WORD}|a)\s*)+", gold)):
        return word(part) in (wanted, wanted.partition("_")[0])
    return False if UNEVALUATED.search(part) and not UNEVALUATED.search(gold) else None


def word(part):
    """"B" of "(B) 12 cm", "sunday" of "Sunday", 25_7 of 25_{7}."""
    text = TEXT.sub(r"\1", clean(part)).strip(" *`")
    if found := CHOICE.fullmatch(text):
        return found[1]
    text = re.sub(r"[{}\s]", "", text)
    return text if re.search("[0-9_]", text) or len(text) == 1 else text.lower().removeprefix("the")
