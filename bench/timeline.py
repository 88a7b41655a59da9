"""The README's picture of a step, docs/timeline.png, from a run that has recorded some.

    python bench/timeline.py runs/demo --out docs/timeline.png

It is the picture of `scalerl.py --report`: of the steps whose samples' times the run has written
down (every tenth), the first one that most versions of the weights have written.
"""
import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from command import report, symptoms


def main(argv=None):
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("run", type=Path, metavar="RUN", help="a run's folder")
    p.add_argument("--out", default="docs/timeline.png", help="docs/timeline.png")
    args = p.parse_args(argv)
    rows = symptoms.read(args.run)
    figure, sentence = report.one_step(args.run / "groups.jsonl", rows)
    if not rows:
        p.exit(2, f"timeline.py: {args.run} has no log of a run\n")
    if figure is None:
        p.exit(2, f"timeline.py: {args.run}: {sentence}\n")
    figure.savefig(args.out, dpi=130)
    print(f"{args.out}: {sentence}")


if __name__ == "__main__":
    main()
