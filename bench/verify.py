"""How many marks a second: short numbers, formulas, and programs.

    python bench/verify.py                 about a minute on two cores

Numbers are marked in the trainer's process on one core; formulas by two worker processes, fresh
ones and repeated ones (the samples of a prompt give few different answers).
"""

import argparse
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from tasks.sandbox import SandboxError, UnitTests, check_sandbox  # noqa: E402
from tasks.verifier import Verifier  # noqa: E402


def numbers(count, rng):
    """Short numeric answers as models give them, half of them right."""
    forms = (r"So the answer is \boxed{{{}}}.", "The answer is {}.", "{}", r"$\boxed{{{}}}$")
    items = []
    for _ in range(count):
        gold = rng.randint(-10_000, 10_000)
        found = gold if rng.random() < 0.5 else gold + rng.randint(1, 9)
        items.append((rng.choice(forms).format(found), str(gold), "math"))
    return items


def formulas(count, rng):
    """Short answers that need algebra, half of them right, no two alike."""
    items = []
    for i in range(count):
        a, b = rng.randint(2, 99), 1000 + i
        items.append((rf"\boxed{{{a}x+{b + (i % 2)}}}", f"{b}+{a}x", "math"))
    return items


def programs(count, rng):
    """Programs with three tests each, every second one wrong in the last; no two alike."""
    items = []
    for i in range(count):
        a = rng.randint(2, 99)
        program = f"```python\n# {i}\nx = int(input())\nprint(x * {a})\n```"
        tests = UnitTests(("1", "2", "3"), (f"{a}", f"{2 * a}", f"{3 * a + i % 2}"))
        items.append((program, tests.to_json(), "code"))
    return items


def rate(verifier, items, right=None):
    """Checks a second, from the first item to the last mark; the marks must be right."""
    start = time.perf_counter()
    marks = verifier.score(items)
    seconds = time.perf_counter() - start
    assert right is None or abs(marks.rewards.count(1.0) / len(items) - right) < 0.05, marks.reasons
    return len(items) / seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    rng = random.Random(parser.parse_args().seed)
    print(f"{'what':<44} {'checks/s':>9}")
    with Verifier(workers=2) as verifier:
        thinking = "so 3 + 4 = 7, " * 500
        for name, text in (("alone", ""), ("after 2,000 tokens of thinking", thinking)):
            items = [(f"{text}</think>{t}", a, k) for t, a, k in numbers(20_000, rng)]
            print(f"{'short numbers, ' + name:<44} {rate(verifier, items, 0.5):9,.0f}")
        verifier.score([(r"\boxed{y}", "2y-y", "math"), (r"\boxed{z}", "2z-z", "math")])  # start
        items = formulas(400, rng)
        print(f"{'formulas, two workers, all new':<44} {rate(verifier, items, 0.5):9,.0f}")
        print(f"{'formulas, two workers, all seen before':<44} {rate(verifier, items, 0.5):9,.0f}")
        for name, unsafe in (("in bubblewrap", False), ("limits only", True)):
            try:
                check_sandbox(unsafe)
            except SandboxError as error:
                print(error)
                continue
            verifier.unsafe_code = unsafe
            print(f"{f'programs of three tests, two at once, {name}':<44} "
                  f"{rate(verifier, programs(60, rng), 0.5):9.1f}")


if __name__ == "__main__":
    main()
