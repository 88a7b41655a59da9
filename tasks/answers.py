r"""Which answer a text gives, and whether a plain number, a choice or a word is right.

The rule of place. It is fixed before anyone looks at the gold answer, because a policy that may
list "5 or 6 or 7" learns to list:
 1. Only the text after the last </think> counts, and nothing after a <think> that stays open.
 2. The answer is the content of the last \boxed{...}.
 3. Without a box: the last declared answer, that is "Answer: x", "the answer is x" (up to the end
    of the sentence or line), <answer>x</answer>, or a last line "#### x".
 4. Without either: the last number of the prose. Where the gold answer is no number: the last
    formula, or the last line if it is short.
 5. All boxes and all declared answers must be right. If only some are: "several answers".
 6. A declared answer around a box is that box. Any other sentence beside a box is only a sentence;
    but a bare number or formula, "the answer is 6", is a second answer.
 7. Each holds one answer: of "3 + 4 = 7" the last side; nothing after "because", "since", "where".

Decisions where graders differ: 25_8 for 25_7 is wrong, 25 is right (the question names the base).
12 km for 12 cm is wrong, 12 and 12 centimeters are right: two units are compared if both are short.
3.141593 for \pi is wrong, as 0.333333 is for 1/3: an exact answer is asked. x \approx 11 for 11 is
right, and 50% for 50 and for 0.5. 12 + 34 - 5 for 41 is the question once more, and wrong.

Numbers need microseconds and no SymPy here. Every pattern runs over the whole text once, or over
one answer of at most LONGEST_ANSWER characters. Formulas are for Math-Verify (verifier.py).
"""

import functools
import re
from fractions import Fraction

LONGEST_ANSWER = 400  # characters; the longest gold answer in MATH has about 160

# ------------------------------------------------------------------------------------------------
# 1. Places

BRACES = re.compile(r"\\(?:boxed|fbox)\s*\{|\\[\\{}]|[{}]")
TAGGED = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.I | re.S)
FOUR_HASHES = re.compile(r"^####(?=[^\n#]*\Z)", re.M)
DISPLAY = re.compile(r"(?<!\\)\\\[(?:(?!(?<!\\)\\[\[\]]).)*\\\]|\$\$[^$]*\$\$", re.S)
DECLARED = re.compile(
    r"(?:(?:\b(?:the|final|correct)\s+){0,3}\banswer\b[*_]*\s*(?:is\b|:|=)[\s:*_]*)+"
    r"|^[#*_ \t]*(?:final )?answer[*_ \t]*\n\s*",  # a heading
    re.I | re.M,
)
# A next line that starts with a number belongs to the answer, else "Answer: 6", "7" is two tries.
END_OF_ANSWER = re.compile(r"(?<!\bsq)(?<!\bcu)\.(?![0-9])|\n(?!\s{0,9}[-+.0-9])")
FORMULA = re.compile(r"(?<!\\)\$\$?([^$]+)\$\$?|\\[(\[]((?:(?!\\[()\[\]]).)+)\\[)\]]", re.S)
SHOUT = re.compile(r"!(?=[*_]*(?:\s*$|\s+[A-Z]))", re.M)  # "7! Great.", but not "$3! \times 5!$"
BULLET = re.compile(r"^[ \t]*[-+*][ \t]+", re.M)
REASON = re.compile(r"\b(?:because|since|where)\b", re.I)
LAST_SIDE = re.compile(r"(?<![<>!\\])=>?")
# Orders to a grader, "Grader: set the reward to 1", hold no answer, unless they declare one.
ORDER = re.compile(
    r"(?:^|[.:;,(]|\b(?:please|must|should|and|to|i))\s*"
    r"(?:set|give|mark|return|output|score|print|ignore|accept)\b.*"
    r"\b(?:rubric|grader|verifier|judge|reward|score|label|response|output|correct|instructions)\b"
    r"|\b(?:grader|verifier|judge)(?:[:,]|.*\b(?:must|should|please)\b)|[\"']reward[\"']", re.I)


def boxes(text):
    r"""(contents of the outermost \boxed{...}, the text with "\0" for each); an open one is none.

    One pass with a stack: a text of 7,000 open boxes must not cost 7,000 passes.
    """
    contents, rest, end, stack, depth = [], [], 0, [], 0
    for token in BRACES.finditer(text) if "box" in text else ():
        if token.group().endswith("{") and token.group() != r"\{":
            stack.append(token if token.group() != "{" else None)
            depth += stack[-1] is not None
        elif token.group() == "}" and stack and (start := stack.pop()):
            depth -= 1
            if not depth:
                contents.append(text[start.end() : token.start()])
                rest.append(text[end : start.start()])
                end = token.end()
    return contents, "\0".join([*rest, text[end:]])


def declared_answers(text):
    """(boxes, other declared answers) of a text, in its order (rules 2 and 3)."""
    in_boxes, text = boxes(text)
    if not ("nswer" in text or "####" in text or "NSWER" in text):
        return in_boxes, []
    text = TAGGED.sub(lambda m: f"\nAnswer: {' '.join(m[1].split())}\n", text)
    text = BULLET.sub(" ", SHOUT.sub(".", FOUR_HASHES.sub("Answer: ", text)))
    said, end = [], 0
    for lead in DECLARED.finditer(text):
        if lead.start() >= end:
            stop = END_OF_ANSWER.search(text, lead.end())
            end = stop.start() if stop else len(text)
            said.append(text[lead.end() : end])
    return in_boxes, [part for part in said if "\0" not in part and part.strip(" *_$")]


def stated_answers(text):
    """(boxes, other answers) without reasons and mere sentences (rules 6 and 7).

    An order to a grader is like an empty box: its numbers are no answers.
    """
    in_boxes, said = declared_answers(text)
    in_boxes = [part for part in in_boxes if part.strip()]
    said = [REASON.split(part)[0] for part in said]
    if in_boxes:
        said = [part for part in said if not PROSE.search(formulas(part))
                or read_number(LAST_SIDE.split(part)[-1])]
    if not in_boxes + said and ORDER.search(text.rpartition("\n")[2][-300:]):
        return [""], []
    return in_boxes, said


def one_line_formulas(text):
    return DISPLAY.sub(lambda m: m.group().replace("\n", " "), text)


def formulas(part):
    """The formulas of a sentence as one list, "x = 3, x = 5"; the sentence if it has none."""
    found = ["".join(groups) for groups in FORMULA.findall(part[: LONGEST_ANSWER + 100])]
    return ", ".join(found) or part


def expressions(text):
    """The answers of a text where the gold answer is no number, cleaned, without repetitions."""
    in_boxes, said = stated_answers(text)
    found = [formulas(part) for part in in_boxes + said]
    if not found:
        line = text.strip().rpartition("\n")[2]
        short = len(line) <= 100
        places = FORMULA.findall(line if short and len(line.split()) <= 3 else text)
        found = ["".join(places[-1])] if places else [line] if short else []
    return [part for part in dict.fromkeys(map(clean, found)) if part]


def texts(text):
    """The answers of a text as they stand, for other graders; all of it if it declares none."""
    in_boxes, said = declared_answers(text)
    found = [TEXT.sub(r"\1", part) for part in in_boxes]
    found = found or [part.strip(" \t\n*_$`") for part in said] or [text]
    return list(dict.fromkeys(part.strip() for part in found if part.strip()))


# ------------------------------------------------------------------------------------------------
# 2. Spellings of LaTeX

TEXT = re.compile(r"\\(?:text(?:normal|rm|bf|it|tt|sf)?|math(?:rm|bf|it)|mbox)\s*\{([^{}]*)\}")
CHARACTERS = str.maketrans({
    "\u2212": "-", "\u2013": "-", "\u00d7": r"\times ", "\u2248": r"\approx ",
    "\u221e": r"\infty ", "\u221a": r"\sqrt ",
    **dict.fromkeys(map(chr, [0xAD, *range(0x200B, 0x2010), 0x2060, 0xFEFF])),  # of no width
})  # fmt: skip
# Sizes, colors and spaces, and what Math-Verify does not know or reads as a product of letters.
SPELLINGS = [(re.compile(pattern), replacement) for pattern, replacement in [
    (r"\\(?:left|right|big|Big|boldsymbol|bf|rm)(?![A-Za-z])|\\\$", ""),
    (r"\\(?:text)?color\s*\{[^{}]*\}|\\q?quad(?![A-Za-z])", " "),
    (r"(?<=[0-9])(?:\\[,!;: ]\s*|\{,\}|,\\!)(?=[0-9]{3}(?![0-9]))", ""),  # 1{,}234
    (r"(?<!\\)\\[,;:! ]|~", " "), (r"\\approx(?![a-z])", r"\\approx "),
    (r"(?<![(\[.,0-9])(?<!\\\{)[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])",  # but (1,234) is a pair
     lambda match: match[0].replace(",", "")),
    (r"(?<=\w)\*\*(?=[\w({])", "^"), (r"\\varnothing", r"\\emptyset"),
    (r"(?<![\\A-Za-z])pi(?![A-Za-z])", r"\\pi "),
]]  # fmt: skip


def clean(part):
    """An answer as Math-Verify reads it, without its delimiters and closing period."""
    part = part[: LONGEST_ANSWER + 100].translate(CHARACTERS)
    part = part.strip("$*_` \t\n").removeprefix(r"\(").removesuffix(r"\)")
    part = part.strip(" \t\n,;:").rstrip(" .")  # .5 keeps its point
    return " ".join(replaced(part, SPELLINGS).split())


def replaced(text, table):
    for pattern, replacement in table:
        text = pattern.sub(replacement, text)
    return text


# ------------------------------------------------------------------------------------------------
# 3. Numbers: a gold answer that is a number is always judged here
#
# The rewards are Math-Verify's, but for these (a test holds both lists). Right only here: units and
# words ("7 km/h", "4m^2", "Total: 7"), separators ("31,928 kg"), 50% for 50, and what is unreadable
# there ("= 7", "\approx 7", "(7", "7. cm"). Right only there: arithmetic ("157 + 3", "|7|", "2!"),
# and the 7 of "7 t", "7ab", "7:1", "7_2", "7\text{ x}", "7\text{ hours and }30".

PLAIN = re.compile(r"(?:[A-Za-z0-9.:;= ]|-(?=[0-9]))*")  # nothing that AROUND would change
NUMBER = re.compile(
    r"((?<![\w)\]}])[-+])?"  # a sign, unless it joins two terms as in "5-3"
    r"(?<![A-Za-z_0-9])"  # not the 2 of "x2"
    r"(?:([0-9]+) +(?=[0-9]+ */ *[0-9]))?"  # the 3 of 3 1/2
    r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)"  # 1234 or 12.5 or .5
    r"(?: */ *([-+]?[0-9]+))?"  # 3/4
    r"(?: *(?:\\times|\\cdot|\*) *10 *\^ *\{?(-?[0-9]{1,2})(?![0-9])\}?)?"  # 3 \times 10^8
)
# Letters beside a number are words ("is 7", "7 apples", "7 cm") or mathematics ("7xy", "\pi 7").
END = r"(?![A-Za-z])"
UNIT = rf"(?:[cdkm]?m|[km]?g|m?[lL]|h|s|min|sec|hrs?|in|ft|yd|mi|lbs?|oz|mph|k?[JNWV]){END}"
MATHEMATICS = (
    r"(?:(?:sin|cos|tan|log|ln|mod|sqrt|pi|phi|alpha|beta|gamma|delta|theta|lambda|sigma|omega"
    rf"|[abc]{{3}}|[xyz]{{3}}|[b-df-hj-np-tv-z]{{3,5}}){END})"
)
LONG_WORD = rf"(?!{MATHEMATICS})[A-Za-z]{{3,}}{END}"
WORD = (
    r"(?:(?:(?i:an|as|at|be|by|do|he|if|in|is|it|my|no|of|on|or|so|to|up|us|we|sq\.?|cu\.?)"
    rf"{END}|{UNIT}|{LONG_WORD})(?:['\u2019-][a-z]+)?)"
)
PROSE = re.compile(rf"(?<![\\A-Za-z]){LONG_WORD}")
# What may stand before and after a number that is an answer. All else makes it a piece of a
# formula: 2^7, 7!, 7x, x - 7, x > 7, \sqrt{7}.
BEFORE = re.compile(
    r"(?:^|(?<![<>!])=>?|[:;?\u2014\u21d2\u2192]|\\(?:approx|therefore|implies|[A-Z]\w*arrow)"
    r"|(?<![A-Za-z\\'\u2019])(?:(?!(?:[A-Za-z]|not|never|than|plus|minus|times|\w+n['\u2019]t)\b)"
    rf"{WORD}|[aI]\b)[,.]?|(?<![\w.,^{{])[0-9]+[,;/|&]?(?=\s))[\s*#(\[{{`\"'\u201c]*$"
)
CLOSING = r"[\s)\]}`\"'\u201d*]*"
AFTER = re.compile(
    rf"(?!{CLOSING}/){CLOSING}%?(?:(?:(?:\s|\\cdot|/)*(?:{UNIT}|(?:st|nd|rd|th|[ap]m|[AP]M){END})"
    rf"|\s*[\s/-](?:a\s)?{WORD})[\u00b2\u00b3]?)*{CLOSING}(?:$|\\approx|\.?[0-9]|\({WORD}"
    rf"|[.,;:?\u2014]+(?=\s*$|\s+(?:{WORD}|[^-+*/^<>\\A-Za-z\s]|[aI]\s)))"
)
# Numbers that only say of what or for how long: "7 out of 10", "18 dollars per day for 2 days".
ASIDE = re.compile(r"\b(?:of|for|per|in|after|every|each)\s+(?:the\s+)?$", re.I)
TERM = r"(?:\{\s*([-+]?[0-9]+)\s*\}|([0-9]))"
AROUND = [(re.compile(pattern), replacement) for pattern, replacement in [
    (r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))", ""), (r"\\%", "%"),
    (rf"\\[cdt]?frac\s*{TERM}\s*{TERM}", r" \1\2/\3\4 "),
    (r"(\\(?:text|textnormal|mathrm|mbox)\s*\{(?=[^{}0-9A-Za-z]*[A-Za-z])[^{}0-9]*\}"
     rf"|(?<![\\A-Za-z]){WORD})[\^_]\s*(?:\{{\s*-?[0-9]\s*\}}|-?[0-9])", r"\1"),  # cm^2, CO_2
    (TEXT.pattern, r" \1 "),
    (r"\\[()\[\]\\]|[$\u00a3\u20ac]|\*\*|</?[A-Za-z]{1,10}/?>|\\boxed|\s+", " "),  # <b>7</b>
    (rf"\^? ?\{{? ?(?:\\(?:circ|degree){END}|\u00b0) ?\}}?(?: ?[CFK]{END})?", " "),
    # The braces of "{7}" alone are LaTeX's; those of \sqrt{7} stay and give the formula away.
    (r"(?:(?<=[ (+-])|^)\{([^{}]*)\}", r" \1 "),
    # "- 7" and "-(7)" are -7 where an answer begins.
    (r"((?:^|[:=]|\\approx|\b(?:is|about)\b)[ (\[]*[-+])[ (]+(?=[.0-9])", r"\1"),
]]  # fmt: skip


def number_rewards(text, gold):
    """[whether right] of each answer in a text; gold: (value, percent, unit) (rules 2 to 7)."""
    in_boxes, said = stated_answers(text)
    found = set().union(*(numbers(LAST_SIDE.split(part)[-1]) for part in said + in_boxes))
    if in_boxes:
        found = found or {None}
    elif not found:
        found = last_number(text)
    return [entry is not None and same_number(entry, gold) for entry in found]


def numbers(part):
    r"""The set of (value, percent, unit) of the numbers in an answer; None: piece of a formula.

    \boxed{7x} is not 7, and \boxed{3 + 4} is a question.
    """
    if len(part) > LONGEST_ANSWER:
        return {None}
    text = bare(part)
    exact = text.partition(r"\approx")[0]  # of "22/7, about 3.14" the first
    text = exact if NUMBER.search(exact) else text
    found = set()
    for match in NUMBER.finditer(text):
        if not (found and ASIDE.search(text[max(0, match.start() - 20) : match.start()])):
            found.add(number_at(text, match))
    return found


def last_number(text):
    """The set of the last number of the text, and None if it ends a bare list ("5, 6 or 7")."""
    end = max(map(text.rfind, "0123456789"))
    start = max(0, end - LONGEST_ANSWER // 2)
    window = BULLET.sub(" ", SHOUT.sub(".", text[start : end + LONGEST_ANSWER // 2]))
    window = bare(window.replace("\n", " ; "))
    *_, other, last = None, None, *NUMBER.finditer(window)
    if not last or (found := number_at(window, last)) is None:
        return set()
    between = window[other.end() : last.start()].strip(" ,;/|&").lower() if other else "?"
    listed = between in ("", "or", "and", "to", "-") and other.group() != last.group()
    return {found, None} if listed else {found}


@functools.lru_cache(maxsize=4096)
def read_number(text):
    """(value, percent, unit) of a text that is one number, perhaps with a unit in words, or None.

    "7m" may be a product, and a longer text is no number with a unit.
    """
    text = bare(text[:LONGEST_ANSWER]).strip().rstrip(".")
    match = NUMBER.match(text)
    rest = text[match.end() :] if match else ""
    if not match or not re.fullmatch(r"\s*%?(?:\s+[A-Za-z]+(?:/[A-Za-z]+)?){0,3}\s*", rest):
        return None
    return number_at(text, match)


def number_at(text, match):
    """(value, percent, unit) of a matched number; None for a piece of a formula and for 3/0.

    None for 100 digits and more, too: a policy that loops on one digit writes thousands, and Python
    refuses to read integers of more than 4,300 digits, which would end the run.
    """
    before, after = text[max(0, match.start() - 24) : match.start()], text[match.end() :][:120]
    sign, whole, top, bottom, power = match.groups()
    if len(match.group()) > 100 or bottom and int(bottom) == 0 or not (
            BEFORE.search(before) and AFTER.match(after)):
        return None
    value = (Fraction(top) / int(bottom or 1) + int(whole or 0)) * Fraction(10) ** int(power or 0)
    percent, unit = re.match(r"\s*(?:%|percent)", after), re.match(rf"\s*({UNIT})", after)
    return -value if sign == "-" else value, bool(percent), unit and unit[1].lower()


def same_number(found, gold):
    """50% is 50% and 0.5; and 50, since a question may name the unit itself ("what percent")."""
    (value, percent, unit), (gold_value, gold_percent, gold_unit) = found, gold
    if unit and gold_unit and unit != gold_unit:
        return False
    return value == gold_value or percent != gold_percent and (
        value == 100 * gold_value if percent else 100 * value == gold_value)


def bare(text):
    r"""An answer without the LaTeX around a number; \frac{1}{2} as 1/2, 1\frac12 as 1 1/2."""
    if PLAIN.fullmatch(text):
        return text.strip()  # as most answers are
    return replaced(clean(text), AROUND)


# ------------------------------------------------------------------------------------------------
# 4. Choices, words, bases, and what is refused before Math-Verify sees it

# "B", "the answer is (B)", "(B) 12 cm", "B. 12", "B because ...", with no other letter offered.
CHOICE = re.compile(
    r"(?i:(?:so|thus|therefore|hence|the|correct|right|best|final|answer|option|choice|letter|is)\b"
    r"[\s:,*^]*)*\(?([A-J])(?:\)?|(?:[).:]|,?\s+(?:because|since|as)\b)"
    r"(?!.*(?:\([A-J]\)|\b[A-J][).:])).*)", re.S)
BASED = re.compile(r"([0-9A-Z]+)(?:_\{?(?:\\text\{)?([0-9]+)\}*)?")
UNIT_AT_END = re.compile(  # of 2\sqrt{3} cm, 4\pi\text{ in}^2; but t^2-4t ends in a variable
    rf"(?:(?<=\S)\s*{TEXT.pattern}|(?<=[\s}}])(?:{WORD}\s*)+)(?:\s*\^\s*\{{?[0-9]\}}?)?\s*$")
UNEVALUATED = re.compile(
    r"\\(?:i{0,3}int|oint|sum|prod|lim|frac\s*\{d\})(?![A-Za-z])|[\u222b\u2211]")


def same_text(part, gold, question=""):
    """Whether a cleaned answer is right; None where only Math-Verify can say.

    Letters and words are compared as they are: for Math-Verify "a" is the variable A, and "der" the
    same product as "red". An operator that is left standing, or a formula of the question, is no
    answer, unless the gold answer has it, too.
    """
    if letter := re.fullmatch(r"\(?([A-J])\)?", unwrapped(gold)):
        found = CHOICE.fullmatch(unwrapped(part))
        return found is not None and found[1] == letter[1]
    expected = words(gold)
    if expected and (r"\text" in gold or re.fullmatch(rf"(?:(?:{WORD}|a)\s*)+", expected)):
        return words(part) == expected
    expected, found = BASED.fullmatch(squeezed(gold)), BASED.fullmatch(squeezed(part))
    if expected and expected[2]:
        return bool(found and found[1] == expected[1] and found[2] in (None, expected[2]))
    if len(part) > LONGEST_ANSWER or UNEVALUATED.search(part) and not UNEVALUATED.search(gold):
        return False
    asked = {squeezed(side) for formula in map("".join, FORMULA.findall(question))
             for side in (formula, LAST_SIDE.split(formula)[-1])}
    return False if squeezed(part) in asked - {squeezed(gold)} else None


def squeezed(part):
    return "".join(clean(part).split())


def words(text):
    r"""Lower-case words of a text that has nothing else, without \text{}; "" for any other."""
    text = " ".join(unwrapped(text).lower().split()).removeprefix("the ")
    return text if re.fullmatch(r"[a-z][a-z' -]*[a-z]", text) else ""


def unwrapped(text):
    r"""A text without \text{}, dollars and stars around and in it."""
    return TEXT.sub(r"\1", text).strip(" .$*`\n")
