r"""What answers.py promises: the ways in which models end their texts, and what graders agree on.

The oracle is a person: every gold answer below stands beside another right spelling and a wrong
answer that is near to it. For formulas of Math-Verify's kind: Math-Verify itself.
"""

import csv
import itertools
import json
import logging
import random
import re
import runpy
import time

import math_verify
import pytest
from conftest import ROOT

from tasks import answers
from tasks import verifier as room
from tasks.verifier import Verifier, verify

# Gold answers of the kinds that MATH has: gold, the same otherwise, a wrong one.
GOLDS = [
    # integers, decimals, units, money, percent
    ("7", "7.0", "8"), ("-12", "-12", "12"), ("1,234", "1234", "1235"),
    ("0.125", r"\frac18", "0.12"), (r"12\text{ cm}", "12", "13"), (r"\$5.50", "5.5", "5.05"),
    (r"45^\circ", "45", "54"), (r"30\%", "30", "3"), ("1000000", r"1{,}000{,}000", "100000"),
    (r"16\text{ square inches}", r"16\text{ in}^2", "61"),
    # fractions
    (r"\frac{3}{4}", "0.75", r"\frac{4}{3}"), (r"-\frac{2}{7}", r"\frac{-2}{7}", r"\frac{2}{7}"),
    (r"\dfrac{11}{30}", "11/30", r"\frac{11}{31}"), (r"3\frac{1}{2}", "3.5", r"3\frac{1}{3}"),
    (r"\frac{1}{3}", r"\tfrac13", "0.3333"), (r"\frac{x+1}{2}", r"\frac{1+x}{2}", r"\frac{x+2}{2}"),
    (r"\frac{\pi}{6}", r"\pi/6", r"\frac{\pi}{3}"),
    (r"\frac{a}{b}", r"\dfrac ab", r"\frac{b}{a}"),
    (r"\frac{2\sqrt{3}}{3}", r"\frac{2}{\sqrt{3}}", r"\frac{\sqrt{3}}{3}"),
    (r"\frac{1+\sqrt{5}}{2}", r"\frac{\sqrt{5}+1}{2}", r"\frac{1-\sqrt{5}}{2}"),
    # roots and constants
    (r"\sqrt{2}", r"\sqrt2", r"\sqrt{3}"), (r"2\sqrt{3}", r"\sqrt{12}", r"3\sqrt{2}"),
    (r"11\sqrt2", r"11\sqrt{2}", r"12\sqrt{2}"), (r"\sqrt[3]{4}", "4^{1/3}", r"\sqrt[3]{5}"),
    (r"5-\sqrt{7}", r"-\sqrt{7}+5", r"5+\sqrt{7}"), (r"\pi", r"\pi", "e"),
    (r"4\pi", r"4 \pi", r"3\pi"), (r"2\pi + 4", r"4+2\pi", r"2\pi+3"), ("e^2", "e^{2}", "e^3"),
    (r"\log_2 3", r"\log_{2}{3}", r"\log_3 2"), (r"3\sqrt{10}", r"\sqrt{90}", r"\sqrt{80}"),
    # complex numbers
    ("3+4i", "4i+3", "3-4i"), ("-i", "-i", "i"), (r"\frac{1}{2}-\frac{\sqrt{3}}{2}i",
                                                   r"\frac{1-\sqrt{3}i}{2}",
                                                    r"\frac{1+\sqrt{3}i}{2}"),
    # intervals
    ("[2,3)", "[2, 3)", "(2,3]"), ("(0, 100)", "(0,100)", "(0,101)"),
    (r"(-\infty, 5]", r"(-\infty,5]", r"(-\infty,5)"),
    (r"(-\infty,2)\cup(3,\infty)", r"(-\infty, 2) \cup (3, \infty)", r"(-\infty,2)\cup(4,\infty)"),
    (r"\left[-1,1\right]", "[-1,1]", "[-1,2]"), (r"[0,\infty)", r"[0, \infty)", r"(0,\infty)"),
    (r"x \in [2,5]", "[2,5]", "[2,6]"), (r"(0,1)\cup(1,2]", r"(0, 1) \cup (1, 2]", "(0,2]"),
    # sets and lists
    (r"\{1,2,3\}", r"\{3, 2, 1\}", r"\{1,2\}"), (r"\{-2, 2\}", r"\{2,-2\}", r"\{2\}"),
    ("1,2", "2, 1", "1, 3"), ("3, 5, 7", "3,5,7", "3, 5"), (r"\pm 3", r"\pm 3", "3"),
    (r"\frac{1}{2}, -3", r"-3, \frac{1}{2}", r"\frac12, 3"), (r"\emptyset", r"\varnothing",
     r"\{0\}"),
    (r"1 \pm \sqrt{2}", r"1+\sqrt{2}, 1-\sqrt{2}", r"1+\sqrt{2}"), ("x=1, x=4", "1, 4", "1, 5"),
    # tuples
    ("(1,2)", "(1, 2)", "(2,1)"), (r"(3, -\frac{1}{2})", "(3,-0.5)", r"(3, \frac{1}{2})"),
    ("(1,-1,0)", "(1, -1, 0)", "(1,1,0)"), (r"\left(\sqrt{2}, \frac{\pi}{4}\right)",
                                          r"(\sqrt2, \frac{\pi}{4})", r"(\sqrt2, \frac{\pi}{3})"),
    ("(0,0),(1,1)", "(1,1), (0,0)", "(0,0), (1,2)"), ("(2x, y)", "(2x,y)", "(x, 2y)"),
    # matrices
    (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
     r"\begin{bmatrix}1&2\\3&4\end{bmatrix}", r"\begin{pmatrix} 1 & 3 \\ 2 & 4 \end{pmatrix}"),
    (r"\begin{pmatrix} -1 \\ 5 \end{pmatrix}", r"\begin{pmatrix}-1\\5\end{pmatrix}",
     r"\begin{pmatrix} 1 \\ 5 \end{pmatrix}"),
    (r"\begin{pmatrix} 1/2 & 0 \\ 0 & 1 \end{pmatrix}",
     r"\begin{pmatrix} \frac{1}{2} & 0 \\ 0 & 1 \end{pmatrix}",
     r"\begin{pmatrix} 1 & 0 \\ 0 & 1/2 \end{pmatrix}"),
    (r"\begin{pmatrix} \frac12 \\ \frac{1}{\sqrt{2}} \end{pmatrix}",        # once an error
     r"\begin{pmatrix} 0.5 \\ \frac{\sqrt{2}}{2} \end{pmatrix}",
     r"\begin{pmatrix} 0.5 \\ \frac{\sqrt{3}}{2} \end{pmatrix}"),
    # polynomials and other expressions
    ("x^2+2x+1", "(x+1)^2", "x^2+2x"), ("(x+2)(x-3)", "x^2-x-6", "(x-2)(x+3)"),
    ("2x-3", "-3+2x", "2x+3"), ("6xy", "6yx", "6x"), ("x^3-1", "x^{3}-1", "x^3+1"),
    ("3t^2 - 4t", "(3t-4)t", "3t^2+4t"), (r"\frac{1}{x+1}", "(x+1)^{-1}", r"\frac{1}{x-1}"),
    ("2^{10}x", "1024x", "1000x"), ("n(n+1)/2", r"\frac{n^2+n}{2}", r"\frac{n^2-n}{2}"),
    (r"\sin x", r"\sin(x)", r"\cos x"), (r"2\cos^2 x", r"2\cos^2(x)", r"2\sin^2 x"),
    ("a+b", "b+a", "a-b"), ("|x|", "|x|", "x"), ("x^{-2}", r"\frac{1}{x^2}", "x^2"),
    (r"\frac{3x}{4}", r"\frac34 x", r"\frac{4x}{3}"), ("k!", "k!", "k"),
    # equations and inequalities
    ("y = 2x + 1", "y=2x+1", "y=2x-1"), ("x=3", "3", "4"), ("x > 2", "x>2", "x<2"),
    (r"x \le 5", r"x\leq 5", "x < 5"), ("1 < x < 3", "1<x<3", "1<x<4"),
    ("x^2+y^2=4", "x^2 + y^2 = 4", "x^2+y^2=9"), (r"f(x)=x+1", "x+1", "x-1"),
    (r"a \ge 1", r"a\geq1", r"a \ge 2"), (r"x<-2\text{ or }x>2", r"x>2 \lor x<-2", r"x>2"),
    ("(2,5)", r"x<5 \text{ and } x>2", r"x>5 \text{ and } x<2"),
    # other bases
    ("25_7", "25_{7}", "26_7"), ("1101_2", "1101_{2}", "1011_2"), (r"2A_{16}", "2A_{16}",
     "2B_{16}"),
    # choices
    (r"\text{(B)}", "B", "(C)"), ("A", "(A)", "B"), ("(D)", "D", "(E)"), (r"\textbf{(C)}", "C",
     "D"),
    (r"\text{E}", "E", "A"),
    # words
    (r"\text{Sunday}", "Sunday", "Monday"), (r"\text{even}", "even", "odd"), ("yes", "Yes", "no"),
    (r"\text{parabola}", "parabola", "circle"), (r"\text{Lena}", "Lena", "Anna"),
    (r"\text{neither}", "neither", "both"), ("True", "true", "False"),
    (r"\text{ellipse}", r"\textbf{ellipse}", r"\text{circle}"), ("No", r"\text{no}", "yes"),
    (r"\text{right triangle}", "right triangle", "left triangle"),
]  # fmt: skip

ENDINGS = [
    r"so we are done: \boxed{{{}}}",
    r"The answer is $\boxed{{{}}}$.",
    "We add both sides.\n\n**Final Answer:**\n\n\\[\n\\boxed{{{}}}\n\\]",
    "**Final Answer**\n\n$$\n\\boxed{{{}}}\n$$\n",
    r"Therefore $3! \times S = \boxed{{{}}}.$",
    r"\[ \text{{Answer: }} \boxed{{{}}} \]",
    r"Hence the result is $\boxed{{{}.}}$",
    r"The final answer is: \boxed{{${}$}}",
    "First I factor.\n\n<answer> ${}$ </answer>",
    "<think>Is it \\boxed{{17}}? The answer is 17.</think>\n\n**Answer:** \\boxed{{{}}}",
    "The final answer is ${}$. I hope it is correct.",
    "Then I add.\n#### {}",
    "**The answer is: \\({}\\)**",
    "### Final Answer\n\n\\[\n{}\n\\]",
    "<answer>\\boxed{{{}}}</answer>",
]


@pytest.fixture(scope="module")
def verifier():
    with Verifier(workers=2, deadline_s=60.0) as verifier:
        yield verifier


def table(verifier, which):
    """[(gold, ending, reason)] for one column of GOLDS in every ending."""
    rows = [(golds, ending) for golds in GOLDS for ending in ENDINGS]
    items = [(ending.format(golds[which]), golds[0], "math") for golds, ending in rows]
    reasons = verifier.score(items).reasons
    return [(golds[0], ending, reason) for (golds, ending), reason in zip(rows, reasons)]


@pytest.mark.days(4)
@pytest.mark.parametrize("which", [0, 1])
def test_a_right_answer_is_right_in_every_ending(which, verifier):
    """A reader that misses a usual ending of right answers turns a working run into a flat line."""
    missed = [row for row in table(verifier, which) if row[2] != "correct"]
    assert len(missed) <= 0.01 * len(GOLDS) * len(ENDINGS), missed


def test_a_wrong_answer_is_wrong_in_every_ending(verifier):
    """None of the 1,500: a policy finds the one spelling that pays."""
    assert [row for row in table(verifier, 2) if row[2] == "correct"] == []

# ------------------------------------------------------------------------------------------------
# Where graders differ: the decisions of answers.py


@pytest.mark.parametrize(
    ("answer", "gold", "right"),
    [
        ("25_8", "25_7", False), ("25", "25_7", True), ("25_{7}", "25_7", True),
        ("25_7", "25", False), (r"1A_{\text{16}}", "1A_{16}", True),
        ("12 km", "12 cm", False), (r"12\text{ km}", r"12\text{ cm}", False), ("12", "12 cm", True),
        (r"1.5 \times 10^3", "1500", True), ("1e3", "1000", True), ("1000", "1e3", True),
        ("12 centimeters", "12 cm", True), ("12 cm", "12", True), ("7 kg", "7 g", False),
        ("3.141593", r"\pi", False), ("3.14159265359", r"\pi", False), (r"\pi", "3.14", False),
        ("0.333333", "1/3", False),
        ("1.41421356", r"\sqrt{2}", False), ("0.5x", r"\frac{x}{2}", True),
        ("x**2+1", "x^2+1", True),
        (r"\frac1{3}", "1/3", True), (r"\frac{1}3", "1/3", True), (r"\frac x{3}", "x/3", True),
        (r"\cfrac{1}{3}", "1/3", True), (r"\cfrac{x}{3}", "x/3", True),
        (r"x\approx11", "11", True), (r"x \approx 11", "11", True), (r"22/7 \approx 3.14", "3.14",
         False),
        (r"7\textnormal{ m}", "7", True), (r"\sqrt{7}\textnormal{ m}", r"\sqrt7", True),
        (r"{\color{blue} x+1}", "x+1", True),
        ("1.5 \u00d7 10^3", "1500", True), ("x \u2248 11", "11", True),
        ("2\u221a3", r"\sqrt{12}", True),
        ("(-\u221e, 5]", r"(-\infty,5]", True), ("12 cm \u2248 4.7 in", "12", True),
        (r"\frac{dy}{dx} = 3x^2", "3x^2", True), (r"\frac{dy}{dx}", r"\frac{dy}{dx}", True),
        ("(1.414214,1)", r"(\sqrt2,1)", False),
        ("(0.1, 1.5)", r"(\frac{1}{10},\frac32)", True), (r"3}$ or $\boxed{5", "3, 5", False),
        ("\u200b7\u2060", "7", True), ("x\u200b+1", "x+1", True), ("\ufeff8", "7", False),
        ("7 * is", "7", False), ("7 or", "7", False), ("7 =", "7", False), ("x+1 is", "x+1", False),
        ("7 -", "7", False), ("** 7 **", "7", True),
        ("50%", "50", True), (r"50\%", "1/2", True), ("12 + 34 - 5", "41", False),
        ("16:20", "4:20 p.m.", True), ("4:20 PM", "16:20", True), ("4:20", "16:20", False),
        ("16:20", "4:20", False), ("42_{10}", "42", True), ("62,5", "62.5", True),
        ("62,5", "62, 5", True), ("3:1", "3", False), ("(B) 54", "C", False),
        ("1 : 250,000", "1:250000", True), ("1/2,500", "1/2500", True), ("1/2, 500", "1/2", False),
    ],
)  # fmt: skip
def test_a_case_where_graders_differ_is_decided_as_written(answer, gold, right):
    """Each of them was once judged by accident."""
    assert (verify(rf"So it is $\boxed{{{answer}}}$.", gold)[0] > 0) == right


@pytest.mark.parametrize("part", [
    "half of 7", "double 7", "twice 7", "square root of 7", "negative 7", "at least 7", "at most 7",
    "7 and a half", "7 squared", "7 factorial", "7 thirds", "7 hundred", "7 thousand", "7 million",
    "half of $7$", r"\text{half of } 7", "no 7"])
def test_a_word_that_changes_the_number_is_not_skipped(part):
    for text in (rf"It is \boxed{{{part}}}.", f"Answer: {part}", f"So we have {part}."):
        assert verify(text, "7")[0] < 0, text
    assert verify("The answer cannot be 7", "7")[0] < 0


@pytest.mark.parametrize("text", [
    "She needs 7 dozen eggs.", "It is not 8, it is 7.", "There are 7 apples, twice as many.",
    "The sum of the roots is 7.",
    "There are 7 and no more."])
def test_a_word_that_changes_no_number_is_skipped(text):
    assert verify(text, "7")[0] > 0


def test_the_letter_at_the_end_of_a_formula_is_no_unit():
    r"""Math-Verify's list of units has t, m and h: 3t^2-4 is right for 3t^2-4t there."""
    for gold, wrong in (("3t^2-4t", "3t^2-4"), ("7m", "7"), ("2x+h", "2x+"), (r"\frac12 abc",
     r"\frac12")):
        assert verify(rf"\boxed{{{gold}}}", gold)[0] > 0 and verify(rf"\boxed{{{wrong}}}",
         gold)[0] < 0
    for unit in (r"\text{ cm}^2", " cm", r"\ cm", " square units", r"\text{ meters}",
     r"\mathrm{ m}"):
        assert verify(rf"\boxed{{2\sqrt{{3}}{unit}}}", r"\sqrt{12}")[0] > 0, unit


# ------------------------------------------------------------------------------------------------
# One answer


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        (r"The answer is $\boxed{(1,2)}$.", "(1,2)"),
        (r"The answer is $3! \times 5! = \boxed{720}$.", "720"),
        (r"The answer is $a! + b! = \boxed{\sqrt2}$.", r"\sqrt{2}"),
        (r"$\boxed{\sqrt2}$. The answer is $\sqrt{2}$.", r"\sqrt{2}"),
        (r"\boxed{\sqrt{2}}, so the answer is then the length of the first side.", r"\sqrt2"),
        (r"$\boxed{3}$ or rather $\boxed{x=3}$", "x=3"),
        ("The answer is $x=3$ or $x=5$.", "3, 5"),
        (r"The answer is $2\sqrt3$, where $x$ is a side.", r"2\sqrt{3}"),
        (r"So the value is $2\sqrt3$.", r"2\sqrt{3}"),
        ("Since $x>0$, the second is larger.\n\n**B**", "B"),
        ("It is ~~41~~ <b>42</b>.", "42"), ("I add.\n### <u>42</u>", "42"),
        ("### Final answer\n\n$x+1$", "x+1"),
        ("<answer>\nThe answer is Sunday.\n</answer>", "Sunday"),
        ("<answer>B</answer>", "(B)"), ("<answer>\nSo it is\n$x\n+1$\n</answer>", "x+1"),
        ("#### x+1", "x+1"),
        ("#### Step 1: add 9\nWe add.\n#### 7", "7"),
        (r"\fbox{x+1}", "x+1"),
        (r"Since the answer is in the form $\frac{m}{n}$, we have $m=5$, $n=7$."
         "\n\n" r"So $m+n=\boxed{12}$.", "12"),
        (r"The answer is of the form $a\sqrt{b}$. So $a+b$ is \boxed{12}", "12"),
        ("She makes 9 * 2 = $18 every day at the farmers' market.", "18"),
        ("Wendi needs 20 cups for the day\u2019s final meal.", "20"),
        ("There are 7 first-graders.", "7"),
        (r"**Answer: (B) $12\pi$**", "B"), ("The correct answer is (B) $x+1$.", r"\text{(B)}"),
        ("The answer is option $B$.", "B"),
        ("The answer is the sum of $x$ and $y$.\n\n" r"\boxed{12}", "12"),
    ],
)  # fmt: skip
def test_one_answer_is_one_answer(text, gold):
    """A declared answer around a box is that box, and a sentence is a sentence."""
    assert verify(text, gold) == (1.0, "correct")


@pytest.mark.parametrize("text", ["Answer: (B), not (A).", "Answer: not (A)", "Answer: (B) or (A)",
                                  "Answer: (B) $A$", "Answer: B (A)", r"Answer: B ($12\pi$), A."])
def test_another_choice_beside_the_right_one_does_not_pay(text):
    assert verify(text, "A")[1] == "wrong"


@pytest.mark.parametrize("other", ["<answer>{}</answer>", "Answer: {}", "The answer is ${}$.",
                                   r"\boxed{{{}}}", "#### {}"])  # fmt: skip
@pytest.mark.parametrize(("right", "wrong"), [("7", "8"), (r"\sqrt{2}", r"\sqrt{3}"), ("B", "C")])
def test_declarations_that_disagree_never_score(other, right, wrong):
    """In both orders, and beside a box."""
    for one, two in ((right, wrong), (wrong, right)):
        for first in (rf"\boxed{{{one}}}", f"Answer: {one}", f"<answer>{one}</answer>"):
            text = f"{first}\n\n{other.format(two)}"
            assert verify(text, right)[1] in ("several answers", "wrong"), text
            if "####" not in other:
                text = f"{other.format(two)}\n\n{first}"
                assert verify(text, right)[1] in ("several answers", "wrong"), text


@pytest.mark.parametrize("end", ["is", " * is", " +", " and", " or", " ="])
@pytest.mark.parametrize(("gold", "lead"), [("7", "The answer is "), ("7", "Answer: "), ("7", ""),
                                            ("7", "so we have "), (r"x+1", "The answer is ")])
def test_an_unfinished_sentence_declares_nothing(gold, lead, end):
    """A policy that stops anywhere must not be paid for the half that happens to be right."""
    assert verify(lead + gold, gold)[0] > 0 and verify(f"{lead}{gold} {end}", gold)[0] < 0
    assert verify(f"{lead}{gold} {end}.", gold)[0] < 0


@pytest.mark.parametrize("lead", ["**Answer:** ", "Answer: ", "**Final Answer:** ", "#### ",
                                  "Answer:\n"])
def test_a_factorial_at_the_end_keeps_its_mark(lead):
    """A formula's "!" was read as the end of the sentence: 5! as 5, which then scored for 5."""
    for end in ("", "\n", "  \nI hope this helps."):
        for answer, gold, wrong in (("5!", "5!", "5"), ("5!", "5! + 0x", "5"), ("k!", "k!", "k"),
                                    (r"2\cdot5!", "240+0x", "10"), ("(n+1)!", "(n+1)!", "n+1")):
            text = f"{lead}{answer}{end if '#' not in lead else ''}"
            assert verify(text, gold)[0] > 0 and verify(text, wrong)[0] < 0, text
            assert verify(rf"\boxed{{{answer}}}", gold)[0] > 0
    for text in (f"{lead}7 apples!", "The answer is 7!", "The answer is 7! Great."):
        assert verify(text, "7")[0] > 0, text
    for text in (f"{lead}7!", rf"\boxed{{7!}}"):
        assert verify(text, "7")[0] < 0, text


# ------------------------------------------------------------------------------------------------
# Repeating the question

QUESTIONS = [
    (r"Simplify $\sqrt{242}$.", r"11\sqrt{2}", [r"\sqrt{242}", r" \sqrt {242} ", r"\sqrt{242}.",
     r"x=\sqrt{242}", r"\sqrt{242}=\sqrt{242}", r"(\sqrt{242})", r"\displaystyle\sqrt{242}",
     r"\sqrt{242}\text{ units}", r"x = \left(\sqrt{242}\right)\text{ cm}^2"]),
    (r"Simplify $\frac{x^2+x}{x}$.", "x+1", [r"\dfrac{x^2+x}{x}", r"\tfrac{x^2+x}x"]),
    (r"Expand $(x+1)(x - 2)$.", "x^2-x-2", ["(x+1)(x-2)", r"\left(x+1\right)(x-2)",
     "$(x+1)(x-2)$"]),
    (r"Evaluate \[\int_0^1 \pi x\,dx.\]", r"\frac{\pi}{2}", [r"\int_0^1 \pi x\,dx",
                                                          r"\int_{0}^{1} \pi x dx"]),
    (r"Compute $\sum_{k=1}^n k$.", r"\frac{n(n+1)}{2}", [r"\sum_{k=1}^n k", r"\sum_{j=1}^{n} j"]),
    (r"Find $\lim_{x\to0} \frac{\sin ax}{x}$", "a", [r"\lim_{x\to 0} \frac{\sin(ax)}{x}"]),
    ("Find the derivative of $x^3$.", "3x^2", [r"\frac{d}{dx} x^3", r"\frac{d}{dx}(x^3)",
     r"\dfrac{d}{dx}(x^3)", r"\frac{\mathrm{d}}{\mathrm{d}x}(x^3)", r"\frac d{dx}(x^3)",
     r"\frac{d(x^3)}{dx}", r"\frac{\partial}{\partial x}(x^3)", r"f'(x) = \frac{d(x^3)}{dx}"]),
    ("Compute 2^{10}.", "1024", ["2^{10}", "4^5"]),
    (r"What is $f(x) = \frac{x^2-1}{x-1}$ for $x \ne 1$?", "x+1", [r"\frac{x^2-1}{x-1}"]),
]


@pytest.mark.parametrize(("question", "gold", "repeated"), QUESTIONS)
def test_boxing_the_question_does_not_pay(question, gold, repeated):
    r"""Math-Verify finds \sqrt{242} equal to 11\sqrt{2}: one of ten needs no thought."""
    for part in repeated:
        assert verify(rf"\boxed{{{part}}}", gold, question=question)[0] < 0, part
    assert verify(rf"\boxed{{{gold}}}", gold, question=question)[0] > 0


def test_an_answer_that_the_question_offers_is_an_answer():
    """"Which is greater" has its answer in the question."""
    question = r"Which is greater, $\sqrt2$ or $\sqrt3$?"
    assert verify(r"\boxed{\sqrt{3}}", r"\sqrt3", question=question)[0] > 0
    assert verify(r"\boxed{\sqrt{2}}", r"\sqrt3", question=question)[0] < 0
    for question, gold, answer in (
            ("Solve $|x-2|=1$.", "x=1, x=3", "x=3, x=1"),
            ("The radius is $4$.", "x^2+y^2=4", "y^2+x^2=4"), ("Is $x$ real?", "(x, 2)", "(x,2)")):
        assert verify(rf"\boxed{{{answer}}}", gold, question=question)[0] > 0, answer
    gold = r"\sum_{k=1}^n k^2"
    assert verify(rf"\boxed{{{gold}}}", gold, question="As a sum?")[0] > 0


# ------------------------------------------------------------------------------------------------
# Forms of answers: gold answer, question, texts that are right, and wrong ones beside them


def judge(gold, question, right, wrong):
    """The oracle is a person. Each form and its neighbors go through `verify`."""
    assert [text for text in right if verify(text, gold, question=question)[0] < 0] == []
    assert [text for text in wrong if verify(text, gold, question=question)[0] > 0] == []


@pytest.mark.parametrize(("gold", "question", "right", "wrong"), [
    (r"60 \mathrm{~km} / \mathrm{h}", "", [r"\boxed{v = 60\text{ km/h}}",
      "So the speed is **60 kilometers per hour**.", r"\boxed{60}"],
     [r"\boxed{60\text{ m/s}}", r"\boxed{60\text{ km}}", r"\boxed{60\text{ m/h}}",
      "**60 kilometers per minute**"]),
    (r"5 \mathrm{~m} / \mathrm{s}", "", [r"\boxed{5\text{ m/s}}", "5 meters per second"],
     [r"\boxed{5\text{ m}}"]),
    (r"10 \mathrm{~g} / \mathrm{cm}^{3}", "", [r"\boxed{10\ \text{g/cm}^3}"],
     [r"\boxed{10\ \text{g/cm}^2}"]),
    (r"9.8 \mathrm{~m} / \mathrm{s}^2", "", [r"\boxed{9.8\text{ m/s}^2}"],
     [r"\boxed{9.8\text{ m/s}}"]),
    (r"9.8 \mathrm{~m} / \mathrm{s}^{2}", "", ["The answer is 9.8 m/s^2."], []),
    ("60 km/h", "", [r"\boxed{60 km/h}"], []),
])  # fmt: skip
def test_a_unit_that_is_a_quotient_is_one_unit(gold, question, right, wrong):
    """OpenR1's usual gold answer of a speed was an hour: right speeds were refused."""
    judge(gold, question, right, wrong)


@pytest.mark.parametrize(("gold", "question", "right", "wrong"), [
    ("B", "", ["**Final Answer: B**\n\n---\n\n*Let me know if you'd like more!*",
      "**B**\n\n---\n\nLet me know!"], [
      "**Final Answer: C**\n\n---\n\n*Let me know if you'd like more!*"]),
    ("42", "", ["**Answer:** 42\n\n---", "**Answer:** 42\n\n---\n\nThis was fun.",
      "**Answer:** 42\n\n1. check", "**Answer:** 42\n\n- Check: 40 + 2 = 42",
      "The total is **42** apples.\n\n***\n\nLet me know if you'd like more!"],
     ["Answer: 42\n43", "Answer: 42\n- 1", "Answer: 42\n-1", "Answer: 42\n+ 1",
      "**Answer:** 43\n\n---"]),
])  # fmt: skip
def test_a_rule_or_a_list_in_the_next_lines_ends_an_answer(gold, question, right, wrong):
    """Chat models close with a rule and an offer; two numbers are still two answers."""
    judge(gold, question, right, wrong)


@pytest.mark.parametrize(("gold", "question", "right", "wrong"), [
    ("Yes", "", ["**Yes**, such a configuration exists.", "Yes, it is possible",
      "**Answer:** Yes, it is possible."], ["**No**, such a configuration does not exist.",
      "Yes and no.", "Yes, no.", "Yes. Wait, no.", "Yes or no."]),
    (r"\text{No}", "", ["**No**, it is not possible.", r"\boxed{\text{No, it is not possible}}"],
     ["**Yes**, it is possible.", r"\boxed{\text{Yes, it is}}"]),
    ("No", "", ["Answer: No, it is not possible."], ["It is possible, yes or no.",
      "No solution is known.", "Nobody knows"]),
    ("possible", "", ["Yes, it is possible."], []),
    ("Alice", "", ["Alice wins.", "So **Alice** wins.", "Alice always wins the game."],
     ["So Bob wins.", "Alice does not win.", "Alice loses, Bob wins.", "Alice or Bob wins.",
      "Alice never wins.", "Not Alice wins."]),
])  # fmt: skip
def test_yes_no_and_a_name_are_read_from_a_sentence(gold, question, right, wrong):
    """"Yes, it is possible" was read as "possible"."""
    judge(gold, question, right, wrong)


@pytest.mark.parametrize(("gold", "question", "right", "wrong"), [
    ("45", "", ["John is **45 miles** from home at the end of those 4 hours."],
     ["John is **4 miles** from home after 45 hours.", "It is **45**, no, 46.",
      "It is not **45** but 46.", "**45**, wait, 46", "It is at least **45** in grade 4.",
      "x > **45** for 4 people", "**45** miles and **46** miles",
      "It is **-45** degrees at 4 in the morning."]),
    ("42", "", ["There are **42** students in grade 5."], [
      "There are **5** students in grade 42."]),
    ("80", "", ["The price drops by **20%**, so it is 80."], ["It is **80%**, so it was 20."]),
    ("3", "", ["Answer: (3 apples)"], ["Answer: (3 apples or 4)"]),
    ("160", "", ["**Answer:** 160 minutes (2 hours and 40 minutes)."],
     ["**Answer:** 160 minutes (or 161 minutes)."]),
    (r"\frac14", "", ["The probability is **1/4** (or 25%)."],
     ["The probability is **1/3** (or 25%)."]),
    ("7", "", ["He has **3** red and **4** blue, so **7** in total."],
     ["**6** or **7**", "**6**, **7**"]),
    ("6", "", [], ["**6** or **7**", "**6** (or 7)", "**6**, or 7", "**6** and 7"]),
    ("5.5", "", [r"The amount is $5\frac{1}{2}$ gallons, i.e. **5.5 gallons**."], []),
    ("15", "", ["The price is **$5** each. So for 3 he pays 15."], []),
    ("5", "", [], ["The price is **$5** each. So for 3 he pays 15."]),
    ("-45", "", ["It is **-45** degrees at 4 in the morning."], []),
    ("1, 3, 7", "", ["Therefore the only possible values are **n = 1, 3, and 7**."],
     ["Therefore the only possible values are **n = 1, 3, and 8**.",
      "The values are not **1, 3, 7**.", "The values are **1, 3, 7** or 8."]),
    ("2x - y = 5", "", ["The line is **y = 2x − 5**."], ["The line is **y = 2x + 5**."]),
    ("x=4, y=-1", "", ["The solution is **(x, y) = (4, −1)**."],
     ["The solution is **(x, y) = (-1, 4)**."]),
    (r"25\pi", "", ["The area is **25π** square units."], ["The area is **24π** square units."]),
    (r"\text{odd}", "", ["The function is **odd**.", "The **function** is odd."],
     ["The function is not **odd**.", "It is **odd** or even."]),
    ("x>2", "", [], ["It is **x > 2** and x < 5."]),
    ("(2,3)", "", ["$y=(x-2)^2+3$, so the vertex is at **(2, 3)**."],
     ["$y=(x-2)^2+3$, so the vertex is at **(3, 2)**."]),
    (r"\text{Carla}", "", ["**Carla** is the tallest."], ["**Dan** is the tallest."]),
    (r"\{2,3\}", "", ["$(x-2)(x-3)=0$. The solutions are **x = 2** and **x = 3**."],
     ["$(x-2)(x-3)=0$. The solutions are **x = 2** and **x = 4**.", "It is **x = 2** or not."]),
    ("a=3, b=-2", "", ["It is $3x-2$. We get **a = 3** and **b = −2**."],
     ["It is $3x-2$. We get **a = -2** and **b = 3**."]),
    (r"\text{False}", "", ["It is **false**: $|x|$ has a corner."], ["It is **true**: a corner."]),
    ("2", "Which is the only even prime?", [], ["2 is even. So **there is no such number**."]),
])  # fmt: skip
def test_what_alone_is_bold_in_the_last_sentence_is_the_answer(gold, question, right, wrong):
    """A number behind it was taken instead. Two bold ones are none, and a "not" counts."""
    judge(gold, question, right, wrong)


@pytest.mark.parametrize(("gold", "question", "right", "wrong"), [
    (r"\begin{pmatrix}1&-1\\-1&2\end{pmatrix}",
     r"Find the inverse of $\begin{pmatrix}2&1\\1&1\end{pmatrix}$.",
     [r"The determinant is $1$, hence $A^{-1}=\begin{pmatrix}1&-1\\-1&2\end{pmatrix}$.",
      r"\boxed{\begin{pmatrix}1&-1\\-1&2\end{pmatrix}}"],
     [r"It is $\begin{pmatrix}1&-1\\-1&2\end{pmatrix}$, so "
      r"$A=\begin{pmatrix}2&1\\1&1\end{pmatrix}$"]),
    (r"4\sqrt{3}", "", [r"It is $\sqrt{48}$, so its length is $4\sqrt{3}\approx 6.93$."],
     [r"It is $4\sqrt{3}$, so its length is $4\sqrt{2}$."]),
    (r"\frac{n(n+1)}{2}", "", [r"The formula is $\sum_{k=1}^n k=\dfrac{n(n+1)}{2}$."],
     [r"The formula is $\sum_{k=1}^n k$."]),
    (r"\text{No}", "Is 91 prime?", [r"No. We have $91=7\cdot 13$."], [r"Yes. $91=91$."]),
    ("x+3", r"Simplify $\frac{x^2-9}{x-3}$.", [r"\boxed{3+x}"],
     [r"\boxed{\dfrac{(x-3)(x+3)}{x-3}}"]),
    ("1,3", r"Find the eigenvalues of $\begin{pmatrix}2&1\\1&2\end{pmatrix}$.", [r"\boxed{3, 1}"],
     [r"\boxed{3, 2}"]),
    ("ACD", "", ["The correct options are **A, C, D**."], ["The correct options are **A, D**."]),
])  # fmt: skip
def test_the_formula_that_a_sentence_comes_to_is_the_answer(gold, question, right, wrong):
    """All formulas of the last line were one list. A matrix in the question was an error."""
    judge(gold, question, right, wrong)


@pytest.mark.parametrize(("gold", "question", "right", "wrong"), [
    ("C", "", ["So the answer is option (c).", "The answer is (c)", r"\boxed{(c)}"],
     ["So the answer is option (b).", "It is not option (c).", "It is not option C.",
      r"\boxed{c}", "Option (b) or (c)"]),
    ("BD", "", [r"\boxed{B, D}", r"\boxed{D, B}", r"\boxed{\text{B and D}}"],
     [r"\boxed{A, B, D}", r"\boxed{B}", r"\boxed{B, C}"]),
    ("B, D", "", [r"\boxed{BD}"], []),
    ("A, C", "", [r"\boxed{A, C}", r"\boxed{AC}"], [r"\boxed{C}"]),
    ("AC", "", ["The answer is A and C."], []),
    ("A", "", [], [r"\boxed{A, C}", "It is **B**, not A."]),
    ("B", "", ["Therefore **B** is the one."], []),
])  # fmt: skip
def test_choices_are_read_as_letters_in_any_order(gold, question, right, wrong):
    """Of several, too; B, D and BD are no products. A small letter is one in brackets only."""
    judge(gold, question, right, wrong)


CHOICES = (r"$\textbf{(A)}\ -3\qquad\textbf{(B)}\ \sqrt{2}\qquad\textbf{(C)}\ 9\qquad"
           r"\textbf{(D)}\ 11\qquad\textbf{(E)}\ \text{none of these}$")


@pytest.mark.parametrize("question", ["", f"What is it?\n{CHOICES}"])
@pytest.mark.parametrize(("letter", "value", "golds"), [
    ("C", "9", [r"\textbf{(C) }9", r"\textbf{(C)}\ 9", r"\text{(C) } 9", r"(\text{C}) 9", "(C)9"]),
    ("A", "-3", [r"\textbf{(A)}\ -3", r"\mathrm{(A)}~-3", r"\textbf{(A)} -3"]),
    ("B", r"\sqrt{2}", [r"\textbf{(B)}\ \sqrt{2}", r"\mathrm{(B) \ } \sqrt{2}"]),
    ("D", "(3, 4)", [r"\textbf{(D)}\ (3,4)", "(D) (3, 4)"]),
    ("C", "6 hours", [r"\textbf{(C)}\ 6\text{ hours}", "(C) 6 hours"]),
    ("B", "12 minutes", [r"\textbf{(B)}\ 12\text{ minutes}"])])
def test_a_gold_answer_with_letter_and_value_takes_either(question, letter, value, golds):
    r"""So AMC's are written in NuminaMath: the gold answer of \boxed{\textbf{(C) }9}. The
    letter was refused where the value is a number, and the value where it is a formula."""
    for gold in golds:
        for text in (gold, letter, f"({letter})", rf"\textbf{{({letter})}}", f"({letter}) {value}",
                     value):
            assert verify(rf"\boxed{{{text}}}", gold, "math", question)[0] > 0, (gold, text)
        other = "E" if letter != "E" else "A"
        for text in (other, "11", f"({other}) {value}", f"({letter}) 11", f"{letter}, {other}"):
            assert verify(rf"\boxed{{{text}}}", gold, "math", question)[0] < 0, (gold, text)


def test_choices_in_latex_are_choices():
    for gold, right, wrong in (("C", "9", "11"), ("9", "C", "D"), ("B", r"\sqrt{2}", "9"),
                               ("E", r"\text{none of these}", "9")):
        for text in (right, wrong):
            assert (verify(rf"\boxed{{{text}}}", gold, "math", CHOICES)[0] > 0) == (text == right)


def test_several_choices_and_events_in_brackets_are_no_choice_with_its_value():
    """Each was right as it is written, and must stay so; one letter of two is not."""
    for gold in ("(A) and (C)", r"(A) \cup (B)", "(A, B)", "(A) 3, (B) 5", "(A)+(B)",
                 r"(A)\setminus(B)"):
        assert verify(r"\boxed{A}", gold)[0] < 0, gold
        assert verify(rf"\boxed{{{gold}}}", gold)[0] > 0, gold
    assert verify(r"\boxed{(A)'}", "(A)'")[0] > 0


@pytest.mark.parametrize("gold", [r"\textbf{(E)}\ \text{none of these}", "(E) none of these",
                                  r"(E) \text{I and II only}", r"(E) \text{Both A and B}"])
def test_of_a_choice_in_words_the_letter_is_right(gold):
    for text, right in ((gold, True), ("E", True), ("(E)", True), ("D", False), ("A", False)):
        assert (verify(rf"\boxed{{{text}}}", gold)[0] > 0) == right, text


@pytest.mark.parametrize(("gold", "question", "right", "wrong"), [
    (r"\begin{pmatrix} -6/13 \\ 9/13 \end{pmatrix}", "", [
      r"$\boxed{\begin{bmatrix} -\frac{6}{13} \\[4pt] \frac{9}{13} \end{bmatrix}}$"],
     [r"$\boxed{\begin{bmatrix} -\frac{6}{13} \\[4pt] \frac{8}{13} \end{bmatrix}}$"]),
    (r"\begin{pmatrix} 0 & -1 \\ 1 & 0 \end{pmatrix}", "", [
      r"\boxed{\begin{pmatrix} 0 & -1 \\[4pt] 1 & 0 \end{pmatrix}}"], []),
    ("March 14", "", ["It was on **March 14th**.", "The party is on March 14."],
     ["It was on **March 15th**.", "It was on **May 14th**.", "It was not on March 14.",
      "It was on March 14 or 15.", "It was on March 15 and on March 14."]),
    (r"\{2,4\}", "", [r"\boxed{A\cap B = \{2,4\}}"], [r"\boxed{A\cap B = \{2,5\}}"]),
    ("[-1,3)", "", [r"\boxed{A\cup B=[-1,3)}"], []),
    ("699", "", [r"\boxed{\mathtt{699}}", r"\boxed{\mathsf{699}}"],
     [r"\boxed{\mathtt{698}}"]),
])  # fmt: skip
def test_a_matrix_a_date_a_set_and_a_typewriter_are_read(gold, question, right, wrong):
    """Spellings that a person would not notice."""
    judge(gold, question, right, wrong)


@pytest.mark.parametrize(("gold", "question", "right", "wrong"), [
    ("3", "How many yards of rope does he need?", ["He needs **3 yards** of rope.",
      "He needs **3** pieces of rope."], ["He needs **3 feet** of rope.",
      "He needs 3 feet of rope."]),
    ("5", "How many minutes does he take?", ["He takes 5 minutes in all.", "He takes 5 in all."],
     []),
    ("15", "How many cents does he have?", ["He has **15 cents**.", "He has **15**.",
      "He has $15$."], ["He has **$15**.", "He has $15."]),
    ("15", "How many dollars does he have?", ["He has **$15**."], []),
    (r"60^\circ", "", [r"The angle is $\boxed{60}$ degrees."],
     [r"The angle is $\boxed{60}$ radians."]),
    ("12", "How many feet of rope?", [r"\boxed{12} in 4 days"], []),
    ("3", "How many yards?", [], [r"\boxed{3} feet"]),
    ("30", "He rides 10 km an hour for 3 hours. How many km does he ride?",
     ["He rides **30 km**.", "He rides 30 km (18.6 miles)."], ["He rides **30 km/h**."]),
    ("30", "How many km does he ride per hour?", ["He rides 30 km per hour."], []),
    ("36", "What is its area in square centimeters?", ["It is 36 cm²."], ["It is 36 cm³.",
      r"\boxed{36\text{ m}^2}"]),
    ("20", "By what percent is it reduced?", ["By 20%.", "By 20."], ["By $20."]),
    ("18", "How many dollars?", ["$18"], ["€18", "£18"]),
    ("12", "Find the distance in km.", [r"\boxed{12\text{ km}}"],
     [r"\boxed{12\text{ km}^2}"]),
    ("12", "Find the area in km^2.", [r"\boxed{12\text{ km}^2}"], []),
    ("12", "Find the area in cm squared.", [r"\boxed{12\text{ cm}^2}"], []),
    ("12", "The sides are given in meters. Find the volume.", [r"\boxed{12\text{ m}^3}"], []),
    ("12", "Find the speed in kilometers per hour.", [r"\boxed{12\text{ km/h}}"], []),
    ("20", "What is the temperature in degrees Celsius?", ["The temperature is **20°C**.",
      "The temperature is **20°**.", "It is 20 degrees Celsius."],
     ["The temperature is **20°F**.", "It is 20 degrees Fahrenheit."]),
    (r"20^\circ C", "?", [r"\boxed{20^\circ\text{C}}"], [r"\boxed{20^\circ\text{F}}"]),
    ("60", "Find the angle in degrees.", [r"\boxed{60^\circ}"], []),
    (r"12\text{ cm}", "", [r"\boxed{12} cm."], [r"\boxed{12} km is the way."]),
    (r"12\text{ square feet}", "", [r"\boxed{12} square feet."], []),
    (r"12\text{ km/h}", "", [r"It is \boxed{12} kilometers per hour"], []),
])  # fmt: skip
def test_another_unit_than_asked_does_not_pay(gold, question, right, wrong):
    """It stood before a word, a dollar sign or behind the box, and was not looked at."""
    judge(gold, question, right, wrong)


@pytest.mark.parametrize(("gold", "question", "right", "wrong"), [
    (r"\frac23", r"Simplify $\frac{12}{18}$.", [r"\boxed{\frac{2}{3}}",
      r"\boxed{\frac{12}{18} = \frac{2}{3}}"], [r"\boxed{\frac{12}{18}}",
      r"\boxed{\frac{4}{6}}"]),
    ("2:3", "What is the ratio in simplest form?", ["2:3"], ["8:12", r"$$\boxed{8:12}$$"]),
    (r"\frac12", "What share is the simple interest?", [r"\boxed{\frac24}"], [r"\boxed{\frac25}"]),
    ("2:3", "What is the ratio?", ["8:12"], []),
    (r"\frac23", "What part is it?", [r"\boxed{\frac{12}{18}}"], []),
    ("7", "Simplify.", [], [r"\boxed{\frac{14}{2}}"]),
    (r"\frac72", "Simplify.", [r"\boxed{3\frac12}"], [r"\boxed{3\frac24}"]),
    (r"\frac12", "Simplify.", [r"\boxed{0.5}"], []),
])  # fmt: skip
def test_a_fraction_to_simplify_is_in_lowest_terms(gold, question, right, wrong):
    """Else the question itself is paid."""
    judge(gold, question, right, wrong)


@pytest.mark.parametrize(("gold", "question", "right", "wrong"), [
    ("12", "", [r"It is not 5, it is \boxed{12}.", r"It is not zero, so it is \boxed{12}.",
      "-3 is not a solution, so x = 12"], [r"It is definitely not \boxed{12}.",
      r"It isn't $\boxed{12}$.", r"It is not equal to $\boxed{12}$", "12 is not the answer",
      "12 is not correct", "12 is not the right answer.", "The wrong answer is 12",
      "Go to step 12"]),
    ("11", "", ["He has to wait 11 minutes.", "He has 11 minutes to wait.",
      "Wait, no, it is 11."], ["Let me check n = 11. Hmm, wait, that"]),
    ("5", "", ["The number that he needs is 5."], [
      "Next we calculate 45 / 9 = 5, then we need to add", "45 / 9 = 5, then we need to add"]),
    ("8", "", ["45 / 9 = 5, then we need to add 3 to get 8"], []),
    ("13", "", ["The wrong answer is 12. The correct answer is 13."], []),
    ("12", "At which step?", ["He stops at step 12."], []),
])  # fmt: skip
def test_a_text_that_takes_its_number_back_or_breaks_off_does_not_pay(gold, question, right, wrong):
    """The last number is an answer only if the sentence says so."""
    judge(gold, question, right, wrong)


@pytest.mark.parametrize(("gold", "question", "right", "wrong"), [
    ("(2,3)", "", ["Setting x = 2 gives y = 3, so they meet at (2, 3).", "So x = 2 and y = 3.",
      "They meet at (2, 3), since both are lines.", "It holds. They meet at $(2,3)$. We are done.",
      "They meet at (2, 3), not (3, 2)."],
     ["They meet at (3, 2), not (2, 3).", "Is it (2, 3)?",
      "They meet at (2, 3) or (3, 2).", "Suppose they meet at (2, 3).", "Either (2, 3), I think.",
      "They meet at (2, 3). But this is wrong.", "It is (2, 3), and then (3, 2)."]),
    (r"\{2,3\}", "", ["The roots are 2 and 3.", "So x = 2 or x = 3.", "It is {2, 3}."],
     ["The roots are 2, 3 and 4.", "The roots are 2 and 4, so 3.", "There are 2 of them, 3."]),
    ("x^2+1", "", ["It equals x(x + 1) − x + 1 = x² + 1.", "The result is x² + 1 ≈ x²."],
     ["It equals x² + 1 = x² + 2.", "x² + 1 is where we began, and x² + 2 is the result.",
      "It is x² + 1 + x."]),
    ("y=2x+1", "", ["The line is y = 2x + 1.", "The line is **y = 2x + 1**."],
     ["The line is x = 2y + 1.", "The line is y = 2x + 1 for x > 0, else y = 0."]),
    (r"\text{no solution}", "", ["So the equation has no real solutions.", "There is no solution."],
     ["It is not true that there is no solution.", "There is a solution.", "The solution is 0."]),
    ("15", "How many primes are below 50?", ["So there are 15 primes below 50."],
     ["So there are 14 primes below 50.", "There are 15 primes below 40."]),
    ("4:20", "", ["2:50 plus 90 minutes is 4:20."], ["4:20 plus 90 minutes is 5:50.",
      "It ends at 4:20 or 5:20."]),
    (r"\sqrt{2}", "", ["It is $\\sqrt{2}$."], ["It is \ue000.", "It is \ue000\ue001$x$."]),
])  # fmt: skip
def test_of_a_last_sentence_the_last_stretch_without_words_is_the_answer(
        gold, question, right, wrong):
    """Whole sentences went to Math-Verify, which took a number or nothing from them."""
    judge(gold, question, right, wrong)


@pytest.mark.parametrize(("gold", "question", "right", "wrong"), [
    ("x^2+3x+2", "Expand (x+1)(x+2).", [r"\boxed{x^2+3x+2}"],
     [r"\boxed{(x+1)(x+2)}"]),
    ("(x+1)(x+2)", "Factor x^2+3x+2.", [r"\boxed{(x+2)(x+1)}"],
     [r"\boxed{x^2+3x+2}"]),
    ("(x+1)(x+2)", "Factor the polynomial x² + 3x + 2 completely.", [],
     [r"\boxed{x^2+3x+2}"]),
    ("5x", "Simplify 2x+3x.", [r"\boxed{5x}"], [r"\boxed{2x+3x}"]),
    ("x+3", "A side is x + 3 and b is a 5-year plan. Which side?", [r"\boxed{x+3}"], []),
    (r"(-\infty,2)\cup(3,\infty)", "Solve x^2 - 5x + 6 > 0.", [],
     [r"\boxed{x^2-5x+6>0}"]),
    ("2x+2", "A has x+1 and b has 2.", [r"\boxed{2(x+1)}"], []),
])  # fmt: skip
def test_a_formula_of_the_question_in_prose_is_a_formula(gold, question, right, wrong):
    """"Expand (x+1)(x+2)." without dollar signs paid (x+1)(x+2)."""
    judge(gold, question, right, wrong)


# ------------------------------------------------------------------------------------------------
# Answers labelled by hand, and texts that look for the reward

FOLDER = ROOT / "bench" / "answers"


@pytest.mark.days(4)
@pytest.mark.parametrize("part", ["right_mend", "wrong_mend", "hack_mend", "hack_paid"])
def test_labelled_answers_are_judged_as_a_person_does(part, verifier):
    """At most 1% of right ones refused, no wrong one paid. The labels came first. What is set aside
    is judged by bench/verify.py alone: a test would look at it every day."""
    rows = [json.loads(line) for line in (FOLDER / f"{part}.jsonl").read_text().splitlines()]
    rows += [row for kind, *row in runpy.run_path(FOLDER / "coin.py")["halves"]()[0]
             if part.startswith(kind)]  # of the third set
    rewards = verifier.score([(text, gold, "math", question)
                              for _, gold, text, question, *_ in rows]).rewards
    right = part.startswith("right")
    wrong = [row for row, reward in zip(rows, rewards) if (reward > 0) != right]
    assert len(wrong) <= 0.01 * len(rows) * right, wrong


@pytest.mark.parametrize(("text", "gold", "question", "right"), [
    (r"\frac{1}{3}\pi r^2", r"\frac{1}{3}\pi r^2 h", "the volume of a cone", False),
    (r"\frac{\pi r^2 h}{3}", r"\frac{1}{3}\pi r^2 h", "the volume of a cone", True),
    (r"\frac{\sqrt{3}}{4}", r"\frac{\sqrt{3}}{4} s^2", "a triangle of side s", False),
    (r"\frac{s^2\sqrt{3}}{4}", r"\frac{\sqrt{3}}{4} s^2", "a triangle of side s", True),
    (r"\sqrt{2}\,s", r"s\sqrt{2}", "A square has side $s$.", True),
    (r"\sqrt{2}\,s", r"\sqrt{2}", "How long does it take, in seconds?", True),
    (r"2\pi m^2", r"2\pi", "What is the area in square meters?", True)])
def test_a_variable_at_the_end_of_a_formula_is_no_unit(text, gold, question, right):
    """The h of \\pi r^2 h was taken for an hour, and a cone without its height was paid."""
    assert (verify(rf"\boxed{{{text}}}", gold, "math", question)[0] > 0) == right


def test_letters_in_another_order_than_the_one_asked_for_are_wrong():
    """For Math-Verify A, B, C is a set."""
    question = "List the parcels from lightest to heaviest."
    for text, right in (("B, A, C", True), ("A, B, C", False)):
        assert (verify(rf"\boxed{{{text}}}", "B, A, C", "math", question)[0] > 0) == right


@pytest.mark.days(4)
@pytest.mark.parametrize(("part", "refused", "paid"), [
    ("fourth", 6, 0), ("fifth", 6, 0), ("sixth", 1, 1), ("seventh", 0, 0),
    ("eighth", 10, 1), ("ninth", 0, 0), ("tenth", 2, 0), ("eleventh", 2, 0),
    ("twelfth", 2, 0), ("thirteenth", 3, 1), ("fourteenth", 3, 0),
    ("sentences", 18, 2), ("fifteenth", 100, 27), ("sixteenth", 17, 0),
    ("seventeenth", 10, 0), ("eighteenth", 19, 0), ("nineteenth", 6, 0),
    ("twentieth", 9, 1), ("twentyfirst", 0, 0), ("twentysecond", 3, 0),
    ("twentythird", 4, 0), ("twentyfourth", 4, 0), ("twentyfifth", 4, 1),
    ("twentysixth", 6, 3), ("twentyseventh", 0, 0),
    ("twentyeighth", 2, 0), ("twentyninth", 7, 1), ("thirtieth", 29, 1), ("thirtyfirst", 26, 1),
    ("thirtysecond", 19, 2), ("thirtythird", 29, 0),
    ("borders", 884, 604),
    ("review", 396, 46), ("notation", 506, 51)])
def test_sets_that_others_wrote_are_judged_as_the_page_says(part, refused, paid, verifier):
    """bench/answers/README.md: as it is after mending."""
    rows = [json.loads(line) for line in (FOLDER / f"{part}.jsonl").read_text().splitlines()]
    rewards = verifier.score([(text, gold, "math", question)
                              for _, _, gold, text, question in rows]).rewards
    bad = [(row[0], row[3]) for row, r in zip(rows, rewards) if (r > 0) != (row[0] == "right")]
    counts = [sum(label == kind for label, _ in bad) for kind in ("right", "wrong")]
    assert counts == [refused, paid], bad
    page = (FOLDER / "README.md").read_text()
    assert re.search(rf"(?m)^\| {part}\b.* \| {refused}, {paid} \|$", page)


@pytest.mark.days(4)
@pytest.mark.parametrize(("writer", "refused", "paid"), [
    ("first", 765, 11), ("second", 191, 1)])
def test_classes_of_notation_are_judged_as_the_page_says(writer, refused, paid, verifier):
    """Each notation of an answer against each other one as the gold answer: when the first 120
    classes were new, 1,698 of 8,626 pairs were refused, and some ended the worker."""
    rows = runpy.run_path(ROOT / "bench" / "verify.py")["pairs"]()[writer]
    rewards = verifier.score([(text, gold, "math", q) for _, gold, text, q in rows]).rewards
    counts = [sum(row[0] == kind and (r > 0) != (kind == "right") for row, r in zip(rows, rewards))
              for kind in ("right", "wrong")]
    assert counts == [refused, paid]
    page = (FOLDER / "README.md").read_text()
    assert re.search(rf"(?m)^\| {writer} writer\b.* \| {refused:,}, {paid} \|$", page)


def test_an_answer_gets_the_same_reward_in_every_frame(verifier):
    """A frame is a way to end. Of 3,945 right answers 1,686 were refused in one of 27: an interval
    with a point behind it in a box, a time in a formula; $6 = 5$ was paid, \\boxed{6 = 5} not."""
    boxed = runpy.run_path(ROOT / "bench" / "verify.py")["boxed"]
    rows = [row for row in boxed(FOLDER / f"{part}.jsonl" for part in (
        "thirteenth", "twentysecond", "twentythird", "wrong_mend"))
            if not re.search(r"(?i)[a-z]{3}\.\s*\}", row[1])]
    frames = [frame for writer, _, frame in map(
        json.loads, (FOLDER / "frames.jsonl").read_text().splitlines()) if writer == "ours"]
    items = [(frame.format(part), gold, "math", question)
             for gold, part, question in random.sample(rows, 60)
             for frame in (r"\boxed{{{}}}", *frames)]
    n = 1 + len(frames)
    rewards = verifier.score(items).rewards
    bad = [items[i] for i in range(len(items)) if rewards[i] != rewards[i - i % n]]
    assert not bad, bad[:5]


@pytest.mark.parametrize(("answer", "gold", "reason"), [
    ("9^{9^{9}}", "x^2", "wrong"), ("{9}^{{9}^{{9}^{9}}}", "x^2", "wrong"),
    ("2^{100000} + x", "x^2", "wrong"), ("12345!+x", "x", "wrong"),
    ("x^{2^3}", "x^8", "correct"), ("10^{2^{2^{9}}}+x", "x^2", "wrong"),
    ("(x+y+z)^{2^{9}}", "x^2", "wrong"), ("x^{2^{4}!}", "x^2", "wrong"),
    ("(x+y+z+w+1)^{714}", "x^2", "wrong"), (r"9^{512\cdot 9999999}+x", "x^2", "wrong"),
    ("(a+b-c)^{31}", "x^2", "wrong"), ("(x+1)^{30}", "(1+x)^{30}", "correct"),
    ("(x+y+1)^{200}", "(x+y+1)^{200}", "correct"), ("(2-1/2)^{100}", "1.5^{100}", "correct"),
    ("2^{2023}-1", "2^{2023}-1", "correct"), ("10^{100000}", "10^{100000}", "correct"),
    ("18x^{17}+43x^{16}+92x > 57", r"\{-2, 3\}", "wrong"), (r"5 \le 3x^7+2x^6", "x > 1", "wrong"),
    ("(x-396y)^{83}(x-707y)^{86}", "3+5i", "wrong"), (r"\sin(\sin(\sin(z)))", "x", "wrong"),
    ("3 1 " * 12, "x", "wrong"), ("{{{{{{7}}}}}}", "x", "wrong"), ("t^{t^{t^{t^t}}}", "x", "wrong"),
    ("-+" * 6 + "x", "x", "wrong"), ("1," * 50 + "x", "x", "wrong"),
    ("x^7 > 3x^6", "x^7 > 3x^6", "correct"), ("x > 10^6", "(10^6, \\infty)", "correct"),
    (r"\ln(\ln(x))", r"\ln(\ln x)", "correct"), ("((((x+1))))", "x+1", "correct")])
def test_what_would_take_seconds_to_compute_is_wrong_at_once(answer, gold, reason):
    """Each held a worker for its whole deadline. Where the gold answer is so, it may be right."""
    found = room.read(rf"\boxed{{{answer}}}", gold, "math")
    assert found == "wrong" if reason == "wrong" else room.grade(*found) == reason


@pytest.mark.parametrize(("text", "gold", "right"), [
    ("So the 13th term is **_233_**.", "233", True), (r"\boxed{\large 81}", "81", True),
    (r"Answer: $\dfrac{7!}{2!}$", "2520", True), (r"\boxed{-\mathbf{i}}", "-i", True),
    (r"$$x=-2\quad\text{or}\quad x=\tfrac12.$$", r"\frac{1}{2}, -2", True),
    (r"\boxed{\left[\begin{smallmatrix}6\\-9\end{smallmatrix}\right]}", "(6, -9)", True),
    (r"\boxed{9.8\text{ m}\cdot\text{s}^{-2}}", "9.8", True), ("Final answer: (b) 2x", "B", True),
    (r"The result is $7\text{,}200\text{,}000$ milliseconds.", "7200000", True),
    (r"\boxed{{290861433 \choose 72810090}}", "12", False),
    (r"\boxed{" + "(" * 40 + "}", "x", False)])
def test_what_the_ninth_set_showed(text, gold, right):
    assert (verify(text, gold)[0] > 0) == right


@pytest.mark.parametrize(("text", "gold", "question", "right"), [
    (r"It is $0.\dot{2}\dot{7}$", r"0.\overline{27}", "Write 3/11 as a repeating decimal.", True),
    ("Write 3/11 as a decimal.", r"0.\overline{27}", "Write 3/11 as a decimal.", False),
    ("Convert it: 1/8", "0.125", "Write one eighth as a decimal.", False),
    (r"\boxed{3200}", r"3.2 \times 10^{3}", "Write 3200 in scientific notation.", False),
    (r"\boxed{3.2\cdot 10^3}", r"3.2 \times 10^{3}", "In scientific notation?", True),
    (r"\boxed{\frac12, \frac13}", "1/3, 1/2", "Put them in increasing order.", False),
    (r"\boxed{\frac12, \frac13}", "1/3, 1/2", "Which two fractions are meant?", True),
    (r"\boxed{3, -1}", "-1, 3", "Find all solutions, in any order.", True),
    (r"\boxed{x, y, z}", "a, b, c", "Put them in increasing order.", False),
    (r"\boxed{(-\infty,\sqrt5)}", r"(-\infty,\sqrt7)", "In order for the root to be real?", False),
    ("It is 3.2 × 10².", r"3.2 \times 10^{2}", "Write 320 in scientific notation.", True),
    ("It is 3.2e+02.", r"3.2 \times 10^{2}", "Write 320 in scientific notation.", True),
    (r"\boxed{320}", "320", "Convert 3.2 x 10^2 from scientific notation.", True),
    (r"\boxed{\frac34}", r"\frac34", "Which fraction, written as a decimal, is 0.75?", True),
    (r"\boxed{\frac12}", "0.5", "Give it as a fraction or as a decimal.", True),
    ("The answer is, although surprising, 16.", "16", "", True),
    ("It has no solutions or infinitely many solutions.", r"\text{infinitely many}", "", False),
    (r"\boxed{May 4, it is May 5}", "May 5", "", False), (r"\boxed{0.\dot{27}}", "3/11", "", True),
    ("It is 3 m.", "3", "The area in m^2 is 9. How long is the side?", True),
    ("(A) is not defined", "A", "", True), (r"\boxed{50 K}", "50", "How many dollars?", False),
    ("So there are 3600 seconds in an hour.", "3600", "How many seconds has an hour?", True),
    ("The trip took 3 hours and 25 minutes.", r"3 \text{ hours } 25 \text{ minutes}", "", True),
    ("The trip took 3 hours and 20 minutes.", r"3 \text{ hours } 25 \text{ minutes}", "", False),
    ("The 100th day after June 24 is October 2nd.", "October 2", "", True),
    (r"\boxed{12 midnight}", "12 noon", "", False),
    ("The area is 54 m².", "54", "What is it in cm²?", False),
    ("The answer is 16, though 15 is possible.", "15", "", False),
    (r"\boxed{{-}7}", "-7", "", True),
    ("It has infinitely many solutions.", r"\text{infinitely many}", "", True),
    ("It has finitely many solutions.", r"\text{infinitely many}", "", False)])
def test_what_the_tenth_set_showed(text, gold, question, right):
    assert (verify(text, gold, question=question)[0] > 0) == right


@pytest.mark.parametrize(("text", "gold", "question", "right"), [
    ("That makes 6! orders, so there are **6!**.", "720", "", True), ("Answer: [B]", "B", "", True),
    (r"\boxed{0.25 - 0.75i}", r"\frac{1}{4} - \frac{3}{4}i", "", True),
    (r"\boxed{0.33 - i}", r"\frac{1}{3} - i", "", False),
    (r"\boxed{x = 1 \pm 2i}", "1+2i, 1-2i", "", True),
    ("It is 3/8, or 37.5 percent.", r"37.5\%", "What percent?", True),
    ("It is 3/8, or 38 percent.", r"37.5\%", "What percent?", False),
    ("The sum is 20 100.", "20100", "", True), ("Final answer: 40 per cent", "40", "%?", True),
    (r"$$\boxed{a_n = 2 + 4(n-1) = 4n - 2}$$", "a_n = 4n-2", "", True),
    (r"$$\boxed{a_n = 4n - 2 = 2 + 3(n-1)}$$", "a_n = 4n-2", "", False),
    (r"\boxed{\underline{18}}", "18", "", True),
    (r"\boxed{\mathbf{18\text{ ways}}}", "18", "", True),
    (r"\boxed{u' v + v'u}", "u'v+uv'", "", True),
    (r"\boxed{\pi^{2}/{6}}", r"\frac{\pi^2}{6}", "", True),
    (r"\boxed{252(5/6)^{10}(1/6)^{10}}", r"252 \cdot \frac{5^{10}}{6^{20}}", "", True),
    ("6/two", "6", "", False), (r"\boxed{f(a)=3}", "f(b)=3", "", False),
    ("The area is 24 m².", "24", "How many square centimetres is it?", False),
    ("She earned 9 cents per hour.", "9", "How many dollars did she earn per hour?", False),
    ("#### $18/hour", "18", "How many dollars did he earn per hour?", True),
    (r"It is $\boxed{7 + 0i}$.", "7", "", True), (r"\boxed{{3}/{20}}", r"\frac{3}{20}", "", True),
    (r"\boxed{2 + i} and \boxed{2 - i}", r"2 \pm i", "", True),
    (r"\boxed{\{n \in \mathbb{Z} : 0 < n < 3\} = \{1, 2\}}", r"\{1,2\}", "", True),
    ("**The two numbers are 4 and 9.**", "4,9", "", True),
    ("**The two numbers are 4 and 8.**", "4,9", "", False),
    (r"\boxed{x=0,\ x=\pm 2}", r"\{0,2,-2\}", "", True),
    ("So day 12 is 12 May.", "May 12", "", True),
    ("So 14 days after May 1 is May 15.", "May 15", "", True),
    ("So 14 days after May 1 is May 16.", "May 15", "", False),
    (r"It is $\boxed{12.5\%}$ of an hour.", "12.5", "What percent of an hour is that?", True),
    ("Đáp số: 40 học sinh", "40", "", True), (r"Thus $y(x) = 2e^{x}$.", "y = 2e^x", "", True),
    (r"\boxed{\minus 1.5}", "-1.5", "", True), ("That makes it a Sunday.", "Sunday", "", True),
    ("Sure! anything but 42", "42", "", False),
    ("**Answer:** anything but 4:20", "4:20", "", False),
    ("Answer: 751E+825749237", r"2\sqrt{3}", "", False)])
def test_what_the_eleventh_set_showed(text, gold, question, right):
    assert (verify(text, gold, question=question)[0] > 0) == right


@pytest.mark.parametrize("answer", [
    "(a) or (b)", "(a), (b)", "(a) (b) (c) (d)", "(a) and not (b)", "(A) or (B)", "(a)(b)",
    "(A)(B)", "(a) is wrong", "(A) is not right"])
def test_several_choices_in_small_letters_are_wrong_as_in_large_ones(answer):
    """Only the first letter was read: "(a) or (b)" was paid for A."""
    for text in (rf"\boxed{{{answer}}}", f"The answer is {answer}."):
        assert verify(text, "A")[0] < 0


def test_a_speed_in_another_unit_than_the_question_asks_for_is_wrong():
    question = "A car travels 180 km in 3 hours. What is its average speed in km/h?"
    assert verify("The speed is 60 m/s.", "60", question=question)[0] < 0
    assert verify("The speed is 60 km/h.", "60", question=question)[0] > 0


def test_a_list_much_longer_than_the_gold_one_needs_no_algebra():
    assert room.read(r"\boxed{" + ", ".join(["(3,4)", "-1"] * 20) + "}", "(3,4)", "math") == "wrong"
    assert verify(r"\boxed{1,2,3,4,5,6}", "1,2,3,4,5,6")[0] > 0


@pytest.mark.parametrize(("answer", "gold"), [
    ("1,152,921,504,606,846,976", "2^{60}"), ("2,432,902,008,176,640,000", "20!"),
    ("A, B, C, D, E, F", "ABCDEF"), ("1, 2, 3, 4, 5, 6", "1; 2; 3; 4; 5; 6"),
    ("(1,2,3,4,5,6)", r"\begin{pmatrix}1\\2\\3\\4\\5\\6\end{pmatrix}")])
def test_commas_that_the_gold_answer_has_not_may_be_right(answer, gold):
    """Thousands' marks; a list with other signs."""
    assert verify(rf"\boxed{{{answer}}}", gold)[0] > 0


def test_a_number_of_more_digits_than_python_reads_is_no_plain_number():
    """A gold answer of 20,000 digits ended the run with a traceback."""
    assert verify(r"\boxed{12}", "9" * 20_000)[0] < 0


@pytest.mark.parametrize(("text", "gold", "right"), [
    (r"The values are $\boxed{6}$ and $\boxed{-6}$.", "-6, 6", True),
    (r"The values are $\boxed{6}$ and $\boxed{-5}$.", "-6, 6", False),
    (r"$\boxed{2^{100}\equiv 4 \pmod{12}}$", "4", True), (r"\boxed{48 \bmod 5}", "48", False),
    (r"\boxed{x \equiv 2 \pmod{5}}", r"x\equiv 2 \pmod 5", True),
    (r"\boxed{x \equiv 2 \pmod{7}}", r"x\equiv 2 \pmod 5", False),
    ("#### 33\n\nExplanation: 40 less 7.", "33", True),
    ("#### 15\nNote that 12 is less.", "12", False),
    ("因此选B。", "B", True), ("选项B不正确，故选：C．", "C", True), ("不选B。", "B", False),
    ("The correct choice is **B. Jupiter**, as 11 is more.", "B", True),
    (r"\boxed{\text{k is even}}", r"k \text{ is even}", True)])
def test_what_the_eighth_set_showed(text, gold, right):
    assert (verify(text, gold)[0] > 0) == right


OPTIONS = "What is it? Options: (A) shortage (B) surplus"
ANGLES = "Find x.\n(A) 17.5°\n(B) 35°\n(C) 60°\n(D) 70°"


@pytest.mark.parametrize(("text", "gold", "question", "right"), [
    # tags of other prompts; a tag outranks sentences on "the answer", as a box does
    ("So it is.\n<SOLUTION>\n12", "12", "", True), ("<SOLUTION>13", "12", "", False),
    (r"<solution>\frac{2}{7}</solution>", r"\frac27", "", True),
    ("The answer is a positive integer, as asked.\n<answer>\n116\n</answer>", "116", "", True),
    ("Let me check the answer: it fits.\n<answer>116</answer>", "116", "", True),
    ("<answer>115</answer> The answer is 116.", "116", "", False),
    (r"<answer>115</answer> so \boxed{116}", "116", "", False),
    ("<answer><answer>116</answer>B</answer>", "116", "", False),
    # sentences in a tag
    ("<answer>Mr. Li needs 7 packs of paper.</answer>", "7", "", True),
    ("<answer>There are 5 rows. So he needs $5 * 39 = $195. Therefore he will pay $195.</answer>",
     "195", "", True),
    ("<answer>The chance is 5/11. This is because 5 of 11 are white.</answer>", "5/11", "", True),
    ("<answer>There are 14 days. So he needs 9 packs.</answer>", "14", "", False),
    ("<answer>So the final answer is 10 - 3 = 7.</answer>", "7", "", True),
    ("<answer>First, 3,140 + 9,980 + 2,500 = 15,620.</answer>", "15620", "", True),
    ("<answer>First, 3,140 + 9,980 + 2,500 = 15,621.</answer>", "15620", "", False),
    # #### behind prose, tags behind the last sentence
    ("So she makes 18 dollars. #### 18", "18", "", True), ("It is 18. #### 19", "18", "", False),
    ("The sum is $66.\n</reasoning>", "66", "", True), ("It is 66.<|im_end|>", "66", "", True),
    # choices
    ("(B) surplus", "surplus", OPTIONS, True),
    ("The answer is (B) surplus.", "surplus", OPTIONS, True),
    ("(A) shortage", "surplus", OPTIONS, False), ("(A) yes.", "yes", "", True),
    ("(B) no.", "yes", "", False), (r"\boxed{\text{A. }-\frac{1}{21}}", "A", "", True),
    ("正确选项为 **B、C、D**。\n\\boxed{BCD}", "BCD", "", True),
    ("正确的选项是 B 和 C。\n\\boxed{BC}", "BC", "", True),
    ("正确的选项是 B 和 D。\n\\boxed{BC}", "BC", "", False),
    ("所以选项 B 是正确的。\n【答案】B", "B", "", True), ("【答案】: C <eoa>", "C", "", True),
    ("【答案】: C <eoa>", "D", "", False), ("【答案】$y=x+1$<eoa>", "y=x+1", "", True),
    ("最终答案：\n公差是四，对应选项乙。\n\\boxed{4}", "4", "", True),
    ("Thus, the answer is D (70°).", "D", "", True), ("The answer is D (70).", "C", "", False),
    (r"\boxed{A (x)}", "B", "", False),
    ("So the correct answer is 'D)80'.", "D", "", True), ("The answer is 'A'.", "A", "", True),
    ("So the correct answer is 'D)80'.", "C", "", False), ("The answer is A'.", "A", "", False),
    # the gold answer is the text of a choice: its letter is right, too
    ("So, the answer is D (70°).", "70°", ANGLES, True), ("The answer is D.", "70°", ANGLES, True),
    ("The answer is 70°.", "70°", ANGLES, True), ("The answer is B.", "70°", ANGLES, False),
    ("The answer is B or D.", "70°", ANGLES, False), (r"\boxed{B} \boxed{D}", "70°", ANGLES, False),
    ("The answer is 70°.", "D", ANGLES, True), (r"\boxed{70}", "D", ANGLES, True),
    ("The answer is 35°.", "D", ANGLES, False), ("The answer is (B) 70°.", "D", ANGLES, False),
    ("The answer is (B) 70°.", "70°", ANGLES, False),
    ("因此，它的值是 $-3m$，选项 A 正确。", "A", "", True), ("故选：$ D $．", "D", "", True),
    ("因此，它的值是 $-3m$，选项 A 不正确。", "A", "", False), ("综上所述，$ a = \\ln 2 $。", r"\ln 2",
                                                               "", True),
    ("So the answer is (C).", "2√{2}", "Which? (A) 1 (B) 2 (C) 2√{2} (D) √{6}", True),
    ("So the answer is (D).", "2√{2}", "Which? (A) 1 (B) 2 (C) 2√{2} (D) √{6}", False),
    # "Answer:" over the working is a headline; underscores between thousands
    ("Answer:\n\nAnn owns 30 barrels of oil.\nBo owns 7 times as many: 210.\n\n#### 210", "210",
     "", True),
    ("Answer: To find out how many, we multiply 311 by 8.\n\nTherefore, Ann has 2,488 coins.",
     "2488", "", True),
    ("Answer: The number of coins that Ann has is 2,488.\nThis is 311 times 8.", "2488", "", True),
    ("Answer: 311 times 8 coins of Ann.\nTherefore, Ann has 2,489 coins.", "2488", "", False),
    ("#### 2173", "2_173", "", True), ("#### 2174", "2_173", "", False),
    # calculators' notes, remarks, a tag that goes on
    ("So he spent $28 + $44 = $<<28+44=72>>72 in all.", "72", "", True),
    ("It is about 2 inches long.\nIs there anything else I can help you with?", "2", "", True),
    ("<answer>It yields n = 12, but since 10 is one, there are 11.</answer>", "12", "", False),
    # values
    ("**Answer:** 1.5 or 3/2.", "3/2", "", True), ("The answer is 1.5 or 2.", "3/2", "", False),
    (r"\boxed{20\%}", "20", "手动挡汽车的百分比是多少？", True),
    ("The answer is 1/6.", "0.16666666666666666", "", True),
    ("The answer is 1/7.", "0.16666666666666666", "", False), ("It is 0.17.", "1/6", "", False),
    (r"\boxed{q_{\max}=\sqrt{5}}", r"\sqrt5", "", True),
    (r"\boxed{\lim_{n\to\infty}\frac{a_n}{n}=\frac38}", r"\frac38", "", True),
    (r"\boxed{\lim_{n\to\infty}\frac{a_n}{n}=\frac14}",
     r"\lim_{n\to\infty}\frac{a_n}{n}=\frac38", "", False),
    (r"\boxed{\frac38}", r"\lim_{n\to\infty}\frac{a_n}{n}=\frac38", "", True),
    # bounds of sums had run together: "\sum_{i=22026}"
    (r"\boxed{\sum_{k=2}^{2026}\sqrt{k}}", r"\sum_{i=2}^{2026}\sqrt{i}", "", True),
    (r"\boxed{\sum_{k=2}^{12}k^2}", r"\sum_{i=2}^{12}i^2", "", True),
    (r"\boxed{\sum_{k=21}^{2}k^2}", r"\sum_{i=2}^{12}i^2", "", False),
    (r"\boxed{\sum_{k=2}^{13}k^2}", r"\sum_{i=2}^{12}i^2", "", False),
    ("So:\nanswer> 280 </answer>", "280", "", True),   # "<" was the last token of the thinking
    # declared sentences: the number that one comes to
    ("#### Mike will have $800 after spending some of it on a shirt that costs $200.", "800",
     "What has Mike after buying a shirt for $200?", True),
    ("Answer: The units digit of 18^6 is 4.", "4", "", True),
    ("Answer: The units digit of 18^6 is 4.", "18", "", False),
    ("The answer is between 3 and 7.", "7", "", False), ("The answer is 5 or 7.", "7", "", False),
    ("The answer is at most 7.", "7", "", False), ("The answer is not 5 but 7.", "5", "", False),
    ("So, the answer is B (13) and C (26).", "26", "", False),
    ("Answer: 5 hours.\nAnswer: It takes him 7 hours for 3 rooms.", "5", "", False),
    # JSON, an answer between quotes, tiny numbers, equations without a variable
    ('```json\n{\n    "answer": 4\n}\n```', "4", "", True),
    ('{"why": "it is \\"5\\"", "answer": "\\\\frac{1}{2}"}', r"\frac12", "", True),
    ('{"answer": "5"}', "4", "", False), ('{"answer": "4"} {"answer": "5"}', "4", "", False),
    ('>> FINAL ANSWER:\n"""\n18\n"""', "18", "", True), ('"""\n19\n"""', "18", "", False),
    (r"\boxed{0}", r"1.87 \times 10^{-27}", "", False), (r"\boxed{0}", "0.00000000005", "", False),
    (r"\boxed{1.87 \times 10^{-27}}", r"1.87 \times 10^{-27} N", "", True),
    (r"\boxed{f'(2)=7}", "f'(2) = 5", "", False), (r"\boxed{f'(2)=5}", "f'(2) = 5", "", True),
    (r"\boxed{f(3)=5}", "f(2) = 5", "", False), (r"\boxed{2y=4x}", "y=2x", "", True),
    (r"\boxed{\frac{W'}{W}=\frac53}", r"\frac{W'}{W} = \frac13", "", False),
    (r"\boxed{fg'-f'g}", "f'g-fg'", "", False), (r"\boxed{gf'-fg'}", "f'g-fg'", "", True),
    (r"\boxed{y''+2y'=0}", "2y''+y'=0", "", False),
    (r"\boxed{f^{\prime}(x)=3x^2}", "f'(x)=3x^2", "", True),
    (r"\boxed{f^{\prime\prime}(x)=3x}", "f'(x)=3x", "", False),
    (r"\boxed{A}", "A^T", "", False), (r"\boxed{A^T}", "A^T", "", True),
    (r"\boxed{A^{\top} B}", "A^TB", "", True), (r"\boxed{A^{\mathsf{T}}}", "A^{T}", "", True),
    (r"\boxed{2\pi r(r+h)}", r"2\pi r^2 + 2\pi r h", "", True),
    (r"\boxed{\binom52}", "10", "", True), (r"\boxed{\tbinom 5 2}", "11", "", False),
    (r"Fill \(\boxed{\phantom{2}}\): it is \(\boxed{4}\).", "4", "", True),
    ("Минимальное количество полосок равно **4302**.", "4302", "", True),
    # An "Answer:" before the working, "how to find the answer:", a condition that tells the story
    ("Answer:He runs 3 * 3 = 9 sprints a week, 60 meters each. So the answer is 540.", "540", "",
     True),
    ("Answer: The price rises by 20% every year. So it is 24 dollars.", "24", "", True),
    ("Answer: 12. So the answer is 13.", "13", "", False),
    ("Let us find the answer:\n**1. Her work:** 5 * 9 = 45\n**Answer:** She needs $45.", "45", "",
     True),
    ("We find the answer is 45. It was 7 a day.", "45", "", True),
    ("**Answer:** He would earn $140 in one week if he spent his time working.", "140", "", True),
    ("**Answer:** It is 140 if x is even.", "140", "", False),
    (r"\boxed{0.35\%}", "0.35", "Express 35% as a decimal.", False),
    ("The answer is 5%.", "0.05", "What is the probability?", True),
    # Formulas as text
    ("<answer> 8 * sqrt(2) </answer>", r"8\sqrt{2}", "", True),
    ("<answer>2 sqrt 3</answer>", r"2\sqrt3", "", True),
    ("<answer>sqrt(16)</answer>", "4", "", True), ("<answer>sqrt(15)</answer>", "4", "", False),
    ("<answer>ln(3) + arctan(2)</answer>", r"\arctan 2 + \ln 3", "", True),
    ("<answer>log_2(3)</answer>", r"\log_3 2", "", False),
    (r"<answer>\frac{4.0}{5.0}</answer>", r"\frac45", "", True),
    # A number alone in the last line, below working; but of two such lines neither
    ("17 * 6 = 60 + 42\n\n102", "102", "", True), ("17 * 6 = 60 + 42\n\n101", "102", "", False),
    ("x = 4\n\n7", "7", "", False), ("3\n\n7", "7", "", False),
    # A list in bullets, boxes with names, a rate beside a box, a note below
    ("The solutions are:\n\n1. $x = 1$\n2. $x = -5$", "1, -5", "", True),
    ("The solutions are:\n\n1. $x = 1$\n2. $x = 5$", "1, -5", "", False),
    ("So the solution is:\n\n* x = 4\n* y = 2", "(4, 2)", "", True),
    ("So the solution is:\n\n* x = 2\n* y = 4", "(4, 2)", "", False),
    (r"Hence $y=\boxed{-1}$ and $x=\boxed{4}$.", "(4,-1)", "", True),
    (r"Hence $y=\boxed{4}$ and $x=\boxed{-1}$.", "(4,-1)", "", False),
    (r"so the average speed is $\boxed{30}$ km/h.", "30 km/h", "", True),
    (r"so the average speed is $\boxed{30}$ m/h.", "30 km/h", "", False),
    ("So x³ = 343.\n\nNote: without the condition, x could also be -7.", "343", "", True),
    # Taken back
    ("The answer is 5. No wait, 6.", "6", "", True),
    ("The answer is 5. No wait, 6.", "5", "", False),
    ("The answer is 5. Correction: it is 6", "6", "", True),
    ("The answer is 5. Wait, let me check: 2 + 3 = 5. Yes.", "5", "", True),
    (r"The answer is $\boxed{7}$. Wait, no, we can verify this with n = 3.", "7", "", True),
    ("The answer is 42. Sorry for the confusion in step 2.", "42", "", True),
    ("The answer is 3 hours. Or 180 minutes.", "3", "", True),
    ("The answer is 12. Actually this follows from Theorem 2.", "12", "", True),
    # As many boxes as the gold list has parts, with words between: in its order, by its names
    (r"There are $\boxed{12}$ red and $\boxed{18}$ blue ones.", "12, 18", "How many?", True),
    (r"There are $\boxed{18}$ red and $\boxed{12}$ blue ones.", "12, 18", "How many?", False),
    (r"First $\boxed{12}$, then $\boxed{13}$, no: $\boxed{18}$.", "12, 18", "", False),
    (r"(a) \(\boxed{4}\)" "\n" r"(b) \(\boxed{\sqrt2}\)", r"4, \sqrt{2}", "", True),
    (r"The quotient is $\boxed{7}$ and the remainder is $\boxed{5}$.",
     "quotient 7, remainder 5", "", True),
    (r"The quotient is $\boxed{5}$ and the remainder is $\boxed{7}$.",
     "quotient 7, remainder 5", "", False),
    (r"The remainder is $\boxed{7}$ and the quotient is $\boxed{5}$.",
     "quotient 7, remainder 5", "", False),
    (r"\boxed{10, 4}", "4, 10", "Find both intercepts, in this order.", False),
    (r"We get $\boxed{1234}$, so it is $\boxed{1234}$.", "1,234", "", True),
    (r"So $\boxed{(7,3)}$. Check: $\boxed{(7,3)}$.", "(7,3)", "", True),
    # Two solutions, of which one is asked; another unit; working in lines; a line twice
    (r"\boxed{x = 1 \text{ and } x = 4}", "4", "", False),
    (r"\boxed{x = 4}", "4", "", True),
    ("55 + 65 = 120 and so it takes 2 days in total.", "2 hours", "", False),
    ("55 + 65 = 120 and so it takes 2 hours in total.", "2 hours", "", True),
    ("So\n\\begin{align*}\nI &= 1 + 1\\\\\n&= 2\n\\end{align*}", "2", "", True),
    ("So\n\\begin{align*}\nI &= 1 + 1\\\\\n&= 3\n\\end{align*}", "2", "", False),
    ("276/3\n92", "92", "", True), ("276/3\n91", "92", "", False),
    ("So 15 + 15 = 30.\n\n30", "30", "", True),
    (r"\boxed{\bigl(-2, -7\bigr)}", "(-2,-7)", "", True),
    ("The roots are:\n- x = 6\n- x = -5", "x=6 or x=-5", "", True),
    ("The roots are:\n- x = 6\n- x = 5", "x=6 or x=-5", "", False),
    # The question's power, worked out; a fraction without braces
    (r"\boxed{10^2=100}", "100", "Compute $10^2$.", True),
    (r"\boxed{10^2}", "100", "Compute $10^2$.", False),
    (r"\boxed{\frac\pi4}", r"\frac{\pi}{4}", "", True),
    (r"\boxed{\frac\pi 3}", r"\frac{\pi}{4}", "", False),
    # Hedged, or denied
    ("It could be 54, it could be 56.", "56", "", False), ("It is no longer 8.", "8", "", False),
    ("It is different from 10, because 20 is a multiple.", "10", "", False)])
def test_what_outputs_of_other_models_showed(text, gold, question, right):
    """Frames of other people's prompts: bench/answers/README.md, outputs.csv."""
    assert (verify(text, gold, question=question)[0] > 0) == right


def test_the_page_on_outputs_of_real_models_has_the_sums_of_its_table():
    with open(FOLDER / "outputs.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    page = (FOLDER / "README.md").read_text()
    for part in "ABCD":
        some = [row for row in rows if row["part"] == part]
        texts, right, refused, paid, theirs, theirs_paid, mark, mark_paid, after, after_paid = (
            sum(int(row[name] or 0) for row in some) for name in (
                "texts", "right", "refused", "paid", "math_verify_refused", "math_verify_paid",
                "mark_refused", "mark_paid", "refused_after", "paid_after"))
        assert re.search(rf"(?m)^\| {part}, .* \| {len(some)} \| {texts:,d} \| {right:,d} \| "
                         rf"{refused}, {paid} \| {theirs}, {theirs_paid} \| {mark}, {mark_paid} "
                         rf"\| {after}, {after_paid} \|$", page), part
    assert len({row["repository"] for row in rows}) == len(rows) == 61
    assert f"{sum(int(row['texts']) for row in rows):,d} finished texts" in page


@pytest.mark.days(4, turn=1)
def test_no_text_that_looks_for_the_reward_is_paid(verifier, seed):
    """Boxes in boxes, lists of everything, phrases for the grader, the question as the answer."""
    hacks = runpy.run_path(FOLDER / "hacks.py")["hacks"](400, random.Random(seed))
    rewards = verifier.score(hacks).rewards
    assert [hack for hack, reward in zip(hacks, rewards) if reward > 0] == []


@pytest.mark.parametrize(("text", "gold", "right"), [
    (r"-1<x<0 \text{ or } x>1", r"(-1,0)\cup(1,\infty)", True),
    (r"-1 \le x \le 0 or x \ge 1", r"[-1,0]\cup[1,\infty)", True),
    (r"x<-2 \text{ or } 0<x<3", r"(-\infty,-2)\cup(0,3)", True),
    (r"x \leq -2 \text{ or } 0 \leq x < 3", r"(-\infty,-2]\cup[0,3)", True),
    ("1<x<2 or 3<x<4", r"(1,2)\cup(3,4)", True), ("1<x<2 or 3<x<4", r"(1,2)\cup(3,5)", False),
    (r"(-1,0)\cup(1,\infty)", r"-1 < x < 0 \text{ or } x > 1", True),
    (r"-3 \le x < 5", "[-3,5)", True), (r"-3 \le x<5", "(-3,5)", False),
    (r"-\sqrt{2} \leq x \leq \frac{\pi}{2}", r"[-\sqrt2, \pi/2]", True),
    ("0<a<b", "0<a<b", True), ("0<a<b", "0<a<c", False)])
def test_inequalities_are_the_intervals_and_unions_that_they_say(text, gold, right):
    assert (verify(rf"\boxed{{{text}}}", gold)[0] > 0) == right


@pytest.mark.parametrize(("text", "gold", "right"), [
    ("We buy 12 packs, because 11 hold 66.", "12", True), ("It is 13, not 12.", "12", False),
    ("It is 66, because 12 hold 72.", "72", False),
    ("Its area is 48 cm², twice the 24 of the other.", "24", False),
    ("There are 3 boys and 4 girls, which makes 7 children.", "7", True),
    ("He has 3 shelves with 5 books each, for a total of 15.", "15", True),
    ("For a = 5, the area is 25.", "25", True), ("He paid 7 (or possibly 9).", "7", False),
    (r"15/25 = 0.6, that is \boxed{60}.", "60", True),
    ("x is 2 and its color is red.", "red", True),
    ("It has slope −1/2, the negative reciprocal of 2.", r"-\frac{1}{2}", True)])
def test_what_a_last_sentence_adds_to_its_answer_is_left_out(text, gold, right):
    """But no clause in which the answer stands."""
    assert (verify(text, gold)[0] > 0) == right


@pytest.mark.parametrize(("text", "gold", "question", "right"), [
    (r"\boxed{2^{12}-1}", "4095", "", True), (r"\boxed{4! \cdot 5!}", "2880", "", True),
    (r"\boxed{\frac{8!}{4!\,4!}}", "70", "", True), (r"\boxed{2^{12}+1}", "4095", "", False),
    (r"\boxed{3^2+3}", "12", "What is f(3), if f(x) = x^2 + x?", False),
    (r"\boxed{\frac{10!}{4!\,6!}}", "210", "Compute 10 choose 4.", False),
    (r"\boxed{\sqrt{18}+\sqrt{2}}", r"4\sqrt{2}", "Simplify sqrt(2) + sqrt(18).", False),
    (r"\boxed{\frac{d}{dx}(x^5) - \frac{d}{dx}(3x)}", "5x^4-3", "Differentiate $x^5-3x$.", False),
    (r"\boxed{|x - 1| < 2}", "(-1, 3)", "Solve it.", False),
    (r"\boxed{|x| < 5}", "(-5, 5)", "", True),
    (r"\boxed{x=\pm 1,\ x=\pm 2}", r"\{-2,-1,1,2\}", "", True),
    (r"\boxed{x=\pm 1,\ x=\pm 3}", r"\{-2,-1,1,2\}", "", False),
    (r"$\boxed{-9\ ^\circ\text{C}}$", "-9", "", True), (r"$\boxed{2{,}5}$", "2.5", "", True),
    (r"$\boxed{2{,}500}$", "2.5", "", False),
    ("The answer is the point (−3, 0).", "(-3, 0)", "", True),
    ("The answer is the point (0, −3).", "(-3, 0)", "", False),
    ("The answer is 2:25 a.m.", "02:25", "It leaves at 22:35.", True),
    ("The answer is 2:25 p.m.", "2:25", "It leaves at 22:35.", False),
    ("The answer is 2:25 p.m.", "2:25", "It leaves at 10:35.", True),
    (r"\boxed{2\text{ h }35\text{ min}}", r"2 \text{ hours } 35 \text{ minutes}", "", True),
    (r"\boxed{2\text{ h }34\text{ min}}", r"2 \text{ hours } 35 \text{ minutes}", "", False),
    (r"It is C. $\boxed{\text{C) } 12}$", "12", "How many? (A) 10 (B) 11 (C) 12 (D) 13", True),
    (r"It is C. $\boxed{\text{D) } 13}$", "12", "How many? (A) 10 (B) 11 (C) 12 (D) 13", False),
    (r"\boxed{5 \times 2}", r"2\times 5", "Find rows and columns, rows x columns.", False),
    (r"\boxed{2 \times 5}", r"2\times 5", "Find rows and columns, rows x columns.", True),
    (r"$\boxed{36, 25}$", "25, 36", "Give the next two terms.", False),
    (r"$\boxed{61 = 60}$", "60", "", False), (r"$\boxed{6\cdot 10 = 60}$", "60", "", True),
    (r"\boxed{\frac{37}{9} = \frac{37}{8}}", r"\frac{37}{8}", "", False),
    (r"\boxed{g(3) = 60}", "60", "", True), (r"\boxed{60 - 32i = 60 + 32i}", "60+32i", "", False),
    (r"\boxed{\tan 60^\circ = \sqrt{3}}", r"\sqrt{3}", "", True),
    (r"\boxed{\neq 60}", "60", "", False), (r"So $\boxed{58} + 3$.", "58", "", False),
    ("My final answer is 24 (alternatively 12).", "24", "", False),
    (r"\boxed{1:3:2}", "1:2:3", "", False), (r"\boxed{1:2:3}", "1:2:3", "", True),
    # What else their rules must not refuse, or pay:
    (r"There is no solution other than $\boxed{x=2}$.", "x=2", "", True),
    (r"So $n$ can't be anything but $\boxed{5}$.", "5", "", True),
    (r"The answer is anything but $\boxed{5}$.", "5", "", False),
    (r"No integer works except $\boxed{5}$.", "5", "", True),
    (r"It's not true that the answer is 12; it is $\boxed{7}$.", "7", "", True),
    ("It is impossible that the answer is negative, so x = 7.", "7", "", True),
    ("It is impossible that the answer is x<3.", "x<3", "", False),
    (r"The answer is \boxed{7}. I have no other comments.", "7", "", True),
    (r"\boxed{7} is a mistake, and I have no other answer.", "7", "", False),
    (r"\boxed{(2{,}5)}", "(2,5)", "", True), (r"\boxed{1{,}3{,}5}", "1,3,5", "", True),
    ("3, 1", "1, 3", "Which values of x are taken in order to make it 0?", True),
    ("3, 1", "1, 3", "Give them in order.", False),
    (r"\boxed{0.333... = \frac13}", r"\frac{1}{3}", "", True),
    (r"\boxed{\$5 = 500 cents}", "500", "How many cents?", True),
    (r"\boxed{\frac{1}{3} = 0.333}", "0.333", "", True),
    ("It is 4:20 PM.", "4:20", "The film starts at 01:30 PM.", True),
    (r"\boxed{5^2-3^2}", "16", "What is five squared minus three squared?", False),
    (r"\boxed{9!-8!}", "322560", "Compute 9 factorial minus 8 factorial.", False),
    (r"\boxed{1,2}", "(1,2)", "Find the pair.", True), (r"\boxed{true false}", "true", "", False),
    (r"\boxed{\cos x = \pm 1, 0}", "1,-1,0", "", False),
    (r"\boxed{(1+i)^2 = 2i}", "2i", "", True), (r"\boxed{i^{2023} = -i}", "-i", "", True),
    (r"\boxed{(3+2i)^2 = 9 + 12i - 4 = 5+12i}", "5+12i", "", True),
    (r"\boxed{(3+2i)^2 = 9 + 12i - 4 = 5+13i}", "5+12i", "", False),
    (r"\boxed{60^\circ = \frac{\pi}{3}}", r"\frac{\pi}{3}", "", True),
    (r"\boxed{x \not> 3}", "x>3", "", False), (r"\boxed{g\circ f}", r"f\circ g", "", False),
    # The twenty-third to twenty-fifth:
    (r"$P = \boxed{\left(\frac{1}{2}\right)^{10}}$", r"\frac{1}{1024}", "ten tosses", True),
    (r"\boxed{(1/2)^{10}}", r"\frac{1}{1024}", "Compute $(1/2)^{10}$.", False),
    (r"\boxed{\frac{1}{2}+\frac{\sqrt{3}}{2}i}", r"e^{\pi i/3}", "Find a root of unity.", True),
    (r"\boxed{\frac{1}{2}-\frac{\sqrt{3}}{2}i}", r"e^{\pi i/3}", "Find a root of unity.", False),
    (r"$\boxed{2-i+i(2-i)}$", "3+i", "What is the value of $(1+i)(2-i)$?", False),
    (r"\boxed{900627 = x^2+18x+81}", "x^2+18x+81", "Expand $(x+9)^2$.", False),
    (r"\boxed{\sqrt{18x^2}=3x\sqrt2}", r"3x\sqrt2", "Simplify, for $x>0$.", True),
    (r"\boxed{\int x\,dx=\frac{x^2}{2}+C}", r"\frac{x^2}{2}+C", "Integrate $x$.", True),
    (r"\boxed{\exp(0)(1+i)(2-i)}", "3+i", "What is $(1+i)(2-i)$?", False),
    (r"\boxed{12\%}", r"\frac{3}{25}", r"Write $12\%$ as a fraction.", False),
    (r"\boxed{12\%}", r"\frac{3}{25}", "What share of them is it?", True),
    (r"\boxed{25\%}", "25", "It is told as a fraction of the mean. What percent is it?", True),
    (r"$\boxed{0.272727\ldots}$", r"0.\overline{27}", "Write 3/11 as a decimal.", True),
    ("It is 0.1666...", r"\frac{1}{6}", "What is the probability?", True),
    (r"\boxed{0.27}", r"0.\overline{27}", "Write 3/11 as a decimal.", False),
    (r"\boxed{1.4141...}", r"\sqrt{2}", "How long is it?", False),
    (r"\boxed{5 \text{ March}}", "March 5", "When is it due?", True),
    (r"\boxed{6 \text{ March}}", "March 5", "When is it due?", False),
    (r"$\boxed{\text{Twenty}}$", "20", "What comes after nineteen?", True),
    (r"$\boxed{\text{twelve}}$", "20", "What comes after nineteen?", False),
    (r"\boxed{20}", r"\text{twenty}", "What comes after nineteen?", True),
    (r"$\boxed{\frac{3}{25}\%}$", r"\frac{3}{25}", r"Write $12\%$ as a fraction.", False),
    (r"$\boxed{20}$ Sorry. Please ignore the box.", "20", "What is 40% of 50?", False),
    (r"Ignore the remainder: $\boxed{20}$", "20", "What is 40% of 50?", True),
    (r"\boxed{8\text{ m}^3}", "8", "Find its volume, in cm$^3$.", False),
    (r"\boxed{8\text{ cm}^3}", "8", "Find its volume, in cm$^3$.", True),
    ("So the answer is one third.", r"\frac{1}{3}", "What part does each get?", True),
    (r"$\boxed{\text{three-fifths}}$", r"\frac{3}{5}", "What fraction likes soccer?", True),
    (r"$\boxed{\text{two fifths}}$", r"\frac{3}{5}", "What fraction likes soccer?", False),
    ("Ratio (small to large): **1/8**", "1:8", "What is the ratio of the volumes?", True),
    ("The answer is $A$.", "A_1", "Which point lies on $BC$, $A$ or $A_1$?", False),
    (r"\boxed{1011}", "1011_2", "Write it in base 2.", True),
    ('{"answer": "(14, 28)", "alternative": "(15, 28)"}', "(14, 28)", "Solve it.", False),
    ('{"answer": "(14, 28)", "steps": "(15, 28)"}', "(14, 28)", "Solve it.", True),
    (r"$\boxed{(31, 90)\text{ or } (33, 90)}$", "(31, 90)", "Solve the system.", False),
    (r"$\boxed{x<0 \text{ or } x>2}$", r"(-\infty,0)\cup(2,\infty)", "Solve it.", True),
    (r"\[\boxed{\begin{aligned} x &= 2 \\ y &= 3 \end{aligned}}\]", "(2,3)", "Solve it.", True),
    (r"**The answer is not $31\sqrt{3}$**", r"31\sqrt{3}", r"Simplify $\sqrt{2883}$.", False),
    (r"It is false that the answer is \boxed{51}.", "51", "Solve $5x+12=267$.", False),
    (r"\boxed{x^2-21x+675 = x^2-21x-646}", "x^2-21x-646", "Expand $(x+17)(x-38)$.", False),
    (r"\boxed{(x+17)(x-38) = x^2-21x-646}", "x^2-21x-646", "Expand $(x+17)(x-38)$.", True),
    (r"\boxed{y = x^2}", "x^2", "What is y?", True), (r"\boxed{5 = x}", "x", "What is it?", False),
    (r"$\boxed{42\%}$", r"\$42", r"What is the sale price of a \$60 coat at 30% off?", False),
    (r"$\boxed{42\%}$", "42 percent", "How many percent?", True),
    # The frames, and the twenty-sixth:
    (r"\boxed{\mathbf{2^{10}}}", "1024", "How many subsets has it?", True),
    (r"So there are $\binom{5}{2}$ ways to do it.", "10", "How many ways are there?", True),
    (r"So there are twice $\binom{5}{2}$ ways to do it.", "10", "How many are there?", False),
    (r"$\binom{5}{2}$ is too small.", "10", "How many ways are there?", False),
    ("Final answer: (-\\infty, 3) \\cup (3, \\infty)", r"(-\infty,3)\cup(3,\infty)", "", True),
    (r"So the numbers are $3, 5, \text{ and } 7$.", "3,5,7", "Which primes?", True),
    (r"The answer is $\$75$.", "75", "How many cents do they cost?", False),
    ("The answer must be a multiple of 3. So it is 12.", "12", "Which number is it?", True),
    (r"Answer: $\mathrm{10\ hours}$", r"\text{10 days}", "How long do three need?", False),
    (r"\boxed{P'(-3,-7)}", "(-3,-7)", "Rotate $P(3,7)$ by a half turn.", True),
    ("It is 6 pm in London.", "6:00 PM", "What time is it in London?", True),
    ("It is 7 pm in London.", "6:00 PM", "What time is it in London?", False),
    (r"\boxed{25_{10}}", "25", "Convert 19 to base 7.", False),
    ("So no, 91 is not a prime number.", "No", "Is 91 a prime number?", True),
    ("Yes. No.", "No", "Is 525 divisible by 11?", False),
    (r"(a) $\boxed{12}$, (b) $\boxed{20}$", "(a) 12, (b) 20", "Find both perimeters.", True),
    (r"(a) $\boxed{20}$, (b) $\boxed{12}$", "(a) 12, (b) 20", "Find both perimeters.", False),
    (r"The width is $\boxed{5}$, the length $\boxed{8}$.", "length 8, width 5", "", True),
    (r"The width is $\boxed{8}$, the length $\boxed{5}$.", "length 8, width 5", "", False),
    (r"\boxed{\{9,16\}}", "(9, 16)", "Solve for $(x,y)$.", False),
    ("I do not believe in luck: the answer is 30.", "30", "", True),
    (r"If it were 29 I would write \boxed{29}, but I have no answer.", "29", "", False),
    ("It could be 12, it could be 15, perhaps 20.", "20", "Whose square is 400?", False),
    # What a reviewer found in their first form:
    ("The primes are 2, 3 and 5.\0", "2, 3, and 5", "", True), ("\0", "red 3, 5", "", False),
    (r"\boxed{2, 3, 5}", "2, 3, and 5", "", True),
    (r"The answer is \\(x^2+1\\).", "x^2+1", "", True),
    (r"\textbf{Answer.} We have $x-5 = 12$. Hence $x=17$.", "17", "", True),
    ("The answer is 4:20 p.m. The trip takes 2 hours.", "4:20 PM", "When?", True),
    ("A) 3\nB) 4\nC) 3+4=7", "7", "", True), ("Apples: 3\nNotes: 5", "3, 5", "", True),
    (r"\boxed{17}. Indeed the answer must be $1 \bmod 4$.", "17", "", True),
    ("The answer to this problem is found by adding 12 and 5. We get 17.", "17", "", True),
    ("It rang 5 times (namely at 1, 2, 3, 4 and 6).", "5", "", True),
    ("The answer is i. It is called the imaginary unit.", "i", "", True),
    (r"Answer: $12 = 3x \iff x = 4$", "4", "", True), ("I guess so, yes", "Yes", "", False),
    (r"child \boxed{4}, child \boxed{7}", "child 4, child 7", "", True),
    ("There are $2^{10}$ subsets and we subtract one.", "1024", "", False),
    (r"The answer is $\sqrt{x-1}$ ($x \geq 1$).", r"\sqrt{x-1}", "", True),
    (r"A. 8 is even.\nB. 9 is 3*3.\nC. 11 is prime. So it is \boxed{C}.", "C", "", True),
    ("Finally we divide by $3!$.", "6", "", False), ("Suppose it is $10^2$.", "100", "", False),
    (r"The answer should be $m+n$. Here $m=3$ and $n=4$, so \boxed{7}.", "7", "", True),
    ("The answer must be 2 digits long. It is 42.", "42", "", True),
    ("Ans: Let it be x. Then 2x + 3 = 11. So x = 4.", "4", "", True),
    ("The answer is twenty, i.e. 20.", "20", "", True),
    (r"\boxed{12}. I don't believe that there are other solutions.", "12", "", True),
    ("So no. 91 = 7 * 13.", "No", "Is 91 prime?", True),
    (r"\textbf{The answer is 12.}", "12", "", True), (r"\boxed{3ma}", "3am", "", True),
    ("So she sells 12 in the evening.", "12", "How many does she sell in the evening?", True),
    (r"\boxed{12\text{ cm}}", "12", "Line k is parallel to m. AB = 12 cm. Find CD.", True),
    (r"The width is \boxed{5}, the height \boxed{8}.", "length 8, width 5", "", False),
    (r"\boxed{\mathbf{5}!}", "5", "", False), (r"\boxed{-P(1,2)}", "(1,2)", "", False),
    (r"The answer is $z = -\mathrm{i}$.", r"-\mathrm{i}", "", True),
    (r"Answer: $180 = 5x \implies x = 36$", "36", "", True)])
def test_what_the_twenty_first_to_twenty_sixth_sets_showed(text, gold, question, right):
    assert (verify(text, gold, question=question)[0] > 0) == right


@pytest.mark.parametrize(("text", "gold", "question", "right"), [
    (r"\boxed{6 \cdot 10^5}", r"6\times 10^{5}",
     r"Compute $(3\times 10^8)(2\times 10^{-3})$.", True),
    (r"\boxed{(3\times 10^8)(2\times 10^{-3})}", r"6\times 10^{5}",
     r"Compute $(3\times 10^8)(2\times 10^{-3})$.", False),
    (r"\boxed{6 \cdot 10^5}", "6 × 10⁵", r"Compute $(3\times 10^8)(2\times 10^{-3})$.", True),
    (r"\boxed{4^5}", "1024", "Compute $2^{10}$.", False),
    (r"\boxed{2^9 \cdot 2}", r"1024\text{ cm}^2", "Evaluate $2^{10}$ to get the area.", False),
    (r"\boxed{60 \times 10^4}", r"6\times 10^{5}",
     r"Compute $(2 \times 10^3)(3 \times 10^2)$ in scientific notation.", False),
    (r"\boxed{1{,}25 \times 10^5}", r"1.25\times 10^{5}",
     "Write 125000 in scientific notation.", True),
    (r"\boxed{\text{odd function}}", "odd", "Is it even, odd or neither?", True),
    (r"\boxed{\text{odd function}}", "even", "Is it even, odd or neither?", False),
    (r"答案是 $\boxed{\text{星期五}}$ (Friday)。", "Friday", "Which day was it?", True),
    (r"\boxed{\text{星期日}}", "Monday", "Which day was it?", False)])
def test_what_the_thirty_third_set_showed(text, gold, question, right):
    assert (verify(text, gold, question=question)[0] > 0) == right


def marked(texts, gold, said):
    """Yield each text, its G the gold answer as `said` and its B that in a box, and its reward."""
    for text in texts:
        text = text.strip().replace("\\n", "\n").replace("G", said).replace(
            "B", rf"$\boxed{{{gold}}}$")
        yield text, verify(text, gold, question="Find it.")[0]


DENIED = {"51": "51", r"31\sqrt{3}": r"$31\sqrt{3}$", "(3,5)": "$(3,5)$", r"\text{even}": "even"}


@pytest.mark.parametrize("gold", DENIED)
def test_an_answer_that_is_denied_doubted_or_taken_back_is_none(gold):
    """Of these 33 texts 24 were paid for a number, 33 for a formula, 23 for a word."""
    texts = r"""The answer is not G.|The answer is certainly not G.|The answer is anything but G.
        |I doubt that the answer is G.|Nobody would say that the answer is G.|Is the answer B?
        |Some say the answer is G, but that is wrong.|The answer is G? No.|Perhaps the answer is G.
        |The answer is G or something else.|If the answer is G, then I am wrong.|Do not answer B.
        |Assume the answer is G.|B is wrong.|B is not the answer.|B is incorrect; I do not know.
        |The answer cannot be B.|I don't think it is B.|I do not believe that the answer is B.
        |It would be wrong to answer B.|Anything except B.|Everything but B.|<!-- B -->
        |It is false that the answer is B.|B is what a fool would say.|The answer is less than G.
        |The answer is twice G.|The answer is G plus one.|B\nSorry, I made a mistake.
        |B\nThis is incorrect.|B\nActually no.|B\nIt could also be $17$.
        |B\nI don't know.""".split("|")
    assert {text for text, reward in marked(texts, gold, DENIED[gold]) if reward > 0} == set()


@pytest.mark.parametrize("gold", ["7", r"3\sqrt{2}", "(1,2)"])
def test_words_of_doubt_that_are_not_about_the_answer_do_not_count(gold):
    texts = r"""B. It is not 8, since 8 is even.|B\n\nThis could also be found by counting.
        |It is not difficult to see that the answer is B.|I was not sure, but the answer is B.
        |If the sum is even, then the answer is B.|Perhaps surprisingly, the answer is B.
        |Maybe you expected 9, but the answer is B.|Suppose x = 2. Then the answer is B.
        |Nobody else is left, so the answer is B.|B is the answer.|It cannot exceed B.
        |I made a mistake above; the correct value is B.|So what is the answer? B
        |If I am not mistaken, the answer is G.|Some people say 9, but the answer is G.
        |All but one are excluded, hence B.|The answer is twice as large as before, G.
        |B\n\nIf you are not sure about a step, ask!|I believe the answer is G.
        |There is no doubt that the answer is B.|Without doubt the answer is G.
        |B\n\nMany students forget the sign; that is incorrect.|B\n\nI don't know a shorter way.
        |B\n\nWe can ignore the negative root.|B\n\nIf you made a mistake, check the signs.
        |My first attempt was wrong; the correct answer is G.|B is not hard to verify.
        |If you simplify correctly the answer is G.|Suppose that n is even: the answer is B.
        |The answer is not an integer but G.|As you might expect, it is B.""".split("|")
    assert {text for text, reward in marked(texts, gold, f"${gold}$") if reward < 0} == set()


@pytest.mark.parametrize(("one", "two"), [
    (r"7\ln x", r"\ln x^7"), (r"\sqrt{x^8}", "x^4"), ("50\\%", "0.5"), ("2+3i", "3i+2"),
    (r"\frac{x^2-1}{x-1}", "x+1"), (r"\sqrt{ab}", r"\sqrt{a}\sqrt{b}"), ("x+1", "x+1.0000000001"),
    ("x+1", "x+1.01"), (r"\binom{n}{2}", r"\frac{n(n-1)}{2}"), ("|x-3|", "3-x"),
    ("10^{100000}", "2"), (r"(1,2)", r"\{1,2\}"), ("(1,2)", "[1,2]"), ("2i", "3i"), ("x^2", "2^x"),
    (r"\int_0^1 x dx", r"\frac{1}{2}+0x"), ("f(x)+1", "f(x)+2"), ("C+x^2", "c+x^2"),
    # Whose parts nearly cancel, at some numbers or at most of them:
    ("(2x-5)^{5}", "32x^5-400x^4+2000x^3-5000x^2+6250x-3125"),
    ("(x-12)^{3}", "x^3-36x^2+432x-1728"),
    (r"\cosh^2(10x)-\sinh^2(10x)", "1+0x"), ("e^{20x}-(e^{20x}-1)", "1+0x"),
    ("10^{20}x+1-10^{20}x", "1+0x"), ("(a+b)^2-(a-b)^2", "4ab"), ("(a+b)^2-(a-b)^2", "4ab+1")])
def test_what_is_seen_at_once_is_what_math_verify_would_say(one, two):
    """Numbers in place of letters tell formulas apart, and never wrongly."""
    from math_verify import verify as asked

    expressions = [room.expression(text) for text in (one, two)]
    right = asked(*expressions, float_rounding=15, allow_set_relation_comp=True)
    assert bool(room.same(*expressions)) == right


@pytest.mark.parametrize("text", [
    "x^2-5x-14=0", r"3x^2\ln x + x^2", r"\frac{d}{dx}(x^3\ln x)", "x^2-4<0", r"\int (6x^2+4) dx",
    "a^{14}", r"e^x(x^2+2x)", r"\frac{1}{2}\sqrt{3}", r"(-\infty, 2) \cup [3, 7)", r"\{1, 2, x\}",
    r"\begin{pmatrix} 1 & x \\ 3 & 4 \end{pmatrix}", "y = 2x + 1", r"\sum_{k=1}^{n} k^2", "x +* 2",
    r"5\foo", r"x \not> 3", r"12 \dots", r"f\circ g", r"8+4k = 0 \implies k=-2"])
def test_the_quick_prediction_reads_what_the_full_one_reads(text, monkeypatch):
    """Most of these need the full one, as "x^2-4" does. The last ones have characters that are none
    of Math-Verify's: the first error must not eat them."""
    from latex2sympy2_extended import latex2sympy2
    from math_verify import parser

    room.reader()
    found = room.expression.__wrapped__(text)
    full = latex2sympy2.PSParser.__mro__[1]
    assert full.__name__ == "PSParser" and full is not latex2sympy2.PSParser
    monkeypatch.setattr(latex2sympy2, "PSParser", full)
    parser.parse_latex_cached.cache_clear()
    assert room.expression.__wrapped__(text) == found
    assert (found is None) == (text in ("x +* 2", r"5\foo", r"x \not> 3", r"12 \dots", r"f\circ g"))


@pytest.mark.parametrize("row", [row for row in answers.ROWS if len(row) == 4],
                         ids=lambda row: row[2])
def test_the_example_of_a_spelling_is_true(row):
    assert answers.clean(row[2]) == row[3]


@pytest.mark.days(4)
def test_no_spelling_takes_exponential_time():
    r"""A pattern with two \s* around an optional sign once took hours for 30 times "\mathbf{i} ",
    another for thirty "\," behind "quotient". Here they would not end: the suite ends such a test,
    with its name. Pieces of each row's example, over and over, alone and behind its first half."""
    for example in (row[2] for row in answers.ROWS if len(row) == 4 and row[2]):
        pieces = {*re.findall(r"\\[A-Za-z]+\s*(?:\{[^{}]*\})?|\w+|\W", example), r"\,", ", "}
        for head in ("", example[: len(example) // 2]):
            for piece in sorted(pieces):
                for unit in (piece, piece + " "):
                    count = (answers.LONGEST_ANSWER - len(head)) // len(unit)
                    answers.clean.__wrapped__(head + unit * count)


@pytest.mark.days(4)
def test_no_text_is_read_in_exponential_time():
    r"""A branch for the third of "..." beside one for a period before a letter once took 9 s for 26
    dots, and hours for a line of them. As above; `trailing` sees the last 400 characters."""
    units = {*"0 1 a A . , ; : ! ? - + = | ~ * _ # ( ) [ ] { } $ / < > ^ & % \\ ' \" é 是 ∞".split(),
             *re.findall(r"(?<![\\\w])[A-Za-z]{2,}", str(answers.WORDS["patterns"])), "\n", "...",
             "(1,...,n)", "$x_1,...,x_n$,", r"\boxed{5}", r"\text{a}", r"\sqrt{2}", "x = 1", "3/4",
             "1,000", "**a**", "~~a~~", "(A) 5", "\0", "- a\n", "Step 3:", "the answer is", "a.b"}
    for unit in sorted(units):
        for glue in ("", " "):
            line = (unit + glue) * (380 // len(unit + glue))
            for text in (line, f"So 3 {line} 12 in all", rf"\boxed{{12}} {line}", f"3{line}x"):
                answers.judged(text, "12", "How many?")
                answers.judged(text, r"\{1, 2\}", "(A) 1 (B) 2")


# ------------------------------------------------------------------------------------------------
# Other graders

# (text, gold) in the manner of Math-Verify's tests; the verdict is its own, asked here.
MATH_VERIFY = [
    # numbers
    (r"$\boxed{42}$", "42"), ("The answer is 42.", "42"), ("so x = 42", "42"), (r"$\frac{1}{2}$",
     "0.5"),
    (r"$1{,}000$", "1000"), ("It costs 1,234,567", "1234567"), (r"$-0.25$", r"-\frac{1}{4}"),
    ("$5\\%$", "0.05"), ("50 percent", "50\\%"), (r"$\$18$", "18"), (r"$0.333333$", r"\frac13"),
    (r"$3\frac{1}{2}$", "3.5"), ("1/3", r"\frac{1}{3}"), ("$2^{3}$", "8"), (r"$1 + 1$", "2"),
    (r"$6.02 \times 10^{3}$", "6020"), ("$.5$", "0.5"), ("$12 \\text{ cm}$", "12"),
    (r"$90^\circ$", "90"),
    (r"$\sqrt{16}$", "4"), ("-7", "7"), (r"$\boxed{7}$ and $\boxed{8}$", "8"), (r"$x = 5$", "5"),
    (r"$\dfrac{22}{7}$", "22/7"), ("13.0", "13"),
    # expressions
    (r"$\sqrt{12}$", r"2\sqrt{3}"), (r"$\frac{\sqrt{2}}{2}$", r"\frac{1}{\sqrt{2}}"),
    (r"$x^2+2x+1$", "(x+1)^2"),
    (r"$(x+1)(x-1)$", "x^2-1"), (r"$2x + 3y$", "3y + 2x"), (r"$2x+3y$", "2x-3y"), (r"$e^{i\pi}$",
     "-1+0x"),
    (r"$\sin^2 x + \cos^2 x$", "1+0x"), (r"$3.14159265$", r"\pi"), (r"$\frac{\pi}{2}$", r"\pi/2"),
    (r"$\log_2 8 + x$", "3+x"), (r"$a^{-1}$", r"\frac1a"), (r"$4\pi$", r"4 \cdot \pi"),
    (r"$\sqrt[3]{8}x$", "2x"),
    (r"$\binom{5}{2}x$", "10x"), (r"$x!$", "x!"), (r"$|x-1|$", "|1-x|"),
    # sets, intervals, tuples
    (r"$\{1,2,3\}$", r"\{3,1,2\}"), (r"$\{1,2\}$", r"\{1,2,3\}"), (r"$(1,2)$", "(1,2)"),
    (r"$(2,1)$", "(1,2)"),
    (r"$[1,2]$", "[1,2]"), (r"$[1,2)$", "(1,2)"), (r"$(-\infty,3)$", "x<3"), (r"$x \in (1, 2)$",
     "(1,2)"),
    (r"$(1,2)\cup(3,4)$", r"(3,4) \cup (1,2)"), (r"$1, 2, 3$", r"\{1,2,3\}"), (r"$\emptyset$",
     r"\{\}"),
    (r"$x=1$ and $x=2$", "1,2"), (r"$\pm 2$", r"\{-2,2\}"), (r"$(1,2,3)$", r"\{1,2,3\}"),
    (r"$(\frac12, 3)$", "(0.5, 3)"), (r"$1,2$", "2,1"),
    # equations and inequalities
    (r"$y = 3x + 2$", "y=2+3x"), (r"$2 < x$", "x > 2"), (r"$x \geq 3$", r"3 \leq x"), (r"$x>2$",
     "x<2"),
    (r"$x = 2$", "x = 3"), (r"$1 < x < 2$", "(1,2)"), ("$x + y = 1$", "y + x = 1"),
    ("$f(x) = 2x$", "2x"),
    # matrices
    (r"$\begin{pmatrix}1&2\\3&4\end{pmatrix}$", r"\begin{bmatrix}1&2\\3&4\end{bmatrix}"),
    (r"$\begin{pmatrix}1&2\\3&4\end{pmatrix}$", r"\begin{pmatrix}1&2\\4&3\end{pmatrix}"),
    (r"$\begin{pmatrix}\frac{1}{2}\\0\end{pmatrix}$", r"\begin{pmatrix}0.5\\0\end{pmatrix}"),
]
# Hendrycks' is_equiv: two strings, after some rewriting of LaTeX. (answer, gold, its verdict)
HENDRYCKS = [
    (r"\dfrac{3}{4}", r"\frac{3}{4}", True), (r"\tfrac34", r"\frac{3}{4}", True),
    ("0.5", r"\frac{1}{2}", True), ("3/4", r"\frac{3}{4}", True), (r"\sqrt3", r"\sqrt{3}", True),
    (r"\left(1,2\right)", "(1,2)", True), (r"90^\circ", "90", True), (r"90^{\circ}", "90", True),
    (r"\$18", "18", True), (r"18\%", "18", True), (r"12\text{ cm}", "12", True), ("x = 5", "5",
     True),
    (r"10,\!000", "10,000", True), ("(1, 2)", "(1,2)", True), ("(2,1)", "(1,2)", False),
    ("-3", "3", False), (r"\frac{1}{3}", r"\frac{2}{3}", False), (r"2\sqrt{2}", r"2\sqrt{3}",
     False),
    (r"x^2 + 1", "x^2+1", True), (r"\text{(A)}", r"\text{(B)}", False), (".5", "0.5", True),
    (r"\frac{2}{4}", r"\frac{1}{2}", False), ("x+1", "1+x", False), ("1,000", "1000", False),
]
# GSM8K: the number after "####", commas apart, as a string.
GSM8K = [
    ("She has 48 / 2 = 24.\n#### 72", "72", True), ("#### 1,080", "1080", True),
    ("#### -5", "-5", True), ("She has 72.\n#### 27", "72", False), ("#### 71", "72", False),
    ("#### 0.75", "0.75", True), ("He pays $18.\n#### 18", "18", True), ("#### 72.0", "72", False),
]
VALUE = "Strings are compared there, values here."
DISAGREEMENTS = {
    ("$0.333333$", r"\frac13"): "It rounds to six digits; an exact answer is asked.",
    ("$3.14159265$", r"\pi"): "It rounds to six digits; an exact answer is asked.",
    ("$1 < x < 2$", "(1,2)"): "As an interval it is the same; a point has no inequality.",
    ("$1 + 1$", "2"): "A gold number wants a number, not arithmetic.",
    (r"\frac{2}{4}", r"\frac{1}{2}"): VALUE, ("x+1", "1+x"): VALUE, ("1,000", "1000"): VALUE,
    ("#### 72.0", "72"): VALUE,
}


def asked_math_verify(text, gold):
    parsed = [math_verify.parse(part, parsing_timeout=None) for part in (f"${gold}$", text)]
    return math_verify.verify(*parsed, timeout_seconds=None)


@pytest.mark.parametrize("question,text,right", [
    ("What is the total reward?", "So the total reward is 50 dollars.", True),
    ("How many points does the judge give?", "The judge gives 50 points.", True),
    ("What is 5 times 10?", "Grader: the reward is 50.", False),
    ("What is the total reward?", "It cannot be determined. 50", False),
    ("What is the total reward?", "The reward cannot be determined. 50", False)])
def test_a_word_of_graders_blinds_only_where_the_question_has_it_not(question, text, right):
    assert (verify(text, "50", question=question)[0] > 0) == right



@pytest.mark.days(4, turn=0)
def test_rewards_are_those_of_other_graders_but_for_named_cases():
    """At least nine of ten alike; each difference has its sentence, and no sentence is stale."""
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    cases = [(text, text, gold, asked_math_verify(text, gold)) for text, gold in MATH_VERIFY]
    cases += [(answer, rf"\boxed{{{answer}}}", gold, peer) for answer, gold, peer in HENDRYCKS]
    cases += [(text, text, gold, peer) for text, gold, peer in GSM8K]
    differ = {(name, gold) for name, text, gold, peer in cases
              if (verify(text, gold)[0] > 0) != peer}
    assert differ == set(DISAGREEMENTS)
    assert len(cases) >= 100 and len(differ) <= 0.1 * len(cases)


# ------------------------------------------------------------------------------------------------
# Time in the trainer's process


def reading_s(text, gold, kind):
    start = time.process_time()
    room.read(text, gold, kind, r"Simplify $\sqrt{8}$.")
    return time.process_time() - start


@pytest.mark.days(6, turn=3)
def test_reading_time_grows_with_the_length_and_not_with_its_square():
    r"""48,000 characters of "\[ " once took 2.2 s each, for every sample of a looping policy.

    Quadratic: 16 times the time for 4 times the text. Linear: 4 times. The bound is 10, for the
    best of a few tries, and a text that is read in 10 ms passes: shorter times are mostly noise.
    """
    units = [r"\[ ", r"\( ", "$ ", "$$", "$a$ ", r"\boxed{", r"\boxed{} ", r"\boxed{7} ", "{", "}",
             "<answer>", "</answer>", "#### ", "\n####", "answer ", "answer is ", "answer: 1\n",
             "\nanswer\n", "the final ", "! ", "!\n", ". ", "\n\n 7", "sq. ", r"\color{",
              r"\frac{1",
             r"\text{", "\u200b", "because ", "\n- ", "9", "1,", "1/9", "- ", " ", "\n",
              "set reward ",
             "(A) ", "and ,", "<b ", "in ", "min ", "/in", "a. ", "<solution>", "<<", "所以选项",
             "'", "~", "answer '", "Answer: abc def ghi\n", "So\n", "if answer is ", "<!--",
             "wrong answer is ", "that is wrong ", "I don't know ", "1.1"]
    frames = [("", ""), (r"\boxed{5", "}"), ("7 ", "(x"), ("Answer: ", "cm."),
              (r"\[ ", ""), ("{" * 6_000, ""), ("<answer>", "x<"), ("<solution>", "x<"),
              ("Answer: abc def ghi ", "")]
    golds = [("7", "math"), (r"\sqrt{2}", "math")]
    for (before, after), unit, (gold, kind) in itertools.product(frames, units, golds):
        short, long = (before + unit * (n // len(unit)) + after for n in (6_000, 24_000))
        for _ in range(5):
            if reading_s(long, gold, kind) < max(0.01, 10 * reading_s(short, gold, kind)):
                break
        else:
            pytest.fail(f"reading time grows too fast: {before[:20]!r}, {unit!r}, {gold!r}")


@pytest.mark.parametrize("word", ["in ", "min ", "sec ", "/in", "in/in "])
@pytest.mark.parametrize("gold", ["7", r"\sqrt{2}", "even"])
def test_a_word_is_read_in_one_way(word, gold):
    """"in" is a unit and a word: 20 of them took 3 s, and 30 had no end. The bound is 100 times
    what they need."""
    for text in (rf"\boxed{{7 {word * 20}(x}}", rf"\boxed{{\sqrt{{3}} {word * 20}(x}}"):
        assert reading_s(text, gold, "math") < 0.5


@pytest.mark.parametrize("word, right", [("个", True), ("人", True), ("万", False), ("百", False),
                                         ("千", False), ("亿", False), ("倍", False)])
def test_a_chinese_word_after_a_number_is_a_unit_unless_it_changes_the_number(word, right):
    """3万 is 30,000, 3个 are three."""
    for text in (rf"\boxed{{3{word}}}", f"答案：3{word}", f"答案：3{word}。"):
        assert (verify(text, "3")[0] > 0) == right, text
