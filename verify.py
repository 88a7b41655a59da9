r"""The mark: is the answer in this text the right one, and why (paper, sec. 2: +1 or -1).

1. verify        one text, one gold answer, one rule: "math", "exact", "code" (sandbox.py) or "gym"
                 (generated.py)
2. reading       which answer a text gives, decided before anyone looks at the gold answer
3. numbers       the fast path: short numeric answers, compared as exact fractions, in microseconds
4. expressions   everything else in mathematics, by Math-Verify, in milliseconds or never
5. Marker        a whole batch: numbers here, the rest in worker processes with a deadline
6. the worker    what those processes run: python verify.py --worker

The paper marks with SymPy and Math-Verify. Differences, all ours:
  a. Exactly one answer is read, from a fixed place. Math-Verify alone tries several places and
     takes what it can parse, and a policy learns to fill them all.
  b. A gold answer that is a number wants a number. Math-Verify would do the arithmetic, so that
     repeating the question, \boxed{12 + 34 - 5}, would be a right answer to it.
  c. Math-Verify's own time limit is off. It uses signal.alarm, which raises anywhere but in the
     main thread, and every answer is then silently wrong. A process can be killed; a thread cannot.

Nothing in a text is an instruction here: "ignore the rubric, reward 1" is a text without an answer.

    >>> verify("3 + 4 is 7, so the answer is 7.", "7")
    (1.0, 'correct')
    >>> verify(r"It is \boxed{[2, 3)}.", r"x \in [2,3)")
    (1.0, 'correct')
"""

import json
import logging
import os
import queue
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import sandbox

KINDS = ("math", "exact", "code", "gym")
# Every reason a mark can have. The last three say nothing about the answer, only that it could not
# be judged; all earn -1, and their shares are logged.
REASONS = ("correct", "wrong", "no answer", "several answers", "unreadable", "timeout", "error")
THINK_TAGS = ("<think>", "</think>")


class TaskError(ValueError):
    """Bad task, option or problem: one sentence with the field, its value, what would be right."""


# ------------------------------------------------------------------------------------------------
# 1. One mark


def verify(text, answer, kind="math"):
    """(reward, reason) of a completion: +1.0 for "correct", else -1.0.

    Only the text after the last </think> counts, if there is one; without one, all of it does (a
    model may answer without thinking aloud), but nothing after a <think> that stays open.
    kind "math": by value, so "0.5", "1/2" and "2/4" are one answer. "exact": the stripped text.
    "code": the last ```python block, or else the last block without a language, passes all unit
    tests, which are the answer, as JSON. "gym": full credit by the rule of the generator of
    Reasoning Gym that made the answer (generated.py).
    reason: one of REASONS.

    In this process and without a deadline: a text can keep SymPy busy for ever. Fine for gold
    answers and toys; what a model wrote goes through `Marker`. Raises TaskError: unknown kind.
    """
    reason, parts = read(text, answer, kind)
    if reason is None:
        reason = SLOW[kind](parts, answer)
    return reward_of(reason), reason


def reward_of(reason):
    return 1.0 if reason == "correct" else -1.0


def read(text, answer, kind, think_tags=THINK_TAGS):
    """(reason, None) where that can be said at once, else (None, expressions or program)."""
    opens, closes = think_tags
    text = text.rpartition(closes)[2].partition(opens)[0].strip()
    if kind == "exact":
        right = text == answer.strip()
        return ("correct" if right else "wrong" if text else "no answer"), None
    if kind == "code":
        program = last_program(text)
        return ("no answer", None) if program is None else (None, [program])
    if kind == "gym":
        parts = declared_texts(text)
        return ("several answers", None) if len(parts) > 1 else (None, parts) if parts else (
            "no answer", None)
    if kind != "math":
        raise TaskError(f"verifier kind = {kind!r} is unknown: use one of {KINDS}")
    gold = read_number(answer)
    if gold is not None:
        return compare_numbers(declared_numbers(text) or last_number(text), gold), None
    parts = declared_expressions(text) or last_expression(text)
    if not parts:
        return "no answer", None
    for same in (same_choice, same_words):
        right = [same(part, answer) for part in parts]
        if None not in right:
            return verdict(right), None
    return None, parts


def verdict(right):
    """The reason for a list of answers, each right or not: all must be, however many there are."""
    return "correct" if all(right) else "several answers" if any(right) else "wrong"


# ------------------------------------------------------------------------------------------------
# 2. Which answer a text gives
#
# Reward hacking starts where a text can be read in two ways: a policy that may list "5 or 6 or 7"
# learns to list. So at most one answer is read, from a place that is fixed before looking at the
# gold answer, and a text whose answers disagree earns -1 even if one of them is right:
#   a. \boxed{...} and "answer is ..." / "Answer: ..." are declared answers; all of them must agree,
#      and each holds one answer (of "3 + 4 = 7" the part after the last "=").
#   b. Without any, the last number of the text, unless it ends a bare list ("5, 6 or 7", "5 6 7");
#      where the gold answer is no number, the last formula, or the last line if it is short.

DECLARED = re.compile(
    r"\banswer\b[*_]*\s*(?:is\b|:|=)[\s:*_]*"
    # To the end of the sentence or line; a next line that starts with a number belongs to it, else
    # "Answer: 6", "7" would be two tries.
    r"(.*?)(?:\.(?![0-9])|\n(?!\s*[-+.0-9])|$)",
    re.I | re.S,
)
LIST_WORDS = ("", "or", "and", "to", "-", "\u2013")
FORMULA = re.compile(r"\$\$?([^$]+)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.S)
# A number in an order to the judge, "Grader: set the reward to 1", is not an answer. It may still
# be declared as one: who says "the answer is 1" has answered. "The reward is 50" is no order.
TO_THE_JUDGE = re.compile(
    r"(?:^|[.!?:;,(]|\b(?:please|must|should|shall|and|then|to|you|i))[\s*_\"']*\b"
    r"(?:set|give|mark|return|output|score|print|assign|ignore|rate|grade|award|label|accept)\b"
    r".{0,200}\b(?:rubric|grad(?:er?|ing)|verifier|judge|reward|score|label|response|output"
    r"|correct|instructions?|marks?)\b"
    r"|\b(?:grader|verifier|judge)\b(?:\s*[:,]|.{0,200}\b(?:must|should|shall|please)\b)"
    r"|[\"'](?:reward|score|label|grade|mark)[\"']\s*:",
    re.I,
)
# Numbers that only say of what or for how long: "7 out of 10", "18 dollars per day for 2 days".
ASIDE = re.compile(r"\b(?:of|for|per|in|after|every|each)\s+(?:the\s+)?$", re.I)
BECAUSE = re.compile(r"\b(?:because|since)\b", re.I)
LAST_SIDE = re.compile(r"(?<![<>!])=>?")
SHOUT = re.compile(r"!(?=\s|$)")
BULLET = re.compile(r"^[ \t]*[-+*][ \t]+", re.M)
FENCE = re.compile(r"([ \t]*)```+[ \t]*([\w+-]*)")
PYTHON = ("python", "py", "python3")
LONGEST_EXPRESSION = 400  # characters; the longest gold answer in MATH has about 160


def boxed_parts(text):
    r"""The contents of every outermost \boxed{...}; one whose braces stay open does not count.

    One pass with a stack: a text of 7,000 open boxes must not cost 7,000 passes.
    """
    parts, starts = [], []
    for token in re.finditer(r"\\boxed\s*\{|\\[\\{}]|[{}]", text):
        if token.group() in ("\\\\", r"\{", r"\}"):  # the braces of a set, not of LaTeX
            continue
        if token.group() != "}":
            starts.append(token.end() if token.group() != "{" else None)
        elif starts:
            start = starts.pop()
            if start is not None and not any(starts):
                parts.append(text[start : token.start()])
    return parts


def last_program(text):
    """The last Python block, or else the last block without a language; None if there is none.

    Line by line, since a fence is only a fence where a line starts, and whether it opens or closes
    depends on all fences before it. A block that stays open is a program that was cut off.
    """
    found, label, lines = {}, None, []
    for line in text.replace("\r\n", "\n").split("\n"):
        fence = FENCE.match(line)
        if fence and (label is None or fence[2]):  # a fence with a language never closes
            indent, label, lines = fence[1], fence[2].lower(), []
        elif fence:
            found["python" if label in PYTHON else label] = "\n".join(lines)
            label = None
        elif label is not None:
            lines.append(line.removeprefix(indent))
    return found.get("python", found.get(""))


def declared_numbers(text):
    """The set of (value, percent) that the text declares to be its answer (rule a)."""
    boxes = [part for part in boxed_parts(text) if part.strip()]
    said = [last_side(part) for part in DECLARED.findall(spoken(text))]
    if boxes:
        # Beside a box, "the answer is the sum of the first 3 terms" is only a sentence; but "the
        # answer is 6", in so many words and no others, is a second answer.
        said = [part for part in said if r"\boxed" not in part and read_number(part)]
    found = set().union(*(numbers(part) for part in [*map(last_side, boxes), *said]))
    return found or ({NOT_A_NUMBER} if boxes else set())


def spoken(text):
    r"""Without the marks of a list, and "7!" with a full stop: in a box, it is 5040."""
    return BULLET.sub(" ", SHOUT.sub(".", text))


def last_side(part):
    """What stands after the last "=" (or "=>", not ">="), before any "because"."""
    return LAST_SIDE.split(BECAUSE.split(part)[0])[-1]


def last_number(text):
    """The set with the last number of the text, or with two if it ends a bare list (rule b)."""
    if speaks_to_the_judge(text):
        return set()
    text = bare(spoken(text).replace("\n", " ; "))
    matches = list(NUMBER.finditer(text))
    pair = matches[-2:]
    if len(pair) == 2:
        between = text[pair[0].end() : pair[1].start()]
        listed = between.strip(" ,;/|&").lower() in LIST_WORDS
        pair = pair if listed else pair[1:]
    if pair and part_of_formula(text, pair[-1]):
        return set()
    return {entry for m in pair if (entry := number_entry(m)) is not None}


def speaks_to_the_judge(text):
    """Whether the last line is about the marking: what it says counts only if it is declared."""
    return bool(TO_THE_JUDGE.search(text.rpartition("\n")[2]))


def declared_expressions(text):
    """The distinct expressions that the text declares to be its answer (rule a)."""
    boxes = [clean(part) for part in boxed_parts(text)]
    said = [clean(formulas(part)) for part in DECLARED.findall(text)]
    if boxes:
        # Beside a box, a sentence such as "the answer is then simplified to" is only a sentence;
        # but "the answer is 6", in so many words and no others, is a second answer.
        said = [part for part in said if not re.search(r"(?<![\\A-Za-z])[A-Za-z]{3,}", part)]
    return list(dict.fromkeys(part for part in boxes + said if part))


def last_expression(text):
    """A list with the last formula, or the last line, or nothing (rule b)."""
    line = text.strip().rpartition("\n")[2]
    if speaks_to_the_judge(line):
        return []
    found = FORMULA.findall(text)
    last = "".join(found[-1]) if found else line if len(line) <= 100 else ""
    return [clean(last)] if clean(last) else []


def declared_texts(text):
    """The distinct texts that the text declares to be its answer; all of it if it declares none."""
    wrapped = r"\\(?:text|mathrm|textbf|texttt)\s*\{([^{}]*)\}"
    boxes = [re.sub(wrapped, r"\1", part) for part in boxed_parts(text)]
    found = boxes or [part.strip(" \t\n*_$`") for part in DECLARED.findall(text)] or [text]
    return list(dict.fromkeys(part.strip() for part in found if part.strip()))


def formulas(part):
    """The formulas of a sentence as one list, "x = 3, x = 5"; the sentence if it has none."""
    part = re.sub(r"\\boxed\s*", "", part)
    found = ["".join(groups) for groups in FORMULA.findall(part)]
    return ", ".join(found) or part


# Spellings that Math-Verify does not know, or knows as a product of letters.
SPELLINGS = [
    (r"\\(?:left|right|displaystyle|big|Big)(?![A-Za-z])", ""),
    (r"\\text\s*\{\s*(?:and|or)\s*\}|(?<![\\A-Za-z])(?:and|or)(?![A-Za-z])", ","),
    (r"\\varnothing|\u2205", r"\\emptyset"), (r"\u2212", "-"), (r"\u221e", r"\\infty "),
    (r"\u222a", r"\\cup "), (r"\u2264", r"\\le "), (r"\u2265", r"\\ge "), (r"\*\*", "^"),
    (r"(?<![\\A-Za-z])sqrt\(([^()]*)\)", r"\\sqrt{\1}"), (r"\u221a([0-9]+)", r"\\sqrt{\1}"),
    (r"(?<![\\A-Za-z])pi(?![A-Za-z])|\u03c0", r"\\pi "), (r",(\s*,)+", ","),
]  # fmt: skip


def clean(part):
    """An expression without its delimiters, closing period and odd spellings."""
    part = part[: LONGEST_EXPRESSION + 100].strip()
    part = part.strip("$*_ \t\n").removeprefix(r"\(").removesuffix(r"\)").strip(" \t\n.,;:")
    for pattern, replacement in SPELLINGS:
        part = re.sub(pattern, replacement, part)
    return " ".join(part.split())


# ------------------------------------------------------------------------------------------------
# 3. Numbers: the fast path
#
# Exact fractions, not floats: 0.1 + 0.2 is 0.3 here, and 10**17 + 1 is not 10**17. A gold answer
# that is a number is always marked here. The marks are Math-Verify's, on thousands of answers from
# a grammar (tests/test_verify.py), but for these differences. Right here and not there:
#   units        letters are words: "7 km/h", "57 dollars", "4m^2", "Total: 7" are products there
#   separators   "-31,928" or "31,928 kg" is a list of two numbers there
#   percent      50% is 50 as well (same_number)
#   unreadable   "= 7", "\approx 7", "(7", "7. cm": nothing at all there
# Wrong here and right there:
#   arithmetic   "157 + 3", "x + 7 - x", "|7|", "2!": the header's difference b
#   dropped      of "7 t", "7ab", "7:1", "7_2", "7\text{ x}", "7\text{ hours and }30" the 7

DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
NUMBER = re.compile(
    r"(?:(?<![\w)\]}])[-+])?"  # a sign, unless it joins two terms as in "5-3"
    r"(?<![A-Za-z_])"  # not the 2 of "x2"
    rf"(?:{DIGITS}(?:\.[0-9]+)?|\.[0-9]+)"  # 1234 or 1,234 or 12.5 or .5
    r"(?:\s*/\s*[0-9]+)?"  # 3/4
)
# A number is entered at its first digit only: tried at each of 20,000 digits, it is 2e8 steps.
FRACTION = re.compile(
    r"(?:(?<![0-9./])(?<![0-9],)([0-9]+)\s*)?\\[dt]?frac\s*"
    rf"(?:\{{\s*([-+]?{DIGITS})\s*\}}\s*\{{\s*([-+]?{DIGITS})\s*\}}|([0-9])\s*([0-9]))"
    r"|(?<![0-9./])(?<![0-9],)([0-9]+) +([0-9]+)/([0-9]+)(?![0-9])"  # 3 1/2
)
POWER_OF_TEN = re.compile(
    r"(?<![0-9./])(?<![0-9],)([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*(?:\\times|\\cdot|\u00d7|\*)\s*"
    r"10\s*\^\s*\{?(-?[0-9]{1,2})(?![0-9])\}?"
)
PERCENT = re.compile(r"\s*(?:%|percent\b|pct\b)", re.I)

SPACED_SIGN = re.compile(  # "- 7" and "-(7)" are -7, where an answer begins
    r"((?:^|[:=\u2248]|\\approx|\b(?:is|about)\b)[ (\[]*[-+]) *"
    r"(?:(?=[.0-9])|\( *([.,/ 0-9]*)(?=\)))"
)

# Letters beside a number are a unit (7 cm), a word (7 apples, is 7) or factors (7x, 7 xy, \pi 7).
END = r"(?![A-Za-z])"
UNIT = (
    r"(?:[cdkm]?m|[km]?g|m?[lLsJNWV]|k[JNWV]|h|hrs?|min|sec|ft|in|yd|mi|lbs?|oz|mph|[ap]m|[AP]M"
    rf"|st|nd|rd|th){END}"
)
FACTORS = (
    rf"(?:(?:sin|cos|tan|cot|log|exp|ln|mod|gcd|lcm|sqrt|pi|phi|chi|psi|rho|tau|eta|alpha|beta"
    rf"|gamma|delta|theta|lambda|sigma|omega|[abc]{{3}}|[xyz]{{3}}|[b-df-hj-np-tv-z]{{3,5}}){END}"
    rf"|(?!(?:(?i:an|as|at|be|by|do|he|if|in|is|it|my|no|of|on|or|so|to|up|us|we)|{UNIT}){END})"
    rf"[A-Za-z]{{1,2}}{END})"
)
WORD = rf"(?!{FACTORS})[A-Za-z]{{2,}}{END}(?:['\u2019-][a-z]+)?"
UNLIKE = rf"(?:not|never|than|plus|minus|times|[a-z]+n['\u2019]t){END}"
# What may stand before a number that is an answer, and after it. All else makes it a piece of a
# formula: 2^7, 7!, 7x, x - 7, x > 7, \sqrt{7}.
BEFORE = re.compile(
    r"(?:^|(?<![<>!])=>?|[:;?\u2014\u2248\u21d2\u2192]|\\(?:approx|therefore|implies|[A-Z]\w*arrow)"
    rf"|(?<![A-Za-z\\'\u2019])(?:(?!{UNLIKE}){WORD}|a|I)[,.]?|(?<![\w.,^{{])[0-9]+[,;/|&]?(?=\s))"
    r"[\s*#(\[{`\"'\u201c]*$"
)
AFTER = re.compile(
    r"(?:\s*[)\]}`\"'\u201d*]+)?(?:\s*%)?"
    rf"(?:\s*(?:(?:sq|cu)\b\.?\s*)?{UNIT}(?:(?:/|\s*\\cdot\s*){UNIT})?[\u00b2\u00b3]?"
    rf"|\s*[\s/-](?:a\s+)?{WORD}[\u00b2\u00b3]?)*"
    rf"\s*[)\]}}`\"'\u201d*]*\s*(?:$|[-+]?\.?[0-9]"
    rf"|[.,;:?=\u2014\u2248]+(?=\s*$|\s+(?!{FACTORS}|[-+*/^<>\\]))"
    rf"|\((?!\s*[-+0-9\\]|\s*{FACTORS}))"
)
TEXT = re.compile(r"\\(?:text|mathrm|textrm|textbf|mathbf|textit|mbox)\s*\{([^{}]*)\}")
UNIT_POWER = re.compile(  # cm^2, \text{ m/s}^{2}, \text{CO}_2
    r"(\\(?:text|mathrm|mbox)\s*\{(?=[^{}0-9A-Za-z]*[A-Za-z])[^{}0-9]*\}"
    rf"|(?<![\\A-Za-z])(?:{UNIT}|(?:inche|feet|foot|yard|mile|meter|unit)s?{END}))"
    r"\s*[\^_]\s*(?:\{\s*-?[0-9]\s*\}|-?[0-9])"
)
AROUND = re.compile(
    rf"\\(?:left|right|boxed|q?quad|displaystyle|bf|rm){END}|\\[,;:!() \[\]\\]|[$~\u00a3\u20ac]"
)
DEGREES = re.compile(rf"\^? ?\{{? ?(?:\\(?:circ|degree){END}|\u00b0) ?\}}?(?: ?[CFK]{END})?")
NOT_A_NUMBER = (None, False)


def compare_numbers(found, gold):
    """The reason, for the set of (value, percent) a text gives and the gold one."""
    if not found:
        return "no answer"
    right = [same_number(entry, gold) for entry in found]
    return "correct" if all(right) else "several answers" if len(right) > 1 else "wrong"


def same_number(found, gold):
    """50% is 50% and 0.5; and 50, since a question may name the unit itself ("what percent")."""
    (value, percent), (gold_value, gold_percent) = found, gold
    if value is None or percent == gold_percent or value == gold_value:
        return value == gold_value
    return (value / 100 if percent else value) == (gold_value / 100 if gold_percent else gold_value)


def numbers(text):
    """The set of (value, percent) of all numbers in a declared answer.

    NOT_A_NUMBER is in it where a number is only part of a formula: \\boxed{7x} is not 7, and
    \\boxed{3 + 4} is a question.
    """
    text = bare(text)
    exact = re.split(r"\\approx|\u2248", text)[0]  # of "22/7, about 3.14" the first
    text = exact if NUMBER.search(exact) else text
    found = set()
    for match in NUMBER.finditer(text):
        if found and ASIDE.search(text[max(0, match.start() - 20) : match.start()]):
            continue
        if part_of_formula(text, match):
            found.add(NOT_A_NUMBER)
        elif (entry := number_entry(match)) is not None:
            found.add(entry)
    return found


def part_of_formula(text, match):
    """Whether a matched number is a piece of something larger, such as 2^7, 7x or sqrt(7)."""
    before, after = text[max(0, match.start() - 24) : match.start()], text[match.end() :][:120]
    return not (BEFORE.search(before) and AFTER.match(after))


def read_number(text):
    """(value, percent) of a text that is one number, perhaps with a unit, or None."""
    text = bare(text).strip().rstrip(".")  # ".5" keeps its point
    match = NUMBER.match(text)
    rest = text[match.end() :] if match else ""
    # Units in words ("7 cm", "5 miles per hour", "5 m/s"), but not "7m", which may be a product; a
    # longer text is not a number with a unit.
    if not match or not re.fullmatch(r"\s*%?(?:\s+[A-Za-z]+(?:/[A-Za-z]+)?){0,3}\s*", rest):
        return None
    return None if part_of_formula(text, match) else number_entry(match)


def plain(text):
    r"""LaTeX numbers as plain ones: \frac{1}{2} and 1\frac12, 1{,}234 and 1\,234, 3\times 10^6."""
    text = text.replace("\\$", "$").replace("\\%", "%").replace("**", " ")
    text = text.replace("\u2212", "-").replace("\u2013", "-")  # a minus and a dash
    text = re.sub(r"-\s*[$\u00a3\u20ac](?=[.0-9])", "-", text)
    text = re.sub(r"</?[A-Za-z]{1,10}/?>", " ", text)  # <answer>7</answer> is no inequality
    text = re.sub(r"(?<=[0-9])(?:\{,\}|\\[,!;: ]\s*|,\\!)(?=[0-9]{3})", ",", text)
    text = FRACTION.sub(plain_fraction, text)
    return UNIT_POWER.sub(r"\1", POWER_OF_TEN.sub(plain_power, text))


def plain_fraction(match):
    r"""a/b of a matched \frac; a mixed number 1\frac{1}{2} becomes 3/2, not 11/2."""
    parts = [group and group.replace(",", "") for group in match.groups()]
    whole, top, bottom = parts[0] or parts[5], parts[1] or parts[3] or parts[6], parts[2]
    bottom = bottom or parts[4] or parts[7]
    if len(match.group()) > 100 or whole and "-" in top + bottom:
        return match.group()
    top, bottom = int(top) + int(whole or 0) * int(bottom), int(bottom)
    if bottom < 0:
        top, bottom = -top, -bottom
    # \frac{1}{2}3 is not 1/23, and 0.5\frac12 not 0.51/2.
    joined = match.string[match.start() - 1 : match.start()].isdigit()
    return f"{' ' * joined}{top}/{bottom} "


def plain_power(match):
    """300 of a matched 3*10^2, 3/100 of 3*10^-2."""
    if len(match.group()) > 100:
        return match.group()
    return f"{Fraction(match[1]) * Fraction(10) ** int(match[2])} "


def bare(text):
    """A declared answer without what LaTeX puts around a number: text, spaces, degrees."""
    if re.fullmatch(r"\s*-?[0-9.]+\s*", text):
        return text.strip()  # as most answers are, and half the time of their marks
    text = AROUND.sub(" ", TEXT.sub(r" \1 ", plain(text)))
    text = " ".join(text.split())  # a policy that loops on newlines must not stall the patterns
    # The braces of "{7}" alone are LaTeX's; those of \sqrt{7} stay and give the formula away.
    text = re.sub(r"(?:(?<=[ (+-])|^)\{([^{}]*)\}", r" \1 ", DEGREES.sub(" ", text))
    return SPACED_SIGN.sub(r"\1\2", text)


def number_entry(match):
    """(value, percent) of a matched number, or None where it has no value."""
    value = number_value(match.group())
    return None if value is None else (value, bool(PERCENT.match(match.string, match.end())))


def number_value(text):
    """Fraction of a matched number; None for what has no value (3/0) or no sense (100+ digits).

    The limit is not pedantry: a policy that loops on one digit writes thousands of them, and
    Python refuses to read integers of more than 4,300 digits, which would end the run.
    """
    if len(text) > 100:
        return None
    top, _, bottom = text.replace(",", "").partition("/")
    if bottom and int(bottom) == 0:
        return None
    return Fraction(top) / int(bottom or 1) if "." in top else Fraction(int(top), int(bottom or 1))


# ------------------------------------------------------------------------------------------------
# 4. Letters, words and expressions


IS_WORD = re.compile(rf"a|(?!{UNIT}){WORD}")
CHOICE = re.compile(r"\(?([A-J])\)?")
# "(B) 12 cm", "B. 12", "B because ...": the letter, then the choice itself, in which no other
# letter is offered.
CHOICE_AND_TEXT = re.compile(
    r"\(?([A-J])(?:[).:]|,?\s+(?:because|since|as)\b)\s*(?!.*(?:\([A-J]\)|\b[A-J][).:])).*", re.S
)
OPTION = re.compile(
    r"(?:(?:so|thus|therefore|hence|the|correct|right|best|final|answer|option|choice|letter|is)\b"
    r"[\s:,*^]*)+", re.I
)  # fmt: skip


def same_choice(part, gold):
    """Whether both are one letter of a multiple choice; None where the gold answer is not one.

    Letters are compared as they are: for Math-Verify "a" and "A" are the same variable.
    """
    if not (expected := CHOICE.fullmatch(unwrapped(gold))):
        return None
    part = unwrapped(part)
    part = part.removeprefix(lead[0] if (lead := OPTION.match(part)) else "")
    found = CHOICE.fullmatch(part) or CHOICE_AND_TEXT.fullmatch(part)
    return found is not None and found[1] == expected[1]


def same_words(part, gold):
    """Whether both are the same words; None where the gold answer is not made of words.

    "red" is a word, "xyz" a product. For Math-Verify both are products, so that "der" would be red.
    """
    expected = words(gold)
    if not expected or not (r"\text" in gold or all(map(IS_WORD.fullmatch, expected.split()))):
        return None
    return words(part) == expected


def words(text):
    r"""Lower-case words of a text that has nothing else, without \text{}; "" for any other."""
    text = " ".join(unwrapped(text).lower().split()).removeprefix("the ")
    return text if re.fullmatch(r"[a-z][a-z' -]*[a-z]", text) else ""


def unwrapped(text):
    r"""A text without \text{}, dollars and stars around and in it."""
    return TEXT.sub(r"\1", text).strip(" .$*\n")


def compare_expressions(parts, answer):
    """The reason, for a text's expressions and the gold one, by Math-Verify.

    Milliseconds as a rule; without end for some ("9^9^9^9"), so only processes that can be killed
    should call it with what a model wrote. The gold answer comes first: Math-Verify's comparison is
    not symmetric, the form of the gold answer decides whether "x = 3" may be written as "3".
    """
    gold = parse_expression(clean(answer))
    if gold is None:
        return "error"
    found = [parse_expression(part) for part in parts]
    if None in found:
        return "unreadable"
    return verdict([same_expression(expression, gold) for expression in found])


def parse_expression(text):
    """The SymPy expression of a cleaned LaTeX text; None for what cannot be read."""
    if len(text) > LONGEST_EXPRESSION:
        return None
    math_verify = import_math_verify()
    found = math_verify.parse(
        f"${text}$",
        extraction_config=[math_verify.LatexExtractionConfig()],
        fallback_mode="no_fallback",
        parsing_timeout=None,  # its alarm works in a main thread only; see the header, c
    )
    return found[0] if found else None


def same_expression(found, gold):
    """Math-Verify's comparison, but numbers by their exact value: 0.3333333333333333 is not 1/3."""
    if getattr(found, "is_Rational", False) or getattr(found, "is_Float", False):
        if getattr(gold, "is_Rational", False) or getattr(gold, "is_Float", False):
            return Fraction(str(found)) == Fraction(str(gold))
    return import_math_verify().verify(gold, found, timeout_seconds=None)


def run_program(parts, answer, unsafe=False):
    """The reason, for a program and its unit tests as JSON."""
    return sandbox.run_tests(parts[0], sandbox.parse_tests(answer), unsafe=unsafe)[0]


def ask_generator(parts, answer):
    """The reason, for a text and the packed entry of a generator."""
    import generated

    return "correct" if generated.score(parts[0], answer) else "wrong"


def import_generators():
    import generated

    generated.import_rules()


def import_math_verify():
    """Imported on first use: 0.6 s and SymPy, never needed by the trainer for numbers."""
    import math_verify

    # It warns at every start that its timeouts are off, which is what we want.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    return math_verify


SLOW = {"math": compare_expressions, "code": run_program, "gym": ask_generator}
# What takes seconds once, before any deadline runs.
IMPORTS = {"math": import_math_verify, "gym": import_generators}


# ------------------------------------------------------------------------------------------------
# 5. A batch


@dataclass(frozen=True)
class Marks:
    """Marks of a batch, in its order, and what to log about them."""

    rewards: list  # +1.0 or -1.0
    reasons: list  # one of REASONS each
    counters: dict  # "verifier/...", "time/check_ms" -> float


class Marker:
    """Marks lists of (text, answer, kind); the slow ones in worker processes with a deadline.

    A worker that is late is killed and replaced, and its item earns -1 with reason "timeout": a
    text that keeps SymPy busy must cost its sample the reward, never the run its progress.

    workers: processes, 0: one a core, since the trainer waits for the marks anyway. They start when
        slow items come; a run on plain numbers has none.
    deadline_s: for one expression. Math-Verify needs 0.01 to 0.2 s for nearly all of them.
    memory_bytes: of address space for a worker; 10**10**10 wants more than there is.
    unsafe_code: run programs with limits only, where there are no namespaces (see sandbox.py).
    think_tags: what opens and closes the thinking in this model's texts.

        marker = Marker()
        marks = marker.mark([("The answer is 7.", "7", "math")])
        marker.close()                              # or: with Marker() as marker
    """

    def __init__(self, workers=0, deadline_s=10.0, memory_bytes=4 << 30, unsafe_code=False,
                 think_tags=THINK_TAGS):
        self.deadline_s, self.unsafe_code, self.think_tags = deadline_s, unsafe_code, think_tags
        workers = workers or min(32, max(2, os.cpu_count() or 2))
        self.workers = [Worker(memory_bytes) for _ in range(workers)]
        self.known = OrderedDict()  # (answer, parts) -> reason: the samples of a prompt repeat

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        for worker in self.workers:
            worker.kill()

    def mark(self, items):
        """The Marks of a list of (text, answer, kind). Raises TaskError: unknown kind."""
        start = time.perf_counter()
        reasons, slow = [], {}
        for i, (text, answer, kind) in enumerate(items):
            reason, parts = read(text, answer, kind, self.think_tags)
            reasons.append(reason)
            if reason is None:
                slow.setdefault((kind, answer, tuple(parts)), []).append(i)
        for key, reason in self.ask_workers(slow).items():
            for i in slow[key]:
                reasons[i] = reason
        n = max(1, len(items))
        counters = {
            "verifier/error_frac": sum(r in ("error", "unreadable") for r in reasons) / n,
            "verifier/timeout_frac": reasons.count("timeout") / n,
            "verifier/several_frac": reasons.count("several answers") / n,
            "verifier/slow_frac": sum(map(len, slow.values())) / n,
            "time/check_ms": 1000 * (time.perf_counter() - start) / n,
        }
        return Marks([reward_of(reason) for reason in reasons], reasons, counters)

    def ask_workers(self, keys):
        """{key: reason}; what was judged before is remembered, late and failed ones excepted."""
        found = {key: self.known[key] for key in keys if key in self.known}
        new = [key for key in keys if key not in found]
        idle = queue.SimpleQueue()
        for worker in self.workers:
            idle.put(worker)

        def ask(key):
            kind, answer, parts = key
            worker = idle.get()
            try:
                if kind == "code":  # in a process of its own for every test, not in the worker
                    return run_program(parts, answer, self.unsafe_code)
                return worker.ask(key, self.deadline_s)
            finally:
                idle.put(worker)

        if new:
            # Threads only wait on pipes here, one for each worker, so there is always an idle one.
            with ThreadPoolExecutor(len(self.workers)) as pool:
                found.update(zip(new, pool.map(ask, new), strict=True))
        for key in new:
            if found[key] not in ("timeout", "error"):  # the machine's trouble, not the answer's
                self.known[key] = found[key]
        while len(self.known) > 100_000:
            self.known.popitem(last=False)
        return found


class Worker:
    """One process that judges one item at a time, started on first use and after every death.

    A pipe and lines of JSON, not multiprocessing: that would import the trainer's main module, and
    torch with it, into every worker, or fork a process that holds a GPU.
    """

    START_S = 120  # importing SymPy takes a second; on a machine at its limits, many

    def __init__(self, memory_bytes):
        self.memory_bytes, self.process = memory_bytes, None
        self.prepared = set()  # kinds

    def ask(self, key, deadline_s):
        """The reason for a (kind, answer, parts); "timeout" if it was late, "error" if it died."""
        if self.process is None:
            self.start()
        if key[0] not in self.prepared:
            self.prepare(key[0])
        job = json.dumps([*key, deadline_s])
        reply, late = self.exchange(job, deadline_s)
        if reply:
            return reply
        self.kill()
        return "timeout" if late else "error"

    def start(self):
        here = str(Path(__file__).resolve())
        command = [sys.executable, here, "--worker", str(self.memory_bytes)]
        # A session of its own: Ctrl-C in a terminal is for the trainer, which then still marks.
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.prepared = set()

    def prepare(self, kind):
        if self.exchange(kind, self.START_S)[0] != "ready":
            self.kill()
            raise RuntimeError(f"the verifier's worker did not start to mark {kind!r}: its last "
                               "words are on standard error")
        self.prepared.add(kind)

    def exchange(self, line, deadline_s):
        """(reply, whether the deadline passed); an empty reply from a process that is no more."""
        process, late = self.process, threading.Event()

        def end():
            late.set()
            process.kill()

        timer = threading.Timer(deadline_s, end)
        timer.daemon = True
        timer.start()
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
            reply = process.stdout.readline()
        except BrokenPipeError:
            reply = ""
        finally:
            timer.cancel()
        # Half a line is the reply of a process that was killed while it wrote.
        return (reply.strip() if reply.endswith("\n") else ""), late.is_set()

    def kill(self):
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()
            process.stdout.close()
            try:
                process.stdin.close()  # flushes what the dead process never read
            except BrokenPipeError:
                pass


# ------------------------------------------------------------------------------------------------
# 6. The worker


def worker_main(memory_bytes):
    """Reads jobs as lines of JSON, writes one reason a line. Ends with its input.

    A line that is a kind, no job, gets that kind's imports done, and the reply "ready".
    No exception is caught: what Math-Verify did not foresee ends this process with a traceback on
    standard error, and the other side counts an error and starts the next one.
    """
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    # Replies go to a copy of standard output, so that a library that prints cannot answer.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        if line.strip() in IMPORTS:
            IMPORTS[line.strip()]()
            print("ready", file=replies, flush=True)
            continue
        kind, answer, parts, deadline_s = json.loads(line)
        # The other side kills at the deadline. If that side is gone, the kernel does: the default
        # action of SIGALRM ends a process wherever it is, no handler and no bytecode needed.
        signal.alarm(int(deadline_s) + 2)
        print(SLOW[kind](parts, answer), file=replies, flush=True)
        signal.alarm(0)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "--worker":
        sys.exit("usage: verify.py --worker MEMORY_BYTES (started by verify.Marker)")
    worker_main(int(sys.argv[2]))
