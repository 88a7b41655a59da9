r"""Which answer a text gives, and whether it is right where that needs no algebra.

The rule of place is fixed before anyone looks at the gold answer. A policy that is paid for lists
of answers learns to write lists.
 1. Only the text after the last </think> counts, and nothing after a <think> that stays open.
 2. The answer is the last \boxed{...}; else the last declared answer ("Answer: x", "the answer is
    x", <answer>x</answer>, a last line "#### x"), to the end of its sentence or line; else the last
    number of the prose or, where the gold answer is no number, its last formula or short last line.
 3. If other boxes or declared answers disagree with it: "several answers". A sentence around or
    beside a box is only a sentence.
 4. Each holds one answer: of "3 + 4 = 7" the last side; nothing after "because", "since", "where".

Plain numbers are compared here, as fractions, in microseconds, and words as they are. Everything
else is for Math-Verify (verifier.py).

Decisions where graders differ: 25_8 for 25_7 is wrong, 25 is right (the question names the base).
12 km for 12 cm is wrong, 12 and 12 centimeters are right: two short units of plain numbers are
compared. \boxed{3} and \boxed{5} for "3, 5" are two answers, and wrong: one box, one list.
3.141593 for \pi is wrong, as 0.333333 is for 1/3: an exact answer is asked. x \approx 11 for 11 is
right, and 50% for 50 and for 0.5. 12 + 34 - 5 for 41 is the question once more, and wrong. For 7,
"7 * is" is wrong (a sentence that breaks off declares nothing), 7 thousand too; 7 dozen is right.
"Answer: 5!" is a factorial, and "The answer is 7!" an exclamation.
"""

import functools
import re
from fractions import Fraction

# Every pattern runs once over a whole text, or over one answer. An answer is about this long.
LONGEST_ANSWER = 400  # the longest gold answer in MATH has about 160

# ------------------------------------------------------------------------------------------------
# 1. Places

# A box closes; in it braces up to eight deep: "\boxed{" 7,000 times must not cost 7,000 scans.
INSIDE = functools.reduce(lambda inside, _: rf"(?:[^{{}}\\]|\\.|\{{{inside}\}})*+", range(8), "")
BOX = re.compile(rf"\\(?:boxed|fbox)\s*\{{({INSIDE})\}}", re.S)
# One line each: display formulas and tagged answers.
ONE_LINE = re.compile(
    r"(?<!\\)\\\[(?:(?!(?<!\\)\\[\[\]]).)*\\\]|\$\$[^$]*\$\$|<answer>[^<]*</answer>", re.S | re.I)
BULLET = re.compile(r"^[ \t]*[-+*][ \t]+|^-{3,}$", re.M)  # or a ruler
DECLARED = (
    r"(?:(?:(?:\b(?:the|final|correct)\s+){0,3}\banswer\b[*_]*\s*(?:is\b|:|=)|<answer>"
    r"|^####(?=[^\n#]*\Z))[\s:*_]*)+|^[#*_ \t]*(?:final )?answer[*_ \t]*\n\s*")
# Its end is "." or "7! Great.", but not "$3! \times 5!$". A next line that starts with a number
# belongs to the answer, else "Answer: 6", "7" is two tries.
END_OF_ANSWER = re.compile(
    r"(?<!\bsq)(?<!\bcu)\.(?![0-9])|!(?=[*_]*(?:\s*$|\s+[A-Z]))|\n(?!\s{0,9}[-+.0-9])|</answer>|\Z",
    re.I | re.M)
FACTORIAL = r"(?<!is )(?:[^\s!.$/=]{0,20}[0-9)}]|[a-z])![*_ \t]*$"  # as all of a declared answer
SAID = re.compile(rf"(?:{DECLARED})(?s:({FACTORIAL}|.*?))(?={END_OF_ANSWER.pattern})", re.I | re.M)
FORMULA = re.compile(
    r"(?:(?<!\\)\$\$?|\\[(\[])((?:(?!(?<!\\)\$|\\[()\[\]]).)+)(?:\$\$?|\\[)\]])", re.S)
REASON = re.compile(r"\b(?:because|since|where)\b", re.I)
UNFINISHED = re.compile(r"(?:\s[-+*/^=]|\b(?:is|are|and|or|plus|minus|than))\s*$")
LAST_SIDE = re.compile(r"(?<![<>!\\])=>?")
# Prose that talks to a grader, "Grader: set the reward to 1", holds no answer.
ORDER = re.compile(r"\b(?:rubric|grader|verifier|judge|reward|label|mark this"
                   r"|this (?:response|output))\b", re.I)


def declared_answers(text):
    r"""(boxes, other declared answers, the text without bullets, "\0" for a box) of a text."""
    text = ONE_LINE.sub(lambda found: found[0].replace("\n", " "), text)
    boxes, text = BOX.findall(text), BULLET.sub(" ", BOX.sub("\0", text))
    said = [part for part in SAID.findall(text) if "\0" not in part and part.strip(" *_$")]
    return [part for part in boxes if part.strip()], said, text


def texts(text):
    """The answers of a text as they stand, for other graders; all of it if it declares none."""
    boxes, said, _ = declared_answers(text)
    found = [TEXT.sub(r"\1", part) for part in boxes]
    found = found or [part.strip(" \t\n*_$`") for part in said] or [text]
    return list(dict.fromkeys(part.strip() for part in found if part.strip()))


def judged(text, gold, question=""):
    """(the answers of a text, cleaned, and of each whether it is right; None: ask Math-Verify)."""
    found, said, text = declared_answers(text)
    said = [REASON.split(part)[0] for part in said]
    found += [part for part in said if not found or not PROSE.search(part)]
    number = read_number(gold)
    if not found and not ORDER.search(text.rpartition("\n")[2][-300:]):
        found = last_number(text) if number else last_formula(text)
    if number:
        parts = [bare(LAST_SIDE.split(part)[-1]) for part in found]
        return parts, [same_number(part, number) for part in parts]
    # Of "(B) $12\pi$" the letter; of a sentence its formulas as one list, "x = 3, x = 5".
    found = [part if chosen(gold) and chosen(part)
             else ", ".join(FORMULA.findall(part[: LONGEST_ANSWER + 100])) or part
             for part in found]
    parts = [part for part in dict.fromkeys(map(clean, found)) if part]
    return parts, [same_text(part, gold, question) for part in parts]


def last_formula(text):
    """[the last formula of a text], or its last line if that is short."""
    line = text.strip().rpartition("\n")[2][:101]
    found = [] if len(line.split()) <= 3 else FORMULA.findall(text)
    return found[-1:] or [line] * (len(line) <= 100)


def last_number(text):
    """[the last number of the prose with the words around it]; [] if there is none, or a list."""
    end = max(map(text.rfind, "0123456789"))
    text = text[max(0, end - LONGEST_ANSWER // 2) : END_OF_ANSWER.search(text, end + 1).start()]
    text = " ".join(dict.fromkeys(text.split("\n")))  # no line twice
    found = LAST_NUMBER.search(bare(LAST_SIDE.split(text)[-1]))
    return [found[1]] if found and plain_number(found[1]) else []


TEXT = re.compile(r"\\(?:text(?:normal|rm|bf|it|tt|sf)?|math(?:rm|bf|it)|mbox)\s*\{([^{}]*)\}")
# Sizes, colors and spaces, and what Math-Verify does not know or reads as a product of letters.
SPELLINGS = [(re.compile(pattern), replacement) for pattern, replacement in [
    ("[\u2212\u2013]", "-"), ("\u00d7", r"\\times "), ("\u2248", r"\\approx "),
    ("\u221e", r"\\infty "), ("\u221a", r"\\sqrt "), (r"\\[cdt]frac(?![A-Za-z])", r"\\frac"),
    ("[\u00ad\u200b-\u200f\u2060\ufeff]", ""),  # of no width
    (r"\\(?:left|right|big|Big|boldsymbol|bf|rm|displaystyle)(?![A-Za-z])|\\\$", ""),
    (r"\\(?:text)?color\s*\{[^{}]*\}|\\q?quad(?![A-Za-z])", " "),
    (r"(?<=[0-9])(?:\\[,!;: ]\s*|\{,\}|,\\!)(?=[0-9]{3}(?![0-9]))", ""),  # 1{,}234
    (r"(?<!\\)\\[,;:! ]|~", " "), (r"(?<=\w)\*\*(?=[\w({])", "^"), (r"\\varnothing", r"\\emptyset"),
    (r"(?<![\\A-Za-z])pi(?![A-Za-z])", r"\\pi "),
]]  # fmt: skip


def clean(part, table=SPELLINGS):
    """An answer as Math-Verify reads it, without its delimiters and closing period."""
    part = " ".join(part.split())
    if len(part) > LONGEST_ANSWER:
        return part  # it is wrong
    part = part.strip("$*_` ").removeprefix(r"\(").removesuffix(r"\)")
    part = part.strip(" ,;:").rstrip(" .")  # .5 keeps its point
    for pattern, replacement in table:
        part = pattern.sub(replacement, part)
    return " ".join(part.split())


# ------------------------------------------------------------------------------------------------
# 2. Plain numbers: a sign, digits, a fraction, a power of ten, %, and words or a unit beside it

# Letters beside a number are words ("is 7", "7 apples", "7 cm") or mathematics ("7xy", "log 7").
UNIT = r"(?:(?:[cdkm]?m|[km]?g|m?[lL]|h|s|min|sec|hrs?|in|ft|yd|mi|lbs?|oz|mph|k?[JNWV])\b)"
NAME = (r"(?:sin|cos|tan|log|mod|exp|sqrt|phi|alpha|beta|gamma|delta|theta|lambda|sigma|omega"
        r"|[abc]{3}|[xyz]{3}|[b-df-hj-np-tv-z]{3,5})\b")
LONG_WORD = rf"(?:(?!{NAME})[A-Za-z]{{3,}}\b)"
WORD = (r"(?>(?i:an|as|at|be|by|do|he|if|in|is|it|my|no|of|on|or|so|to|up|us|we|sq|cu)\b"
        rf"|{UNIT}|{LONG_WORD})")  # ?>: "in" is a unit, too, and 30 of them had 2^30
PROSE = re.compile(rf"(?<![\\A-Za-z]){LONG_WORD}")
NUMBER = re.compile(
    r"(?<![\w.])([-+]?)(?:([0-9]+) +(?=[0-9]+ */))?"  # the 3 of 3 1/2
    r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?: */ *(-?0*[1-9][0-9]*))?(?:\u23e8(-?[0-9]{1,2}))?(?![0-9])")
# Before a plain number stands nothing, or at the end a word or colon: "Total: 7", "that she has 7".
BEFORE = re.compile(rf"(?:[^0-9]*(?:[:?]|(?<![\w\\'\u2019]){WORD}(?:['\u2019]s)?[,.]?)\s*)?")
# But no "half of 7", "cannot be 7" or "at least 7", no "7 squared" or "7 thousand".
CHANGED_BEFORE = re.compile(
    r"\b(?:(?:not?|never|than|least|most|plus|minus|negative|times|double|twice|half|and|or)"
    r"|(?:(?:can)?not|half|root|double|square|cube) \w+)[,.]? *$")
CHANGED_AFTER = (r"\s*(?:and (?:a|one) )?(?:hal(?:f|ves)|thirds?|squared|cubed|factorial|hundred"
                 r"|thousand|[mb]illion)\b")
# After it a unit, "7cm", "7 km/h" (but 7m is a product), and words, "7 miles per hour", "7 of Tom's
# two-hour lessons".
AFTER = re.compile(
    rf"(?!{CHANGED_AFTER})"
    rf"\s*(?:st|nd|rd|th)?\s*(%|percent)?(?:(?:\s|(?=[A-Za-z]{{2}}))({UNIT})(?:/{WORD})*)?"
    rf"(?:[\s,;:]+(?:a )?{WORD}(?:[/-]{WORD}|['\u2019]s?)*\.?)*[\s.,;:]*")
# A word, a colon or "=" must stand between it and the number before: else "5, 7" is a list.
LAST_NUMBER = re.compile(
    rf"(?:^|[0-9]\S*\s+(?![-+.0-9]|to\b))([^0-9]*{NUMBER.pattern}[^0-9]*)\Z")
SIMPLE = re.compile(r"(?:[A-Za-z0-9.:;= ]|-(?=[0-9]))*")  # nothing that PLAINER would change
TERM = r"(?:\{\s*([-+]?[0-9]+)\s*\}|([0-9]))"
PLAINER = SPELLINGS + [(re.compile(pattern), replacement) for pattern, replacement in [
    (rf"\\[cdt]?frac\s*{TERM}\s*{TERM}", r" \1\2/\3\4 "), (TEXT.pattern, r" \1 "),
    (r"\\%", "%"), (r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))", ""),
    # 3 \times 10^8 with the sign for "times ten to the power"; 1e3 may be a number of base 16
    (r"\s*(?:\\times|\\cdot|\*)\s*10\s*\^\s*\{?(-?[0-9]{1,2})(?![0-9])\}?", "\u23e8\\1"),
    (r"\s*\^?\s*\{?\s*(?:\\(?:circ|degree)(?![a-z])|\u00b0)\s*\}?(?: ?[CFK]\b)?", " "),
    (r"(?<=[A-Za-z])(?:\s*\^ ?\{? ?-?[0-9] ?\}?|[\u00b2\u00b3])", ""),  # cm^2
    (r"\\[()\[\]\\]|[$\u00a3\u20ac()*#`\"]|</?[A-Za-z]{1,10}/?>|\\boxed|\s+", " "),  # <b>7</b>
    (r"(?:(?<=[ +-])|^)\{([^{}]*)\}", r" \1 "),  # but not \sqrt{7}
    (rf"({NUMBER.pattern}[^\\]*)\\approx.*", r"\1"), (r"^.*\\approx", ""),  # 22/7, about 3.14
    (r"((?:^|:|\bis|\babout)\s*[-+])\s+(?=[.0-9])", r"\1"),  # -(7)
]]  # fmt: skip


def bare(part):
    r"""An answer without LaTeX, "1 1/2 cm" of 1\frac12\text{ cm}; "" if it is no answer."""
    if UNFINISHED.search(part):
        return ""
    # Most answers are simple.
    text = part.strip().rstrip(" .") if SIMPLE.fullmatch(part) else clean(part, PLAINER)
    return text if len(text) <= LONGEST_ANSWER else ""


@functools.lru_cache(maxsize=4096)
def plain_number(text):
    """(value, percent, unit, words before it) of a bare text that is a plain number; else None."""
    found = NUMBER.search(text)
    before = text[: found.start()] if found else ""
    after = found and AFTER.fullmatch(text, found.end())
    if not after or not BEFORE.fullmatch(before) or CHANGED_BEFORE.search(before):
        return None
    sign, whole, top, bottom, power = found.groups()
    percent, unit = after.groups()
    number = int(top) if top.isdigit() else Fraction(top)
    if whole or bottom or power:  # for few: a Fraction takes as long as all the rest
        number = Fraction(number) / int(bottom or 1) + int(whole or 0)
        number *= Fraction(10) ** int(power or 0)
    return -number if sign == "-" else number, bool(percent), unit and unit.lower(), before


def read_number(text):
    """plain_number of a text without words before it, such as a gold answer; else None."""
    found = plain_number(bare(text))
    return found if found and not found[-1] else None


def same_number(part, gold):
    """Whether a bare answer is right, for a gold one of read_number; None: ask Math-Verify.

    50% is 50% and 0.5; and 50, since a question may name the unit itself ("what percent").
    """
    if (found := plain_number(part)) is None:
        one_number = len(re.findall("[0-9.]+(?:/[0-9]+)?", part)) == 1
        no_answer = PROSE.search(part) or UNEVALUATED.search(part)
        return None if one_number and not no_answer else False
    (value, percent, unit, _), (gold_value, gold_percent, gold_unit, _) = found, gold
    if unit and gold_unit and unit != gold_unit:
        return False
    return value == gold_value or percent != gold_percent and (
        value == 100 * gold_value if percent else 100 * value == gold_value)


# ------------------------------------------------------------------------------------------------
# 3. Choices, words, bases, and what is refused before Math-Verify sees it

# "B", "the answer is (B)", "(B) 12 cm", "B (12 cm)", "B because ...", "B, not A". No other letter
# in parentheses or before a colon or period, unless "not" stands before it.
CHOICE = re.compile(
    r"(?i:(?:so|thus|therefore|hence|the|correct|right|best|final|answer|option|choice|letter|is)\b"
    r"[\s:,*^]*)*\(?([A-J])(?:\)?|(?:[).:]|,?\s+(?:because|since|as|not)\b|\s(?=\())"
    r"(?!.*(?<!not )(?:\([A-J]\)|(?<!not \()\b[A-J][).:])).*)", re.S)
UNIT_AT_END = re.compile(  # of 2\sqrt{3} cm, 4\pi\text{ in}^2; but t^2-4t ends in a variable
    rf"(?:(?<=\S)\s*{TEXT.pattern}|(?<=[\s}}])(?:{WORD}\s*)+)(?:\s*\^\s*\{{?[0-9]\}}?)?\s*$")
UNEVALUATED = re.compile(r"\\(?:i{0,3}int|oint|sum|prod|lim|[lc]?dots)(?![A-Za-z])|[\u222b\u2211]")


def same_text(part, gold, question=""):
    """Whether a cleaned answer is right; None where only Math-Verify can say.

    Letters and words are compared as they are: for Math-Verify "der" is the same product as "red".
    An operator that is left standing, or a formula of the question, is no answer, unless the gold
    answer has it, too.
    """
    mine, wanted = squeezed(part), squeezed(gold)
    if letter := re.fullmatch(r"\(?([A-J])\)?", wanted):
        return chosen(part) == letter[1]
    if re.fullmatch("[A-Za-z'-]{2,}", wanted) and (
            r"\text" in gold or re.fullmatch(rf"(?:(?:{WORD}|a)\s*)+", gold)):
        return mine.lower().removeprefix("the") == wanted.lower().removeprefix("the")
    if re.fullmatch("[0-9A-Z]+_[0-9]+", wanted):
        return mine in (wanted, wanted.partition("_")[0])
    asked = {last_side(side) for side in FORMULA.findall(question)}
    repeated = last_side(part) in asked - {"", last_side(gold)} and mine != wanted
    no_answer = (len(part) > LONGEST_ANSWER or UNFINISHED.search(part) or repeated
                 or UNEVALUATED.search(part) and not UNEVALUATED.search(gold))
    return False if no_answer else None


def last_side(part):
    r"""\sqrt242 of "x = (\sqrt{242})\text{ cm}"; "" of a number or letter, which repeat nothing."""
    side = squeezed(LAST_SIDE.split(UNIT_AT_END.sub("", part[:LONGEST_ANSWER]))[-1]).strip("()")
    return side if re.search(r"\\|.[A-Za-z]|[A-Za-z].", side) else ""


def chosen(part):
    """The letter of a choice, "B" of "the answer is (B) 12 cm"; None of another text."""
    found = CHOICE.fullmatch(re.sub(r"\$|\\[()]", "", TEXT.sub(r"\1", clean(part))).strip(" *`"))
    return found and found[1]


def squeezed(part):
    return re.sub(r"\\(?:text|math|mbox)[a-z]*(?=\s*\{)|[{}$*`\s]", "", clean(part)).strip(".")
