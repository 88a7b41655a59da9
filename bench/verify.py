"""How many marks a second, and how other graders judge the same answers.

    python bench/verify.py                 about a minute on two cores
    python bench/verify.py --peers         our grader beside Math-Verify's and TRL's
    python bench/verify.py --peers --verl /tmp/verl/verl      and verl's four, from that folder
    python bench/verify.py --frames        the same answers, in other words: ours and Math-Verify
    python bench/verify.py --classes       the same answers, in other notation: ours and Math-Verify

TRL comes with make test; verl and what its graders need, without Ray, into a folder of their own:

    pip install --no-deps --target /tmp/verl verl==0.9.1 pylatexenc==2.11

The peers judge the answers that were set aside in bench/answers/, labelled by hand before anything
was mended (its README.md): right ones by form, wrong ones, and texts that look for the reward.
Numbers are marked in the trainer's process on one core; formulas by two worker processes.
"""

import argparse
import gc
import json
import logging
import random
import re
import runpy
import statistics
import sys
import time
import types
from collections import Counter
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
from tasks import sandbox  # noqa: E402
from tasks.answers import BOX  # noqa: E402
from tasks.sandbox import UnitTests  # noqa: E402
from tasks.verifier import Verifier, grade, read, reader, verify  # noqa: E402


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
        items.append((program, json.dumps(tests), "code"))
    return items


def rate(verifier, items, right=None):
    """Checks a second, from the first item to the last mark; the marks must be right."""
    start = time.perf_counter()
    marks = verifier.score(items)
    seconds = time.perf_counter() - start
    assert right is None or abs(marks.rewards.count(1.0) / len(items) - right) < 0.05, marks.reasons
    return len(items) / seconds


def math_verify(text, gold, question):
    """Math-Verify as its README shows it."""
    import math_verify as peer

    return peer.verify(peer.parse(f"${gold}$"), peer.parse(text))


def trl(text, gold, question):
    from trl.rewards import accuracy_reward

    # In "$": of a gold answer that is a bare formula it reads nothing, and skips the sample.
    return accuracy_reward([[{"role": "assistant", "content": text}]], [f"${gold}$"])[0] == 1.0


def verl(folder):
    """{name: grader} of verl's four for math, without its packages that need Ray."""
    sys.path.append(str(Path(folder).parent))  # what it needs is installed beside it
    for name in ("verl", "verl.utils", "verl.utils.reward_score"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(Path(folder, *name.split(".")[1:]))]
    math, dapo, prime, mv = (import_module(f"verl.utils.reward_score.{name}") for name in (
        "math_reward", "math_dapo", "prime_math", "math_verify"))
    return {"verl math": lambda text, gold, _: math.compute_score(text, gold) > 0,
            "verl DAPO": lambda text, gold, _: dapo.compute_score(text, gold)["score"] > 0,
            "verl PRIME": lambda text, gold, _: bool(prime.compute_score(text, gold)[0]),
            "verl Math-Verify": lambda text, gold, _: mv._verify_in_subprocess(  # here, not there
                rf"\boxed{{{gold}}}", text) > 0}


def peers(folder, rng):
    """The table: of right answers how many are refused, of wrong ones and hacks how many paid."""
    logging.disable(logging.CRITICAL)
    rows = {kind: [(form.split()[0] if kind == "hack" else form, text, gold, question)
                   for form, gold, text, question, _ in map(json.loads, (
                       ROOT / "bench" / "answers" / f"{kind}_aside.jsonl").open(encoding="utf-8"))]
            for kind in ("right", "wrong", "hack")}
    hacks = runpy.run_path(ROOT / "bench" / "answers" / "hacks.py")["hacks"](100, rng)
    rows["hack"] += [("made by hacks.py", text, gold, question)
                     for text, gold, _, question in hacks]
    graders = {"ours": lambda text, gold, question: verify(text, gold, "math", question)[0] > 0,
               "Math-Verify": math_verify, "TRL": trl, **(verl(folder) if folder else {})}
    sizes = Counter((kind, form) for kind in rows for form, *_ in rows[kind])
    wrong, failed, cost, boxed = {}, Counter(), {}, Counter()
    for name, grader in graders.items():
        wrong[name], start = Counter(), time.process_time()
        for kind in rows:
            for form, text, gold, question in rows[kind]:
                try:
                    paid = grader(text, gold, question)
                except Exception:  # theirs: no answer is a refusal, and is counted
                    paid, failed[name] = False, failed[name] + 1
                wrong[name][kind, form] += paid != (kind == "right")
                boxed[name] += kind == "right" and not paid and r"\boxed" in text
        cost[name] = 1000 * (time.process_time() - start) / sizes.total()
        print(name, *(f"{kind} {sum(n for (k, _), n in wrong[name].items() if k == kind)}"
                      for kind in rows), flush=True)
    print("| refused of right, paid of wrong | n |", *(f"{name} |" for name in graders))
    print("|---|---|" + "---|" * len(graders))
    for key, size in sizes.items():
        print(f"| {key[0]}: {key[1]} | {size} |", *(f"{wrong[name][key]} |" for name in graders))
    for kind in rows:
        n = sum(size for key, size in sizes.items() if key[0] == kind)
        print(f"| **all {kind}** | {n} |", *(
            f"{sum(wrong[name][key] for key in sizes if key[0] == kind)} |" for name in graders))
    in_boxes = sum(r"\boxed" in text for _, text, *_ in rows["right"])
    print(f"| of right, in a box | {in_boxes} |", *(f"{boxed[name]} |" for name in graders))
    print("| exceptions | |", *(f"{failed[name]} |" for name in graders))
    print("| CPU ms a reward | |", *(f"{cost[name]:.1f} |" for name in graders))


def boxed(paths):
    """(gold answer, what the box holds, question) of texts in labelled sets that have one box."""
    rows = [json.loads(line) for path in paths for line in path.open(encoding="utf-8")]
    rows = [row[-3:] if row[0] in ("right", "wrong") else row[1:4] for row in rows]
    return [(gold, *boxes, question) for gold, text, question in rows
            if len(boxes := BOX.findall(text)) == 1 and boxes[0].strip()
            and not re.search(r"(?i)answer|wins|\n|approx|possibly|boxed|it cannot", boxes[0])]


def frames(rng, count=300):
    """Boxed answers of the labelled sets in other endings (frames.jsonl): how many of those that
    are paid in a plain box are refused in a frame, and of the others how many are paid there."""
    logging.disable(logging.CRITICAL)
    folder = ROOT / "bench" / "answers"
    others = "borders frames hack_paid notation review".split()
    rows = rng.sample(boxed(path for path in sorted(folder.glob("*.jsonl"))
                            if path.stem not in others), count)
    endings = [json.loads(line) for line in (folder / "frames.jsonl").open(encoding="utf-8")]
    for name, grader in {"ours": lambda text, gold, question: verify(
            text, gold, "math", question)[0] > 0, "Math-Verify": math_verify}.items():
        asked, changed = Counter(), Counter()
        for gold, part, question in rows:
            plain = bool(grader(rf"\boxed{{{part}}}", gold, question))
            for writer, place, frame in endings:
                asked[plain, writer, place] += 1
                changed[plain, writer, place] += bool(
                    grader(frame.format(part), gold, question)) != plain
        for (plain, writer, place), n in sorted(asked.items()):
            print(f"{name}: {'paid' if plain else 'refused'} in a plain box, {writer} frames, "
                  f"{place}: {changed[plain, writer, place]} of {n} the other way "
                  f"({changed[plain, writer, place] / n:.2%})", flush=True)


def pairs():
    """{writer: [(label, gold answer, text, question)]} of classes.json: each right notation of an
    answer against each other one as the gold answer, and what is nearly right against all."""
    classes = json.loads((ROOT / "bench" / "answers" / "classes.json").read_text("utf-8"))
    return {writer: [(label, gold, rf"So the answer is \boxed{{{part}}}.", each["question"])
                     for each in rows for gold in each["right"] for label in ("right", "wrong")
                     for part in each[label]] for writer, rows in classes.items()}


def in_other_notation():
    """How many of the `pairs` are judged wrongly."""
    logging.disable(logging.CRITICAL)
    with Verifier(workers=2) as verifier:
        for writer, rows in pairs().items():
            scores = verifier.score([(text, gold, "math", q) for _, gold, text, q in rows])
            verdicts = {"ours": [reward > 0 for reward in scores.rewards],
                        "Math-Verify": [math_verify(text, gold, q) for _, gold, text, q in rows]}
            for name, paid in verdicts.items():
                n = Counter(label for label, *_ in rows)
                bad = Counter(row[0] for row, each in zip(rows, paid, strict=True)
                              if bool(each) != (row[0] == "right"))
                print(f"{name}, {writer} writer: {bad['right']} of {n['right']} right refused, "
                      f"{bad['wrong']} of {n['wrong']} wrong paid", flush=True)


def looking_for_reward(rng):
    """CPU time of our 2,000 texts, read and graded in this process, which begins as a worker does.
    As in a batch of a run, what comes again is graded once."""
    reader()
    gc.freeze()
    times, graded = [], {}
    for item in runpy.run_path(ROOT / "bench" / "answers" / "hacks.py")["hacks"](2000, rng):
        start = time.process_time()
        reason = job = read(*item)
        if isinstance(job, tuple):
            reason = graded[job] = graded.get(job) or grade(*job)
        times.append(1000 * (time.process_time() - start))
        assert reason != "correct", item
    print(f"2,000 texts that look for the reward: {statistics.fmean(times):.2f} ms of CPU time in "
          f"the mean, {max(times):.0f} ms the worst; Math-Verify is asked {len(graded)} times")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peers", action="store_true", help="our grader beside others")
    parser.add_argument("--frames", action="store_true", help="the same answers in other endings")
    parser.add_argument("--classes", action="store_true", help="the same, in other notation")
    parser.add_argument("--verl", help="the folder of an installed verl")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    if options.peers:
        return peers(options.verl, rng)
    if options.frames:
        return frames(rng)
    if options.classes:
        return in_other_notation()
    looking_for_reward(random.Random(options.seed))
    print(f"{'what':<44} {'checks/s':>9}")
    with Verifier(workers=2) as verifier:
        thinking = "so 3 + 4 = 7, " * 500
        for name, text in (("alone", ""), ("after 2,000 tokens of thinking", thinking)):
            items = [(f"{text}</think>{t}", a, k) for t, a, k in numbers(20_000, rng)]
            print(f"{'short numbers, ' + name:<44} {rate(verifier, items, 0.5):9,.0f}")
        verifier.score([(r"\boxed{y}", "2y-y", "math"), (r"\boxed{z}", "2z-z", "math")])  # start
        items = formulas(400, rng)
        print(f"{'formulas, two workers, all new':<44} {rate(verifier, items, 0.5):9,.0f}")
        for walls in ("bubblewrap", "Landlock"):
            if cause := sandbox.failure(walls):
                print(f"{walls}: {cause}")
                continue
            sandbox.which_walls = lambda: walls
            print(f"{f'programs of three tests, two at once, {walls}':<44} "
                  f"{rate(verifier, programs(60, rng), 0.5):9.1f}")


if __name__ == "__main__":
    main()
