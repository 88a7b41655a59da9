"""Exercise 8: a plan, ten runs that bear its hash, and a conclusion that the interval allows."""

import base64
import hashlib
import json
import os
import random
import shutil
import subprocess
import tomllib

import numpy as np
import pytest
from conftest import ROOT, random_llama, run_command
from grading import box, sandboxed
from made_runs import made
from scipy import stats

from command.options import parse
from course import experiment, grade, student
from course.hidden import replay
from study import toy

PLAN = """\
# A plan
base: configs/stress.toml
changed: loss = "grpo"
measure: end
smallest: 0.05
expected: higher
seeds: 3 1 4 15 9

I expect more.
"""
STEPS, EVERY = 140, 10         # those of configs/stress.toml
GAINS = np.array([0.10, 0.14, 0.06, 0.12, 0.09])


def write(tree, plan=PLAN, gains=GAINS, sd=0.004, name="experiment", higher=(0, 1)):
    """A students' tree with the ten runs of a plan, made; the curves of arm i end `gains` times
    higher[i] higher than the base's."""
    folder = tree / name
    folder.mkdir(parents=True)
    (folder / "plan.md").write_text(plan)
    told = experiment.read_plan(folder)
    for i, names in enumerate(experiment.run_names(told)):
        for arm, name in enumerate(names):
            A = 0.6 + higher[arm] * gains[i]
            C, R = made(end=30_000, n=STEPS // EVERY + 1, sd=sd, seed=7 * i + arm, A=A,
                        exact_R0=False)
            run = tree / "runs" / name
            (run / "source" / "engines").mkdir(parents=True)
            (run / "source" / "loss.py").write_text("x = 1\n")
            (run / "source" / "engines" / "head.py").write_text("y = 1\n")
            (run / "config.toml").write_text(
                f'name = "{name}"\nseed = {told["seeds"][i]}\nsteps = {STEPS}\nlr = 6e-4\n'
                f'eval_every = {EVERY}\nloss = "{("cispo", "grpo", "cispo")[arm]}"\n'
                f'eps_max = {4.0 if arm == 2 else 5.0}\n')
            (run / "versions.json").write_text(json.dumps({"git": commit_of(folder, plan)}))
            (run / "metrics.jsonl").write_text("".join(
                json.dumps({"step": n, "pass_rate": n / STEPS + i / 1000 + arm / 9000}) + "\n"
                for n in range(STEPS + 1)))
            (run / "evals.jsonl").write_text("".join(
                json.dumps({"step": n * EVERY, "compute/flops": c, "eval/toy/mean@1": r}) + "\n"
                for n, (c, r) in enumerate(zip(C, R))))
    return tree


def commit_of(place, plan):
    """Git's objects of a commit that holds this plan, by hand -> its id."""
    def made(kind, data):
        return hashlib.sha1(kind.encode() + b" %d\0" % len(data) + data).digest()
    folder = b"100644 a.txt\0" + bytes(20) + b"100644 plan.md\0" + made("blob", plan.encode())
    root = b"40000 " + place.name.encode() + b"\0" + made("tree", folder)
    root += b"100644 loss.py\0" + bytes(20)
    commit = b"tree " + made("tree", root).hex().encode() + b"\nauthor A <a@b> 1 +0000\n\nplan\n"
    name = made("commit", commit).hex()
    (place / "commits.json").write_text(json.dumps(
        {name: [base64.b64encode(each).decode() for each in (commit, root, folder)]}))
    return name


@pytest.fixture
def tree(tmp_path):
    return write(tmp_path)


def run_of(tree, arm, seed):
    run, = (tree / "runs").glob(f"{arm}-*-seed{seed}")
    return run


def conclude(tree, text):
    (tree / "experiment" / "conclusion.md").write_text(text)


def interval(tree):
    """By scipy, from the logs."""
    d = []
    for seed in (3, 1, 4, 15, 9):
        ends = [np.mean([json.loads(line)["eval/toy/mean@1"] for line in (
            run_of(tree, arm, seed) / "evals.jsonl").read_text().splitlines()[-5:]])
            for arm in ("base", "changed")]
        d.append(ends[1] - ends[0])
    return stats.t.interval(0.9, 4, np.mean(d), stats.sem(d))


def test_an_honest_experiment_has_all_five_parts(tree):
    low, high = interval(tree)
    conclude(tree, f"The end is higher by [{low:.3f}, {high:+.3f}].\nverdict: higher\n")
    done, why = experiment.grade(tree / "experiment")
    assert why == "" and len(done) == 5, why
    assert f"[{low:+.3f}, {high:+.3f}]: higher, expected was higher" in done[2]


def test_a_plan_of_windows_is_that_which_git_has_kept_with_other_line_ends(tree):
    low, high = interval(tree)
    conclude(tree, f"The end is higher by [{low:.3f}, {high:+.3f}].\nverdict: higher\n")
    plan = tree / "experiment" / "plan.md"
    plan.write_bytes(PLAN.replace("\n", "\r\n").encode())
    done, why = experiment.grade(tree / "experiment")
    assert why == "" and len(done) == 5, why


def test_a_plan_with_a_mark_before_its_text_is_read(tree):
    plan = tree / "experiment" / "plan.md"
    expected = experiment.read_plan(tree / "experiment")
    plan.write_bytes(b"\xef\xbb\xbf" + PLAN.encode())
    assert experiment.read_plan(tree / "experiment") == expected


def test_a_plan_that_was_changed_after_its_runs_has_no_runs(tree):
    plan = tree / "experiment" / "plan.md"
    plan.write_text(PLAN.replace("expected: higher", "expected: lower"))
    done, why = experiment.grade(tree / "experiment")
    assert not done and "the plan was changed after its runs" in why and "(10 are)" in why


def test_a_plan_that_was_committed_after_its_runs_has_no_point(tree):
    """The runs' commit holds another plan, or none, or is made up, or there is none at all."""
    low, high = interval(tree)
    conclude(tree, f"[{low:.3f}, {high:+.3f}]\nverdict: higher\n")
    kept, run = tree / "experiment" / "commits.json", run_of(tree, "changed", 15)
    right, version = kept.read_text(), (run / "versions.json").read_text()
    name, = json.loads(right)
    other = commit_of(tree / "experiment", PLAN.replace("higher", "lower"))
    forged = {name: json.loads(kept.read_text())[other]}
    for commits, said, words in [
            (forged, version, "does not hold this plan"),
            (json.loads(right), json.dumps({"git": "1" * 40}), "does not hold the runs' commits"),
            (json.loads(right), '{"git": ""}', "in a tree without a commit"),
            (json.loads(right), "{}", "names no commit"),
            ([], version, "does not hold the runs' commits"),
            ({name: ["AAAA"] * 3}, version, "does not hold this plan"),
            ({name: ["!"] * 3}, version, "does not hold this plan")]:
        kept.write_text(json.dumps(commits))
        (run / "versions.json").write_text(said)
        done, why = experiment.grade(tree / "experiment")
        assert not done and words in why, why
    kept.write_text(right)
    (run / "versions.json").write_text(json.dumps({"git": f"{name}-dirty"}))
    assert len(experiment.grade(tree / "experiment")[0]) == 5


def test_make_check_keeps_the_commit_of_a_real_history(tree):
    def git(*words):
        return subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words],
                              cwd=tree, check=True, text=True, capture_output=True).stdout.strip()
    (tree / "experiment" / "commits.json").unlink()
    plan = tree / "experiment" / "plan.md"
    git("init", "-q")
    plan.write_text("other")
    git("add", "experiment/plan.md")
    git("commit", "-qm", "another plan")
    early = git("rev-parse", "HEAD")
    plan.write_text(PLAN)
    git("commit", "-qam", "plan")
    late = git("rev-parse", "HEAD")
    for name, done in ((early, 0), (late, 4)):
        for run in (tree / "runs").iterdir():
            (run / "versions.json").write_text(json.dumps({"git": name}))
        experiment.main([str(tree / "experiment")])
        assert [*json.loads((tree / "experiment" / "commits.json").read_text())] == [name]
        conclude(tree, "[{:.3f}, {:.3f}]".format(*interval(tree)))
        assert len(experiment.grade(tree / "experiment")[0]) == done


def test_an_ablation_has_an_interval_and_a_verdict_for_each_change(tmp_path):
    """Ten percent of error are shared by the changes; all are held against one base."""
    plan = PLAN.replace('"grpo"', '"grpo"; eps_max = 4.0').replace(
        "expected: higher", "expected: higher; no difference")
    folder = write(tmp_path, plan, name="ablation", higher=(0, 1, 0)) / "ablation"
    done, why = experiment.grade(folder)
    assert len(done) == 3 and "15 runs" in done[1] and "conclusion.md is missing" in why
    ends = np.array([[np.mean([json.loads(line)["eval/toy/mean@1"] for line in (
        run_of(tmp_path, arm, seed) / "evals.jsonl").read_text().splitlines()[-5:]])
        for seed in (3, 1, 4, 15, 9)] for arm in ("base", "changed1", "changed2")])
    text = ""
    for d in ends[1:] - ends[0]:
        low, high = stats.t.interval(0.95, 4, d.mean(), stats.sem(d))
        assert f"[{low:+.3f}, {high:+.3f}]" in done[2]
        text += f"[{low:.3f}, {high:.3f}]\n"
    (folder / "conclusion.md").write_text(f"{text}verdict: higher\n")
    done, why = experiment.grade(folder)
    assert len(done) == 4 and "needs 2 lines `verdict: higher`, `verdict: no difference`" in why
    (folder / "conclusion.md").write_text(f"{text}verdict: higher\nverdict: no difference\n")
    assert len(experiment.grade(folder)[0]) == 5
    (folder / "plan.md").write_text(PLAN)
    with pytest.raises(experiment.BadInput, match="has 1 settings, and must have 2 to 3"):
        experiment.read_plan(folder)


def test_where_plans_were_collected_another_one_has_no_point(tree):
    points, notes = replay.points(tree, "experiment", 14, 0, None, plan=b"another")
    assert points == 0 and "not the one that was handed in before the runs" in notes[0]


def cut(path, line):
    kept = path.read_text().splitlines(keepends=True)
    del kept[line]
    path.write_text("".join(kept))


@pytest.mark.parametrize("log, line, words", [
    ("metrics.jsonl", 17, "no line of step 17 (1 are missing)"),
    ("metrics.jsonl", -1, "no line of step 140"), ("evals.jsonl", 0, "no line of evaluation 0"),
    ("evals.jsonl", -1, "no line of evaluation 140")])
def test_a_log_with_a_hole_is_not_complete(tree, log, line, words):
    cut(run_of(tree, "changed", 4) / log, line)
    done, why = experiment.grade(tree / "experiment")
    assert len(done) == 1 and words in why


def test_a_run_that_is_a_copy_of_another_seeds_is_seen(tree):
    shutil.copy(run_of(tree, "base", 4) / "metrics.jsonl", run_of(tree, "base", 15))
    why = experiment.grade(tree / "experiment")[1]
    assert "two seeds of base have the same pass rate in every step" in why


def replaced(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize("arm, file, old, new, words", [
    ("changed", "config.toml", "lr = 6e-4", "lr = 3e-4", "seed 9 differ in loss, lr: the plan"),
    ("changed", "config.toml", '"grpo"', '"cispo"', "seed 9 differ in nothing: the plan"),
    ("changed", "config.toml", '"grpo"', '"dapo"', "seed 9 differ in loss: the plan"),
    ("base", "config.toml", "seed = 9", "seed = 8", "with seed 8"),
    ("base", "config.toml", 'name = "base', 'name = "best', "was run as best-"),
    ("base", "source/loss.py", "1", "2", "all have to be of one code")])
def test_a_pair_differs_in_the_planned_setting_alone(tree, arm, file, old, new, words):
    replaced(run_of(tree, arm, 9) / file, old, new)
    done, why = experiment.grade(tree / "experiment")
    assert len(done) == 2 and words in why


def test_copies_of_the_bases_runs_are_no_experiment(tree):
    """A setting that the recipe ignores changes nothing: two lines of config.toml would do for
    five runs. Numbers of time may differ, and so may the evaluations."""
    for seed in (3, 1, 4, 15, 9):
        lines = lines_of(run_of(tree, "base", seed), "metrics.jsonl")
        (run_of(tree, "changed", seed) / "metrics.jsonl").write_text("".join(
            json.dumps(line | {"time/step_s": 7}) + "\n" for line in lines))
    done, why = experiment.grade(tree / "experiment")
    assert len(done) == 2 and "loss = 'grpo' has no effect" in why, why


def test_a_change_that_has_no_effect_in_one_seed_alone_is_an_experiment(tree):
    """A cap that a run never reached: honest work, as long as any seed reached it."""
    shutil.copy(run_of(tree, "base", 4) / "metrics.jsonl", run_of(tree, "changed", 4))
    assert len(experiment.grade(tree / "experiment")[0]) == 3


def test_an_ablation_names_the_change_that_has_no_effect(tmp_path):
    plan = PLAN.replace('"grpo"', '"grpo"; eps_max = 4.0').replace(
        "expected: higher", "expected: higher; no difference")
    folder = write(tmp_path, plan, name="ablation", higher=(0, 1, 0)) / "ablation"
    for seed in (3, 1, 4, 15, 9):
        shutil.copy(run_of(tmp_path, "base", seed) / "metrics.jsonl",
                    run_of(tmp_path, "changed2", seed))
    done, why = experiment.grade(folder)
    assert len(done) == 2 and "eps_max = 4.0 has no effect" in why, why


def test_the_conclusion_says_the_interval_and_the_verdict_that_it_allows(tree):
    low, high = interval(tree)
    assert "conclusion.md is missing" in experiment.grade(tree / "experiment")[1]
    for text, parts, words in (
            ("It got better, p < 0.05.\nverdict: higher\n", 3, "does not print the interval"),
            (f"[{low:.2f}, {high:.2f}]\n", 4, "needs 1 line `verdict: higher`"),
            (f"[{low:.2f}, {high:.2f}]\nverdict: lower\n", 4, "it has lower"),
            (f"[{low:.2f}, {high:.2f}]\nverdict: higher\nverdict: lower\n", 4, "needs 1 line")):
        conclude(tree, text)
        done, why = experiment.grade(tree / "experiment")
        assert len(done) == parts and words in why, text


@pytest.mark.parametrize("gains, doubts, verdict", [
    ([.10, .14, .06, .12, .09], (), "higher"), ([-.10, -.14, -.06, -.12, -.09], (), "lower"),
    ([.20, -.14, .06, -.12, .09], (), "not decided"),
    ([.01, .02, .0, .01, .02], (), "no difference"),
    ([.10, .14, .06, .12, .09], ("its interval is 0.2 wide",), "not decided")])
def test_the_verdict_is_that_of_the_five_differences(gains, doubts, verdict):
    told = experiment.result(np.array(gains), 0.05, doubts)
    assert told["verdict"] == verdict
    low, high = stats.t.interval(0.9, 4, np.mean(gains), stats.sem(gains))
    assert np.allclose([told["lo"], told["hi"]], [low, high])


@pytest.mark.days(4, turn=1)
def test_of_ceilings_fit_py_has_the_word(tmp_path):
    """Curves that reach their ceiling determine it; curves that end in their rise do not."""
    plan = PLAN.replace("measure: end", "measure: A")
    done, _ = experiment.grade(write(tmp_path / "seen", plan) / "experiment")
    assert "A, changed minus base" in done[2] and ": higher, expected was higher" in done[2]
    tree = write(tmp_path / "unseen", plan, sd=0.08)
    pair = run_of(tree, "base", 3), run_of(tree, "changed", 3)
    _, doubts = experiment.differences([pair], "A")
    assert doubts[0].endswith("]: undetermined")
    assert experiment.result(GAINS, 0.05, doubts)["verdict"] == "not decided"


@pytest.mark.parametrize("old, new, words", [
    ("measure: end\n", "", "has no line `measure: ...`"),
    ("stress.toml", "loo/grpo_loss.toml", "`base` is configs/stress.toml or configs/demo.toml"),
    ("configs/stress.toml", "/etc/passwd", "`base` is configs/stress.toml or configs/demo.toml"),
    ('loss = "grpo"', "loss is grpo", "`changed` is one setting as in TOML"),
    ('loss = "grpo"', 'loss = "grpo", lr = 1', "`changed` is one setting as in TOML"),
    ("3 1 4 15 9", "3 1 4 15", "5 different seeds"), ("3 1 4 15 9", "3 1 4 3 9", "5 different"),
    ("smallest: 0.05", "smallest: -1", "`smallest` above 0"),
    ("measure: end", "measure: best", "`measure` is end or A"),
    ("expected: higher", "expected: wow", "`expected` is for each change one of higher"),
    ('loss = "grpo"', 'loss = "grpo"; lr = 1e-3', "has 2 settings, and must have one")])
def test_a_plan_that_cannot_be_used_is_refused_in_a_sentence(tmp_path, old, new, words):
    (tmp_path / "plan.md").write_text(PLAN.replace(old, new))
    with pytest.raises(experiment.BadInput) as error:
        experiment.read_plan(tmp_path)
    assert words in str(error.value)


def test_the_commands_are_scalerl_pys_and_make_pairs(tree):
    done = run_command(["-m", "course.experiment", tree / "experiment", "--commands"], cwd=ROOT)
    lines = done.stdout.splitlines()
    assert len(lines) == 10 and done.returncode == 0
    for base, changed in zip(lines[::2], lines[1::2]):
        assert base.replace("base-", "changed-") + " --loss grpo" == changed
    for line, run in zip(lines, (path for pair in experiment.run_names(
            experiment.read_plan(tree / "experiment")) for path in pair)):
        config, _ = parse(line.split()[2:])
        assert config.name == run and config.steps == tomllib.loads(
            (ROOT / "configs" / "stress.toml").read_text())["steps"]


@pytest.mark.parametrize("page, name, changes", [("8_experiment", "experiment", 1),
                                                 ("11_ablation", "ablation", 3)])
def test_the_page_shows_a_plan_that_can_be_used(tmp_path, page, name, changes):
    page = (ROOT / "course" / f"{page}.md").read_text()
    (tmp_path / name).mkdir()
    (tmp_path / name / "plan.md").write_text(page.split("```text\n")[1].split("```")[0])
    plan = experiment.read_plan(tmp_path / name)
    assert plan["measure"] in ("end", "A") and len(plan["changes"]) == changes
    assert len([*experiment.commands(plan)]) == 5 * (1 + changes)


# -- points, from what an instructor makes again

class Again:
    """In place of the sandbox: the first steps of the run that is asked for, made again."""
    limit_s = 1

    def __init__(self, metrics, evals):
        self.lines = {"metrics.jsonl": metrics, "evals.jsonl": evals}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def ask(self, call, config, model, steps):
        assert {*model} == {"config.json"}
        assert (call, steps) == ("replay", replay.STEPS) and 'name = "' in config
        return self.lines


def with_model(tree):
    """The made runs again, with a model, and logs that have the columns of a real one."""
    (tree / "models" / "toy").mkdir(parents=True)
    (tree / "models" / "toy" / "config.json").write_text("{}")
    for run in (tree / "runs").iterdir():
        replaced(run / "config.toml", "lr = ", 'model = "models/toy"\nlr = ')
        (run / "metrics.jsonl").write_text("".join(
            json.dumps({**line, **{name: 0.1 + line["step"] * 0.01 for name in experiment.NUMBERS
                                   if name != "pass_rate"}, "time/step_s": 3}) + "\n"
            for line in lines_of(run, "metrics.jsonl")))


def lines_of(run, name):
    return [json.loads(line) for line in (run / name).read_text().splitlines()]


def drawn(tree, seed):
    names = [name for pair in experiment.run_names(experiment.read_plan(tree / "experiment"))
             for name in pair]
    run = tree / "runs" / random.Random(f"replay/{seed}").choice(names)
    return run, [lines_of(run, name) for name in ("metrics.jsonl", "evals.jsonl")]


def test_points_are_given_only_where_the_first_steps_of_a_run_come_out_again(tree):
    with_model(tree)
    for seed in range(3):
        run, logs = drawn(tree, seed)
        logs[0] = [line | {"time/step_s": 77} for line in logs[0]]      # another machine's clock

        def honest(sources):
            assert {*sources} == {"loss.py", "engines/head.py"}
            return Again(*logs)
        points, notes = replay.points(tree, "experiment", 14, seed, honest)
        said = f"{run.name}: 10 steps were made again, bit by bit"
        assert points == 6 and notes[0].startswith(said), notes


@pytest.mark.parametrize("file, step, change, points", [
    ("metrics.jsonl", 1, {"pass_rate": 0.5}, 0), ("metrics.jsonl", 1, {"grad_norm": 0.2}, 0),
    ("evals.jsonl", 0, {"eval/toy/mean@1": 0.9}, 0), ("metrics.jsonl", 3, {"new": 1}, 0),
    ("metrics.jsonl", 7, {"loss": 0.9}, 6), ("metrics.jsonl", 5, {"entropy": 0.15 + 1e-9}, 6)])
def test_on_another_processor_the_first_step_and_most_others_must_be_near(tree, file, step, change,
                                                                          points):
    """One sample that fell otherwise moves later steps; but nothing comes before the first."""
    with_model(tree)
    _, (metrics, evals) = drawn(tree, 0)
    for line in {"metrics.jsonl": metrics, "evals.jsonl": evals}[file]:
        if line["step"] == step:
            line |= change
    found, notes = replay.points(tree, "experiment", 14, 0, lambda *_: Again(metrics, evals))
    assert found == points, notes
    said = notes[0] if points else notes[-1]
    assert ("another processor" in said) if points else "could not be made again" in said


def test_where_most_steps_are_other_ones_there_is_no_point(tree):
    with_model(tree)
    _, (metrics, evals) = drawn(tree, 0)
    metrics = [line | {"loss": line["loss"] * (1 if line["step"] < 4 else 1.5)} for line in metrics]
    points, notes = replay.points(tree, "experiment", 14, 0, lambda *_: Again(metrics, evals))
    assert points == 0 and "7 of 12 lines are other ones" in notes[-1], notes


def test_made_up_logs_have_no_point(tree):
    points, notes = replay.points(tree, "experiment", 14, 0, lambda *_: Again([], []))
    assert points == 0 and "a run could not be made again" in notes[-1]
    with_model(tree)
    for lines in ([], [{"step": 1}], [[]], [{"step": []}], 7):
        assert replay.points(tree, "experiment", 14, 0, lambda *_: Again(lines, lines))[0] == 0


@pytest.mark.parametrize("old, new, words", [
    ("steps = 140", "steps = 10", "has steps = 10, and configs/stress.toml has 140"),
    ("steps = 140", "steps = 1000000000000", "steps and eval_every are whole numbers up to"),
    ("eval_every = 10", "eval_every = 0", "steps and eval_every are whole numbers up to"),
    ("eval_every = 10", "eval_every = true", "steps and eval_every are whole numbers up to")])
def test_the_base_is_the_one_that_was_handed_out_and_no_run_is_endless(tree, old, new, words):
    """Ten runs of one step are no experiment; a log of 10^12 steps would fill a memory."""
    for run in (tree / "runs").iterdir():
        replaced(run / "config.toml", old, new)
    done, why = experiment.grade(tree / "experiment")
    assert len(done) <= 2 and (words in why or "no line of" in why), why


def test_a_text_without_end_is_not_searched(tree):
    (tree / "experiment" / "conclusion.md").write_text("1" * (experiment.LONGEST + 1))
    assert "a page is enough" in experiment.grade(tree / "experiment")[1]
    (tree / "experiment" / "conclusion.md").write_text("1" * experiment.LONGEST)
    assert "does not print the interval" in experiment.grade(tree / "experiment")[1]


@pytest.mark.days(4, turn=3)
@sandboxed
def test_a_real_run_comes_out_again_bit_by_bit_in_the_real_sandbox(tmp_path, seed):
    """And a copy of it with one digit changed does not. No stand-ins: scalerl.py writes the log. It
    was skipped where the toy had not been made, as in a fresh clone, and the replay had broken."""
    random_llama(vocab=38).save_pretrained(tmp_path / "model")
    toy.make_tokenizer().save_pretrained(tmp_path / "model")
    config = ROOT / "configs" / "stress.toml"
    done = run_command([ROOT / "scalerl.py", "--config", config, "--steps", "10", "--slots", "256",
                        "--heldout-prompts", "64", "--name", "a", "--model", tmp_path / "model"],
                       cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "a"
    logs = {name: lines_of(run, name) for name in ("metrics.jsonl", "evals.jsonl")}
    sources = {path.relative_to(run / "source").as_posix(): path.read_text()
               for path in (run / "source").glob("**/*.py")}
    model = {path.name: base64.b64encode(path.read_bytes()).decode()
             for path in (tmp_path / "model").iterdir()}
    with grade.of_a_run(student.exercises(), box(), sources) as process:
        process.patience = process.limit_s
        again = process.ask("replay", config=(run / "config.toml").read_text(), model=model,
                            steps=10)
    assert "bit by bit" in replay.compared("a", 10, replay.pairs_of(logs, again, 10))
    logs["metrics.jsonl"][1]["pass_rate"] += 0.05
    with pytest.raises(replay.Wrong, match="step 1, pass_rate"):
        replay.compared("a", 10, replay.pairs_of(logs, again, 10))


def test_a_pipe_or_a_link_among_the_runs_is_not_read(tree):
    run = run_of(tree, "base", 3)
    (run / "metrics.jsonl").unlink()
    os.mkfifo(run / "metrics.jsonl")
    points, notes = replay.points(tree, "experiment", 14, 0, None)
    assert points == 0 and "metrics.jsonl cannot be read" in notes[1]


def test_code_that_was_not_handed_out_is_not_run():
    with pytest.raises(experiment.BadInput, match="source/config.py is not the one"):
        grade.of_a_run(student.exercises(), None, {"loss.py": "", "config.py": "x = 1\n"})
