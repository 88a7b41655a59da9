r"""What answers.py promises: the ways in which models end their texts, and what graders agree on.

The oracle is a person: every gold answer below stands beside another right spelling and a wrong
answer that is near to it. For formulas of Math-Verify's kind: Math-Verify itself.
"""

import itertools
import json
import logging
import random
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
    (r"a \ge 1", r"a\geq1", r"a \ge 2"),
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
# Answers labelled by hand, and texts that look for the reward

FOLDER = ROOT / "bench" / "answers"


@pytest.mark.parametrize("part", ["right_mend", "wrong_mend", "hack_mend"])
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


def test_no_text_that_looks_for_the_reward_is_paid(verifier, seed):
    """Boxes in boxes, lists of everything, phrases for the grader, the question as the answer."""
    hacks = runpy.run_path(FOLDER / "hacks.py")["hacks"](400, random.Random(seed))
    rewards = verifier.score(hacks).rewards
    assert [hack for hack, reward in zip(hacks, rewards) if reward > 0] == []


@pytest.mark.parametrize("row", [row for row in answers.ROWS if len(row) == 4],
                         ids=lambda row: row[2])
def test_the_example_of_a_spelling_is_true(row):
    assert answers.clean(row[2]) == row[3]


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
    ("$2^{3}$", "8"): "Where nothing is declared, a gold number wants a number.",
    (r"$\sqrt{16}$", "4"): "Where nothing is declared, a gold number wants a number.",
    ("$1 + 1$", "2"): "A gold number wants a number, not arithmetic.",
    (r"\frac{2}{4}", r"\frac{1}{2}"): VALUE, ("x+1", "1+x"): VALUE, ("1,000", "1000"): VALUE,
    ("#### 72.0", "72"): VALUE,
}


def asked_math_verify(text, gold):
    parsed = [math_verify.parse(part, parsing_timeout=None) for part in (f"${gold}$", text)]
    return math_verify.verify(*parsed, timeout_seconds=None)


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
             "(A) ", "and ,", "<b ", "in ", "min ", "/in"]
    frames = [("", ""), (r"\boxed{5", "}"), ("7 ", "(x"), ("Answer: ", "cm."),
              (r"\[ ", ""), ("{" * 6_000, "")]
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
