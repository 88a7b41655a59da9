"""What readers.py claims: each tool's log gives the same curve, and nothing is lost in silence."""
import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import fit
from fitting.command import main
from fitting import readers
from fit import BadInput, fit_curve
from made_runs import made, write_run

FIXTURES = Path(__file__).parent.parent / "fixtures"


@pytest.mark.parametrize("log,options,unit", [
    ("run", {}, 1e12),                                            # ours
    ("plain.csv", {}, 0.1),
    ("wandb_export.csv", {}, 1),
    ("verl.jsonl", {}, 1),
    ("prime_rl.jsonl", {}, 1),
    ("prime_rl.jsonl", dict(x_scale=0.4), 0.4),
    ("trainer_state.json", dict(y="eval_reward", reward_range=(-1, 1)), 8000),
    ("tensorboard", {}, 0.1),
    ("wandb_run", {}, 1),          # written by wandb 0.31.0, offline; one record spans two blocks
])
def test_one_run_is_the_same_in_every_tools_log(log, options, unit):
    """One made run (A .8, B 1.5, C_mid 400 steps, R0 .2) was written in the shape of each tool,
    with training rows between the evaluations.  A reader that takes training rows, or loses step
    0, gives other numbers."""
    ours = readers.load(str(FIXTURES / "run"))
    curve = readers.load(str(FIXTURES / log), **options)
    np.testing.assert_allclose(curve.C, ours.C / 1e12 * unit, rtol=1e-6)
    np.testing.assert_allclose(curve.R, ours.R, atol=1e-4)
    assert curve.C[0] == 0 and curve.C.size == 13
    assert all(note.startswith("read from") or " is mapped from " in note for note in curve.notes)
    f = fit_curve(curve.C, curve.R, bootstrap=0)
    assert (f.A, f.B, f.C_mid) == pytest.approx((0.8, 1.5, 400 * unit), rel=0.06)


def test_one_run_of_a_table_of_many_is_read_by_its_name(tmp_path):
    """And its label is that name; a name that is not there is answered by those that are."""
    (C, R), table = made(n=9), tmp_path / "many.csv"
    table.write_text("run,step,compute/flops,eval/toy/mean@4\n" + "".join(
        f"{run},{i},{c},{r / part}\n" for run, part in (("a", 1), ("b:2", 2))
        for i, (c, r) in enumerate(zip(C, R))))
    for run, part in (("a", 1), ("b", None), ("b:2", 2)):
        if part is None:
            with pytest.raises(BadInput, match=r"many.csv has no run 'b' .*: a, b:2$"):
                readers.load(f"{table}:b")
            continue
        curve = readers.load(f"{table}:{run}")
        assert curve.label == run and curve.picture == tmp_path / f"{run}_curve.png"
        np.testing.assert_allclose((curve.C, curve.R), (C, R / part))
    with pytest.raises(BadInput, match=r"many.csv has several runs: TABLE:RUN names one"):
        readers.load(str(table))            # two runs without a common step were fitted as one
    pooled = readers.load(f"both={table}:a,{table}:b:2")
    assert pooled.C.size == 18 and pooled.label == "both"
    assert [run for _, run in readers.places_of(f"{table}:*")] == ["a", "b:2"]
    for again in (f"{table}:a", f"{tmp_path}/../{tmp_path.name}/{table.name}:a", f"{table}:*"):
        with pytest.raises(BadInput, match="names one run twice"):
            readers.load(f"both={table}:a,{again}")


def test_the_name_of_a_run_may_look_like_a_pattern(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("run,step,accuracy\n" + "".join(
        f"{run},{i},{i / 9}\n" for run in ("run[1]", "a*", "ab") for i in range(9)))
    assert readers.places_of(f"{table}:run[1]") == [(table, "run[1]")]
    assert readers.places_of(f"{table}:a*") == [(table, "a*")]
    assert [run for _, run in readers.places_of(f"{table}:a?")] == ["a*", "ab"]


def test_a_quote_that_nothing_closes_swallows_no_rows(tmp_path):
    """Of 21 evaluations 4 were fitted, without a word."""
    table = tmp_path / "q.csv"
    table.write_text("step,accuracy,comment\n" + "".join(
        f"{i},{.2 + .02 * i},{chr(34) * (i == 3)}x\n" for i in range(21)))
    with pytest.raises(BadInput, match="q.csv, after line 4: unexpected end of data"):
        readers.load(str(table))


def test_a_column_that_is_named_twice_is_one_curve(tmp_path):
    run = str(write_run(tmp_path / "a", *made(n=9)))
    assert len(readers.read_curves([run], None, ["eval/toy/mean@4"] * 2)) == 1


def test_a_running_log_may_end_in_the_middle_of_a_line(tmp_path, capsys):
    """The trainer writes while we read: half a line is not an error, and not silence either."""
    log = write_run(tmp_path / "r", *made()) / "evals.jsonl"
    log.write_text(log.read_text()[:-40])
    curve = readers.load(str(tmp_path / "r"))
    assert curve.C.size == 80 and "cut off" in curve.notes[0]


def test_a_resumed_run_counts_each_evaluation_once(tmp_path):
    """A resumed trainer logs some steps twice. Other numbers are another evaluation, and told."""
    C, R = made(n=21)
    run = write_run(tmp_path / "r", C, R)
    log = run / "evals.jsonl"
    again = json.dumps({"step": 20, "compute/flops": C[20], "eval/toy/mean@4": 0.5})
    log.write_text(log.read_text().replace("{", '{"other": NaN, '))
    same = log.read_text().splitlines()[7]                     # the same number twice is no doubt
    log.write_text(log.read_text() + same + "\n")
    curve = readers.load(str(run))
    assert curve.C.size == 21 and not curve.notes
    log.write_text(log.read_text() + again + "\n")
    curve = readers.load(str(run))
    assert curve.C.size == 22 and curve.R[-1] == 0.5
    assert "repeats compute/flops 1 times, and all are fitted" in curve.notes[0]


def test_seeds_that_agree_count_each(tmp_path):
    """Where two of three have the same pass rate, the third would have half of the weight."""
    path = tmp_path / "a.csv"
    path.write_text("gpu_hours,seed,pass_rate\n" + "".join(
        f"{C},{seed},{0.2 + C / 10 + (seed > 1) / 100}\n" for seed in range(3) for C in range(4)))
    curve = readers.load(str(path))
    assert curve.C.size == 12 and "repeats gpu_hours 8 times" in curve.notes[0]


def test_rows_that_a_tracker_has_dropped_are_no_evaluations(tmp_path):
    """W&B prints them, and their reward and clock would hide those that the trainer prints."""
    path = tmp_path / "run.log"
    path.write_text("".join(
        f"{{'loss': 0.1, 'reward': {0.1 + i / 50}, 'num_tokens': {1000 * (i + 1)}}}\n"
        + "wandb: WARNING (step: 7 is less than current step: 9. Dropping entry: "
          f"{{'eval_pass_rate': 0.0, '_timestamp': {1749516128.48 + i}}}).\n" for i in range(6)))
    curve = readers.load(str(path), y="reward")
    assert (curve.x, curve.y, curve.C.size) == ("num_tokens", "reward", 6)


@pytest.mark.parametrize("name", ["a.jsonl", "a.log", "a.csv", "a.ipynb"])
def test_a_pointer_of_git_lfs_is_told(tmp_path, name):
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n")
    with pytest.raises(BadInput, match=f"{name} only says where Git LFS keeps the file"):
        readers.load(str(tmp_path / name))


def test_durations_losses_and_errors_are_not_proposed_as_rewards(tmp_path):
    """Other people's logs have them beside a reward, or in place of one."""
    bad = ("timing_s/reward actor/reward_kl_penalty eval/loss eval/runtime eval/samples_per_second "
           "value_loss reward/format_error_ratio grad_accum_steps eval/entropy response_len/reward")
    path, names = tmp_path / "a.csv", [*bad.split(), "recall_score", "exact_match", "timestamp"]
    path.write_text(",".join(["step", *names]) + "\n1" + ",0.5" * len(names) + "\n")
    with pytest.raises(BadInput, match="no column for --y; .*; likely: recall_score, exact_match$"):
        readers.load(str(path))
    path.write_text("timestamp,reward,mean episode reward\n" + "17495,0.5,0.5\n" * 3)
    with pytest.raises(BadInput, match="no column for --x; it has: [^;]*$"):
        readers.load(str(path), y="reward")


def test_seeds_in_one_table_are_all_fitted_and_told(tmp_path):
    """In long format the last seed in the file would be taken for the run, and nobody told."""
    path = tmp_path / "a.csv"
    path.write_text("gpu_hours,pass_rate,run\n" + "".join(
        f"{C},{0.2 + C / 10 + 'ab'.index(run) / 100},{run}\n" for run in "ab" for C in range(4)))
    with pytest.raises(BadInput, match="a.csv has several runs: TABLE:RUN names one, NAME=TABLE:*"):
        readers.load(str(path))
    curve = readers.load(f"both={path}:*")
    path.write_text(path.read_text().replace(",run", ",seed"))
    whole = readers.load(str(path))
    assert "repeats gpu_hours 4 times, and all are fitted" in whole.notes[0] and not curve.notes
    for each in (whole, curve):
        assert each.C.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
        assert each.R[1::2] == pytest.approx([0.21, 0.31, 0.41, 0.51])


@pytest.mark.parametrize("column,option,best,read", [
    ("accuracy", {}, 53.2, 0.532), ("accuracy", {}, 0.532, 0.532),
    ("success", {}, 1.3, 0.013),                       # a percent of a poor run
    ("reward", dict(reward_range=(-4, 53.2)), 53.2, 1.0), ("accuracy", {}, "53.2%", 0.532),
    ("error", dict(reward_range=(1, 0)), 0.532, 0.468)])
def test_percent_is_seen_and_said_and_a_reward_keeps_its_range(column, option, best, read,
                                                                tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(f"step,{column}\n1,0.5\n2,0\n3,{best}\n")
    curve = readers.load(str(path), y=column, **option)
    assert curve.R[2] == pytest.approx(read)
    percent = (f"{column} goes up to {best}: it is read as percent, not as counts "
               "(--reward-range 0 N)")
    if option:                                         # the numbers below are not those of the log
        low, high = option["reward_range"]
        assert curve.notes == (f"{column} is mapped from [{low}, {high}] onto [0, 1]",)
    else:
        assert curve.notes == ((percent,) if isinstance(best, float) and best > 1 else ())


def test_percent_is_decided_for_each_run_and_not_by_a_slip_above_1(tmp_path):
    """A seed in percent made a hundredth of the other; 1.001 made .6 into .006."""
    (tmp_path / "a.csv").write_text("step,accuracy\n0,.2\n1,.5\n2,.6\n")
    (tmp_path / "b.csv").write_text("step,accuracy\n0,20\n1,50\n2,60\n")
    curve = readers.load(f"ab={tmp_path}/a.csv,{tmp_path}/b.csv", y="accuracy")
    assert curve.R.tolist() == [0.2, 0.2, 0.5, 0.5, 0.6, 0.6] and len(curve.notes) == 1
    (tmp_path / "a.csv").write_text("step,accuracy\n0,.2\n1,.5\n2,.5\n3,.6\n4,55.39\n")
    with pytest.raises(BadInput, match="accuracy goes from 0.2 to 55.39, not from 0 to 1: "):
        readers.load(f"{tmp_path}/a.csv", y="accuracy")     # a hundredth of all else, for one cell
    (tmp_path / "c.csv").write_text("step,accuracy\n" + "".join(    # of a weak model: percent
        f"{i},{x}\n" for i, x in enumerate((.21, .3, .4, .5, .6, .7, .83, 1.25, 3.3, 6.7, 10))))
    assert readers.load(f"{tmp_path}/c.csv", y="accuracy").R[-1] == pytest.approx(0.1)
    (tmp_path / "a.csv").write_text("step,accuracy\n0,.2\n1,.5\n2,1.001\n")
    with pytest.raises(BadInput, match="accuracy goes from 0.2 to 1.001, not from 0 to 1: "):
        readers.load(str(tmp_path / "a.csv"), y="accuracy")


@pytest.mark.parametrize("task", ["testdata", "postdoc", "My sums - v2"])
def test_the_pass_rate_is_fitted_whatever_the_name_of_its_task(task, tmp_path):
    """"std" in a name made it a spread, " - " a run of Weights & Biases; then the share of bad
    rewards was fitted, a curve of zeros."""
    (tmp_path / "evals.jsonl").write_text("".join(json.dumps({
        "step": i, "compute/flops": i, f"eval/{task}/mean@4": i / 10,
        "eval/verifier/bad_reward_frac": 0.0}) + "\n" for i in range(5)))
    curve = readers.load(str(tmp_path))
    assert curve.y == f"eval/{task}/mean@4" and curve.R.tolist() == [0, .1, .2, .3, .4]


def test_what_is_no_pass_rate_and_no_percent_is_refused(tmp_path):
    """A reward of 53 may be one of a hundred, or of sixty; 102 and -1 are no percent."""
    for column, values, *given in (
            ("reward", (0, 53)), ("accuracy", (3, 102)), ("accuracy", (-1, 50)),
            ("reward", (1, 3), None, 1, (1, 1))):               # a range of no width
        path = tmp_path / "a.csv"
        path.write_text("step," + column + "".join(f"\n{i},{v}" for i, v in enumerate(values)))
        with pytest.raises(BadInput, match="a pass rate lies in .0, 1., --reward-range LO HI"):
            readers.load(str(path), None, column, *(given[1:] or ()))


def test_missing_and_nan_evaluations_are_counted_aloud(tmp_path):
    """A run that diverged logs nan: left out in silence, the fit would be of the survivors."""
    path = tmp_path / "a.csv"
    path.write_text("gpu_hours,pass_rate\n0,.2\n1,.3\n,.35\n2,nan\n3,.5\n2.5,.45\n4,\n")
    curve = readers.load(str(path))
    assert curve.C.tolist() == [0, 1, 2.5, 3] and curve.R.tolist() == [0.2, 0.3, 0.45, 0.5]
    assert "2 of 6 evaluations" in curve.notes[0] and len(curve.notes) == 2
    assert "a.csv goes back in gpu_hours 1 times, and all are fitted" in curve.notes[1]
    assert "left out (the first: gpu_hours = None, pass_rate = 0.35)" in curve.notes[0]


def test_the_choice_among_several_columns_is_told(tmp_path, capsys):
    """Two evaluation tasks in one log: which one was fitted must be seen, not guessed."""
    run = write_run(tmp_path / "r", *made(), **{"eval/hard/mean@4": 0.1})
    main([str(run), "--out", "none"])
    assert "--y is eval/toy/mean@4, not eval/hard/mean@4" in capsys.readouterr().out


def test_different_columns_are_compared_if_the_user_says_so(tmp_path, capsys):
    """Two tools call one thing by two names.  Whoever names it by a pattern is believed; an export
    of Weights & Biases has the run in its columns' names."""
    rows = (write_run(tmp_path / "a", *made(n=9)) / "evals.jsonl").read_text()
    (tmp_path / "b.jsonl").write_text(rows.replace("compute/flops", "my/flops").replace("@4", "@8"))
    words = [str(tmp_path / "a"), str(tmp_path / "b.jsonl"), "--y", "eval/toy/mean@*",
             "--bootstrap", "20", "--out", "none"]
    assert main([*words, "--x", "*/flops"]) == 0
    assert "b: 9 evaluations of eval/toy/mean@8 against" in capsys.readouterr().out
    both = f"p={tmp_path / 'a'},{tmp_path / 'b.jsonl'}"
    assert readers.load(both, "*/flops", "eval/toy/mean@*").C.size == 18
    for run in ("s1", "s2"):
        (tmp_path / f"{run}.csv").write_text(f"Step,{run} - pass_rate\n0,.2\n1,.3\n2,.4\n")
    assert len(readers.load(f"p={tmp_path / 's1.csv'},{tmp_path / 's2.csv'}").C) == 6
    assert len(readers.read_curves([str(tmp_path / "s1.csv"), str(tmp_path / "s2.csv")])) == 2


def test_what_the_first_log_has_the_others_need(tmp_path):
    """FLOPs beside tokens look like any two runs.  A column that all have is taken by its name."""
    for name, column in (("a", "compute/flops"), ("b", "compute/tokens")):
        (tmp_path / f"{name}.csv").write_text(
            f"step,{column},pass_rate\n0,0,.2\n1,10,.3\n2,20,.4\n")
    a, b = (str(tmp_path / f"{name}.csv") for name in "ab")
    for runs in ([a, b], [f"p={a},{b}"]):
        with pytest.raises(BadInput, match="b.csv has no column for --x compute/flops; it has: "):
            readers.read_curves(runs)
        assert {tuple(set(curve.C)) for curve in readers.read_curves(runs, "step")} == {(0, 1, 2)}


def test_a_table_from_excel_is_read(tmp_path):
    """It begins with a byte-order mark, which nobody sees and which is no part of a name."""
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xef\xbb\xbfgpu_hours,pass_rate\r\n0,.2\r\n1,.3\r\n")
    assert readers.load(str(path)).x == "gpu_hours"


@pytest.mark.parametrize("name,text,encoding", [
    ("a.csv", "gpu_hours;pass_rate\n0;0.2\n500;0.31\n1500.5;0.4\n", "utf-8"),
    ("a.tsv", "gpu_hours\tpass_rate\n0\t.2\n500\t.31\n1500.5\t.4\n", "utf-8"),
    ("a.csv", '"gpu_hours","pass_rate","a; b; c"\n0,.2,\n500,.31,\n1500.5,.4,\n', "utf-8"),
    ("a.csv", "gpu_hours,tags,pass_rate\n0,a;2,.2\n500,b;2,.31\n1500.5,c;2,.4\n", "utf-8"),
    ("a.csv", ",gpu_hours,pass_rate\n0,0,.2\n1,500,.31\n2,1500.5,.4\n", "utf-8"),        # pandas
    ("a.json", '[{"gpu_hours": 0, "pass_rate": 0.2}, {"gpu_hours": 500, "pass_rate": 0.31},'
               '{"gpu_hours": 1500.5, "pass_rate": 0.4}]', "utf-8"),
    ("a.log", "step:0 - gpu_hours:0 - pass_rate:0.2\r\nstep:1 - gpu_hours:500 - pass_rate:0.31\r\n"
              "step:2 - gpu_hours:1500.5 - pass_rate:0.4\r\n", "utf-16"),            # PowerShell
    ("a.txt", '{"gpu_hours": 0, "pass_rate": 0.2}\n{"gpu_hours": 500, "pass_rate": 0.31}\n'
              '{"gpu_hours": 1500.5, "pass_rate": 0.4}\n', "utf-8-sig"),
    ("a.csv", "gpu_hours,pass_rate\n0,0.2\n500,0.31\n1500.5,0.4\n", "utf-16"),
    ("a.csv", "gpu_hours;pass_rate\r\n0;0,2\r\n500;0,31\r\n1500,5;0,4\r\n", "utf-8"),   # Germany
    ("a.csv", "gpu_hours;pass_rate;Größe\n0;0,2;1\n500;0,31;1\n1500,5;0,4;1\n", "cp1252"),
    ("a.csv", "gpu_hours;pass_rate\n0;20%\n500;31,0%\n1.500,50;40%\n", "utf-8"),
    ("a.tsv", "gpu_hours\tpass_rate\n0,0\t20%\n500\t31,0%\n1500,5\t40,00%\n", "utf-8"),
    ("a.jsonl", '[{"gpu_hours": 0, "pass_rate": 0.2}, {"gpu_hours": 500, "pass_rate": 0.31},'
                '{"gpu_hours": 1500.5, "pass_rate": 0.4}]', "utf-8"),
    ("a.log", 'INFO {"gpu_hours": 0, "pass_rate": .2, "x": null}\n[12:03] INFO {"gpu_hours":500,'
              '"pass_rate": 0.31, "last": true}\nend {"gpu_hours":1500.5,"pass_rate":.4}', "utf-8"),
])
def test_tables_of_other_countries_and_programs_are_read(name, text, encoding, tmp_path):
    """Each is the same three evaluations."""
    path = tmp_path / name
    path.write_bytes(text.encode(encoding))
    curve = readers.load(str(path))
    assert curve.C.tolist() == [0, 500, 1500.5] and curve.R.tolist() == [0.2, 0.31, 0.4]
    assert not curve.notes


def test_a_thousand_with_a_point_is_a_thousand_where_decimals_have_a_comma(tmp_path):
    path = tmp_path / "a.csv"
    for last, C in (("0,36", [0, 500, 1000, 10_000, 1_250_000]), ("0.36", [0, 1, 10, 500])):
        path.write_text("gpu_hours;pass_rate\n0;0.2\n500;0.250\n1.000;0.3\n10.000;0.31\n"
                        f"1.250.000;{last}\n")
        curve = readers.load(str(path))
        assert sorted(curve.C) == C and 0.25 in curve.R
    path.write_text("flops;pass_rate\n0;0,2\n1,23E+15;0,25\n1,500E+16;0,3\n")
    assert readers.load(str(path), "flops").C.tolist() == [0, 1.23e15, 1.5e16]
    path.write_text("gpu_hours\tpass_rate\tnote\n0.000\t.2\tGPUs 0,1\n7.500\t.25\tlr 1,5\n")
    assert readers.load(str(path)).C.tolist() == [0, 7.5]      # a cell of text says nothing
    path.write_text("gpu_hours;pass_rate\n0,000;20,5%\n1,000;25,125%\n")
    curve = readers.load(str(path))
    assert curve.C.tolist() == [0, 1] and curve.R.tolist() == [0.205, 0.25125]


def test_a_thousand_with_a_comma_is_no_decimal(tmp_path):
    """Where no cell shows which mark is which, 1,000 may be a thousand: it is left out, told."""
    path = tmp_path / "a.csv"
    path.write_text("gpu_hours;pass_rate\n0;20%\n1,000;25%\n2,000;30%\n")
    curve = readers.load(str(path))
    assert curve.C.tolist() == [0]
    assert re.match("2 of 3 evaluations.*gpu_hours = 1,000,", curve.notes[0])


def test_a_column_of_methods_tells_runs_apart_and_seeds_are_pooled(tmp_path):
    """Two methods of one table were fitted as one curve, with a note."""
    path = tmp_path / "all.csv"
    path.write_text("algo,seed,step,accuracy,mean_return\n" + "".join(
        f"{algo},{seed},{step},0.{step + 2 * seed + (algo == 'ppo')},9\n"
        for algo in ("grpo", "ppo") for seed in (0, 1) for step in (1, 2, 3)))
    with pytest.raises(BadInput, match="several runs: TABLE:RUN names one"):
        readers.load(str(path))
    curve = readers.load(f"{path}:ppo")
    assert sorted(curve.R) == [.2, .3, .4, .4, .5, .6] and curve.C.tolist() == [1, 1, 2, 2, 3, 3]
    assert curve.notes[0] == "--y is accuracy, by its name" and "repeats step 3" in curve.notes[1]
    with pytest.raises(BadInput, match="no run 'sac' in a column run: grpo, ppo"):
        readers.load(f"{path}:sac")
    path.write_text(path.read_text().replace("algo,", "Run ,").replace("ppo,0,1,", ",0,1,"))
    curve = readers.load(f"{path}:ppo")
    assert sorted(curve.R) == [.3, .4, .4, .5, .6] and "without a run's name" in curve.notes[0]
    path.write_text("model,step,acc\n" + "".join(f"ckpt-{i},{i},0.{i}\n" for i in range(1, 9)))
    assert readers.load(str(path)).C.size == 8      # a checkpoint each


def test_a_thousand_in_quotes_is_a_number(tmp_path):
    """All rows but the first were left out, and the note with them."""
    path = tmp_path / "a.csv"
    path.write_text('step,pass_rate\n0,0.2\n"1,000",0.25\n"12,345,678.0",0.3\n')
    assert readers.load(str(path)).C.tolist() == [0, 1000, 12345678]
    path.write_text('step,pass_rate\n0,0.2\n10,"0,500"\n')
    assert readers.load(str(path)).C.tolist() == [0]


def test_null_is_no_evaluation(tmp_path):
    path = tmp_path / "a.log"
    path.write_text("".join(f'INFO {{"step": {i}, "eval/reward": {i / 20 if i % 2 else "null"}}}\n'
                            for i in range(12)))
    curve = readers.load(str(path))
    assert curve.C.tolist() == [1, 3, 5, 7, 9, 11] and not curve.notes


def test_openrlhf_evaluations_have_their_step_and_its_filter_is_no_pass_rate(tmp_path):
    """The share of prompts that a filter keeps was forecast; `global_step 10, eval_metrics: {...}`
    had no step."""
    path = tmp_path / "train.log"
    path.write_text("".join(
        f"global_step {10 * i}, eval_metrics: {{'eval_math_pass1': {.2 + i / 100}, "
        f"'dynamic_filtering_pass_rate': {40 + i}.0}}\n" for i in range(9)))
    curve = readers.load(str(path))
    assert curve.y == "eval_math_pass1"
    assert curve.x == "step" and curve.C.tolist() == list(range(0, 90, 10))


def test_tokens_of_one_step_each_are_no_compute(tmp_path):
    """They rise and fall; taken for x, a clean rise was "no rise", without a word."""
    path, rng = tmp_path / "log.jsonl", np.random.default_rng()
    path.write_text("".join(json.dumps({
        "step": i, "num_tokens": rng.uniform(900, 1100), "eval/reward": i / 40}) + "\n"
        for i in range(30)))
    curve = readers.load(str(path))
    assert curve.x == "step" and curve.R.tolist() == [i / 40 for i in range(30)]
    assert "--x is not num_tokens: it falls" in curve.notes


def test_the_compute_of_two_seeds_in_one_log_is_compute(tmp_path):
    """Sorted by step it goes up and down between the seeds."""
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps({"step": i, "gpu_hours": i * rate, "eval/reward": i / 40})
                            + "\n" for rate in (1.3, 0.9) for i in range(1, 20)))
    assert readers.load(str(path)).x == "gpu_hours"


def test_a_sum_of_rewards_is_refused_with_the_column_that_is_a_rate(tmp_path):
    """TRL adds its reward functions up in eval_reward."""
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"log_history": [
        {"step": i, "eval_reward": 1 + i / 10, "eval_rewards/accuracy_reward/mean": i / 10,
         "eval_rewards/format_reward/mean": 1.0, "eval_rewards/format_reward/std": 0.0,
         "eval_loss": 0.1} for i in range(7)]}))
    with pytest.raises(BadInput, match="--reward-range LO HI.*; or --y eval_rewards/accuracy_reward"
                                       "/mean$"):           # not a reward for the form
        readers.load(str(path))


@pytest.mark.parametrize("y, others", [
    ("eval/pass_at_1", {"eval/objective/verifiable_reward": 10, "eval/stop_rate": 1}),
    ("eval_math500_pass1", {"eval_math500_pass8": 1.2, "dynamic_filtering_pass_rate": 0.9}),
    ("val/math/pass@1", {"val/math/pass@8": 1.2, "critic/rewards/mean": 1.1}),
    ("val/accuracy_reward", {"val/reward_score": 0.9, "critic/score/mean": 1.1}),
    ("eval/gsm8k/avg_score", {"eval/gsm8k/mean_positive_reward": 1.0}),
    ("eval-rollout/reward", {"ppo_actor/task_reward/avg": 1.1, "rollout/reward": 1.1}),
    ("eval/reward", {"eval/gsm8k/avg_score": 0.5, "eval/format_reward": 1}),
    ("eval/accuracy", {"train/pass_rate": 1.3, "eval/format_reward": 1}),
    ("eval/accuracy", {"eval/reward_length_penalty": 0.1, "eval/step": 1})])
def test_other_trainers_pass_rates_go_before_their_other_rewards(y, others, tmp_path):
    """open-instruct's reward of a right answer is 10: a pass rate of .08 was read as .8, and its
    forecast called usable. Also OpenRLHF, rllm, EasyR1, SkyRL, AReaL, and two of nobody."""
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": i, y: 0.02 + i / 500} | {
        name: factor * (0.02 + i / 500) for name, factor in others.items()}) + "\n"
        for i in range(0, 40, 4)))
    curve = readers.load(str(path))
    assert curve.y == y and curve.R[-1] == pytest.approx(0.092)


def test_console_tables_of_roll_have_their_step_and_one_dict_hides_no_lines(tmp_path):
    path = tmp_path / "a.log"
    path.write_text("".join(
        'INFO metrics_tag: {"step": %d, "metrics": {"val_correct/all/mean": %f, "time": 1.0}}\n'
        % (10 * i, i / 50) for i in range(9)))
    curve = readers.load(str(path), y="val_correct/all/mean")
    assert (curve.x, curve.C.tolist()) == ("step", list(range(0, 90, 10)))
    lines = "".join(f"Step {i} | Reward: {i / 50}\n" for i in range(9))
    path.write_text("INFO config: {'reward_funcs': 'accuracy', 'lr': 1e-06}\n" + lines)
    assert readers.load(str(path), y="Reward").C.size == 9
    path.write_text(lines + "".join(f"Total steps 9, step {i}: {{'eval/reward': {i / 20}}}\n"
                                    for i in (0, 4, 8)))        # evaluations are fewer than steps
    assert readers.load(str(path)).C.tolist() == [0, 4, 8]


def test_event_files_of_hyperparameters_below_a_logs_folder_are_no_second_log(tmp_path):
    """add_hparams writes one: "holds several logs: ., 1796.5; name one of them", and "." is it."""
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    with tensorboard.SummaryWriter(str(tmp_path / "tb")) as writer:
        for i in range(9):
            writer.add_scalar("val/accuracy", i / 10, 5 * i)
        writer.add_hparams({"lr": 1e-6}, {"hparam/x": 1.0})
    for folder in (tmp_path, tmp_path / "tb"):
        curve = readers.load(str(folder))
        assert curve.y == "val/accuracy" and curve.C.tolist() == list(range(0, 45, 5))
    with tensorboard.SummaryWriter(str(tmp_path / "tb" / "eval")) as writer:
        writer.add_scalar("val/accuracy", 0.5, 1)
    with pytest.raises(BadInput, match="holds several logs: tb, tb/eval; name one"):
        readers.load(str(tmp_path))                             # which of them, nobody knows


def test_a_row_with_more_cells_than_the_header_is_refused(tmp_path):
    """An unquoted 1,000 would be the number 1, and the rest of its row another evaluation's."""
    path = tmp_path / "a.csv"
    path.write_text("gpu_hours,pass_rate\n0,.2\n1,000,.3\n")
    with pytest.raises(BadInput, match="row 3 has more cells than the header"):
        readers.load(str(path))


def test_two_columns_of_one_name_are_refused(tmp_path):
    """The last one won, in silence. Columns without a name, as a table's index, are none."""
    path = tmp_path / "a.csv"
    path.write_text("step,pass_rate,pass_rate\n0,.2,.5\n1,.3,.5\n")
    with pytest.raises(BadInput, match="a.csv has several columns pass_rate: give them names"):
        readers.load(str(path))
    path.write_text("step,pass_rate,,\n0,.2,,\n1,.3,,\n")
    assert readers.load(str(path)).R.tolist() == [0.2, 0.3]


def test_a_boolean_and_a_very_long_cell_are_no_numbers_and_no_error(tmp_path):
    """A flag in each row, or a sample's text, crashed the reader."""
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"step": i, "eval/t/mean@4": i / 10, "resumed": i > 1,
                                        "data": {"last": False}}) + "\n" for i in range(4)))
    assert readers.load(str(path)).R.tolist() == [0, 0.1, 0.2, 0.3]
    with pytest.raises(BadInput, match="no column for --y resumed; .*resumed .text."):
        readers.load(str(path), y="resumed")
    path = tmp_path / "a.csv"
    path.write_text(f"step,pass_rate,text\n0,.2,{'x' * 200_000}\n1,.3,\n")
    assert readers.load(str(path)).R.tolist() == [0.2, 0.3]


def test_compute_is_a_column_that_evaluations_have(tmp_path):
    """TRL prints a dict for a training step, with num_tokens, and another for an evaluation,
    without; no step tells that they belong together."""
    path = tmp_path / "run.log"
    path.write_text("".join(
        f"{{'loss': 0.1, 'num_tokens': {100 * i}, 'epoch': {i / 10}}}\n"
        f"{{'eval_reward': {i / 10}, 'epoch': {i / 10}}}\n" for i in range(4)))
    curve = readers.load(str(path))
    assert curve.x == "epoch" and curve.C.tolist() == curve.R.tolist() == [0, 0.1, 0.2, 0.3]
    with pytest.raises(BadInput, match="no evaluation with both num_tokens and eval_reward"):
        readers.load(str(path), x="num_tokens")


@pytest.mark.parametrize("name", ["lr=1e-4.csv", "a,b.csv", "a.csv:b.csv", "A.CSV", "x=1/a.csv"])
def test_a_path_that_exists_is_read_whatever_its_name(name, tmp_path):
    """Sweeps name their folders lr=1e-4; = and , also name and pool runs."""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("gpu_hours,pass_rate\n0,.2\n1,.3\n")
    for spec in (str(path), f"mine={path}"):
        curve = readers.load(spec)
        assert curve.R.tolist() == [0.2, 0.3]
        assert curve.label == (path.stem if spec == str(path) else "mine")


def test_runs_that_a_pattern_pools_are_not_named_after_one(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("run,step,pass_rate\n" + "".join(
        f"{run},{i},{i / 10}\n" for run in ("s1", "s2", "s3") for i in range(3)))
    assert readers.load(f"{path}:s*").label == "s3 and 2 more"
    assert readers.load(f"{path}:s2").label == "s2"
    assert readers.load(f"all={path}:s*").label == "all"


def test_a_cell_that_is_no_number_is_named(tmp_path):
    """"a fifth" fell out in silence, and the fit was of the other evaluations."""
    path = tmp_path / "a.csv"
    path.write_text("gpu_hours,pass_rate\n0,.2\n1,a fifth\n2,.3\nlater,.4\n3,.5\n")
    curve = readers.load(str(path))
    assert curve.C.tolist() == [0, 2, 3]
    assert "2 of 5 evaluations" in curve.notes[0] and "pass_rate = a fifth" in curve.notes[0]
    path.write_text("\ngpu_hours,pass_rate\n0,low\n1,high\n")
    with pytest.raises(BadInput, match="it has: gpu_hours, pass_rate .text."):
        readers.load(str(path))


def test_a_folder_of_checkpoints_is_read_from_its_latest(tmp_path):
    """checkpoint-900 sorts after checkpoint-1000 as text, and its log ends earlier."""
    for n in (900, 1000):
        folder = tmp_path / f"checkpoint-{n}"
        folder.mkdir()
        state = {"log_history": [{"step": n, "eval_reward": 0.1}]}
        (folder / "trainer_state.json").write_text(json.dumps(state))
    assert readers.read_rows(tmp_path)[0] == [{"step": 1000.0, "eval_reward": 0.1}]


def test_a_named_tensorboard_file_is_read_alone(tmp_path):
    """Two runs may write into one folder.  Read as one, two files compared would be one run."""
    from torch.utils.tensorboard import SummaryWriter
    for rate in (0.25, 0.75):
        writer = SummaryWriter(str(tmp_path / "tb"), filename_suffix=f".{rate}")
        for step in range(5):
            writer.add_scalar("eval/pass_rate", rate, step)
        writer.close()
    for path in (tmp_path / "tb").iterdir():
        assert set(readers.load(str(path)).R) == {float(path.name[-4:])}


def test_tensorboards_scalars_as_tensors_are_read(tmp_path):
    """TensorFlow 2, Keras and JAX write them so: it was "no numbers yet"."""
    from tensorboard.summary import Writer
    writer = Writer(str(tmp_path / "tb"))
    for step in range(6):
        writer.add_scalar("eval/acc", step / 8, step=step)
    writer.close()
    curve = readers.load(str(tmp_path / "tb"), y="eval/acc")
    assert curve.C.tolist() == [*range(6)] and curve.R.tolist() == [i / 8 for i in range(6)]


@pytest.mark.parametrize("tokens,x", [("eval_num_tokens", "eval_num_tokens"), (None, "step")])
def test_an_x_that_most_evaluations_lack_is_not_taken(tokens, x, tmp_path):
    """TRL's num_tokens is in the rows of training: with logging_steps 30 and eval_steps 50 eight
    of 13 evaluations had none."""
    rows = [{"step": 0, "eval_reward": 0.2} | ({tokens: 0.0} if tokens else {})]
    for step in range(1, 601):
        if step % 30 == 0:
            rows.append({"step": step, "reward": 0.3, "num_tokens": 1000.0 * step})
        if step % 50 == 0:
            rows.append({"step": step, "eval_reward": 0.2 + step / 1000} | (
                {tokens: 1000.0 * step} if tokens else {}))
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": rows}))
    curve = readers.load(str(tmp_path))
    assert curve.x == x and curve.C.tolist() == [
        step * (1000 if tokens else 1) for step in range(0, 601, 50)]
    told = [] if tokens else ["--x is not num_tokens: 5 of 13 evaluations have it"]
    assert [note for note in curve.notes if "--x" in note] == told
    training = readers.load(str(tmp_path), y="reward")      # its rows have num_tokens, all of them
    assert training.x == "num_tokens" and training.C.size == 20
    assert readers.load(str(tmp_path), x="num_tokens").C.size == 5      # as asked for, with a note


def test_a_byte_order_mark_and_an_empty_notebook_are_no_traceback(tmp_path):
    """PowerShell writes the mark."""
    (tmp_path / "log.jsonl").write_text('{"step": 1, "eval/reward": 0.5}\n', "utf-8-sig")
    assert readers.load(str(tmp_path / "log.jsonl")).R.tolist() == [0.5]
    for cells in (None, [{"outputs": None}], [{"outputs": [{"data": {"text/html": None}}]}],
                  [{"outputs": [{"data": None, "text": None}]}]):
        (tmp_path / "n.ipynb").write_text(json.dumps({"cells": cells}))
        with pytest.raises(BadInput, match="has no column for --y; it has: no numbers yet"):
            readers.load(str(tmp_path / "n.ipynb"))


def test_a_folder_with_several_runs_is_refused_with_a_list(tmp_path):
    """The last one in the alphabet would be fitted, and nobody told."""
    for name in ("b", "a"):
        log = tmp_path / "tb" / name / "events.out.tfevents.1"
        log.parent.mkdir(parents=True)
        log.write_bytes(b"")
        (tmp_path / f"{name}.csv").write_text("gpu_hours,pass_rate\n")
    for folder, logs in (("tb", "a, b"), (".", "a.csv, b.csv")):
        if folder == ".":
            shutil.rmtree(tmp_path / "tb")
        with pytest.raises(BadInput, match=f"holds several logs: {logs}; name one"):
            readers.load(str(tmp_path / folder))


def test_a_spread_or_an_extreme_is_taken_only_if_it_is_named(tmp_path):
    """`eval_pass_rate_std` lies in [0, 1] too, and its fit looks like any other."""
    path = tmp_path / "a.csv"
    path.write_text("gpu_hours,pass_rate_std,pass_rate_min,pass_rate_max,pass_rate\n"
                    "0,.01,.1,.6,.2\n1,.02,.2,.7,.4\n2,.03,.3,.8,.5\n")
    assert readers.load(str(path)).y == "pass_rate" and not readers.load(str(path)).notes
    assert readers.load(str(path), y="pass_rate_max").R.tolist() == [0.6, 0.7, 0.8]


def test_a_pattern_fits_the_metric_of_an_export_and_not_its_spreads(tmp_path):
    """Weights & Biases adds __MIN and __MAX to every column of an export."""
    log, y = tmp_path / "wandb.csv", "run - eval/toy/mean@4"
    log.write_text(f"Step,{y},{y}__MIN,{y}__MAX\n" + "".join(
        f"{i},0.{i} ,0.1,0.9\n" for i in range(1, 8)))
    for wanted in ("eval/*", "eval/*/mean@*", y):
        (curve,) = readers.read_curves([str(log)], y=[wanted])
        assert curve.R.tolist() == [i / 10 for i in range(1, 8)]
    (curve,) = readers.read_curves([str(log)], y=[f"{y}__MAX"])
    assert set(curve.R) == {0.9}


@pytest.mark.parametrize("key", ["val-core/gsm8k/reward/mean@1", "val/test_score/gsm8k"])
def test_the_console_lines_of_verl_are_read(key, tmp_path):
    """A log as it is printed was "line 1 is not JSON".  New and old keys; Ray's prefix; numpy."""
    path = tmp_path / "run.log"
    path.write_text("loading weights\n" + "".join(
        f"(main pid=7) step:{i} - actor/lr:1e-06 - {key}:{value} - time/s:3.5\n  9%|#| 1/9\n"
        for i, value in ((0, "0.1"), (10, "np.float64(0.4)"), (20, "0.5"))))
    curve = readers.load(str(path))
    assert (curve.x, curve.y) == ("step", key)
    assert curve.C.tolist() == [0, 10, 20] and curve.R.tolist() == [0.1, 0.4, 0.5]


def test_the_dicts_that_trl_prints_are_read(tmp_path):
    """They stand behind progress bars, and hold nan, which is no Python literal."""
    path = tmp_path / "run.log"
    path.write_text("{'not': numbers}\n" + "".join(
        f" 5%|#  | 5/99\r{{'loss': nan, 'reward': '{value}', 'num_tokens': {i}}}\n"
        for i, value in ((100, 0.1), (200, 0.4), (300, 0.5))))
    curve = readers.load(str(path), y="reward")
    assert curve.x == "num_tokens"
    assert curve.C.tolist() == [100, 200, 300] and curve.R.tolist() == [0.1, 0.4, 0.5]


def test_the_first_validation_that_verl_prints_is_step_0(tmp_path):
    """Its old versions print it as a dict, and R0 moves every other number.  New ones print it
    twice, which is no second seed."""
    path, old = tmp_path / "run.log", "Initial validation metrics: {'test_score/gsm8k': 0.05}"
    path.write_text(f'"{old}"\nstep:0 - actor/lr:1\nstep:9 - val/test_score/gsm8k:0.3\n')
    assert readers.load(str(path)).R.tolist() == [0.05, 0.3]
    path.write_text(f'"{old}"\nstep:0 - val/test_score/gsm8k:0.1\n')
    assert readers.load(str(path)).R.tolist() == [0.1]


@pytest.mark.parametrize("line", ["(PPOTrainer pid=7) Global step {}: {{'reward': {}}}",
                                  "[12:00:01] eval {}: {{'eval/aime': 0.1, 'reward': {}}}"])
def test_the_step_before_a_printed_dict_is_its_step(line, tmp_path):
    """OpenRLHF and slime."""
    path = tmp_path / "run.log"
    path.write_text("".join(line.format(i, i / 10) + "\n" for i in (1, 2, 3)))
    curve = readers.load(str(path), y="reward")
    assert curve.x == "step" and curve.C.tolist() == [1, 2, 3] and curve.R[2] == 0.3


def test_a_notebook_is_read_and_likely_columns_are_proposed(tmp_path):
    """Its table has blanks about the slash; another table, of data, is none of a trainer's."""
    cells = "".join(f"<tr>\n<td>{i}</td>\n<td>0.{i}</td>\n<td>9</td></tr>" for i in (1, 2, 3))
    table = f"<table><tr><th>Step</th><th>rewards / f</th><th>kl</th></tr>{cells}</table>"
    other = "<table><tr><th></th><th>reward</th></tr><tr><th>0</th><td>7</td></tr></table>"
    path = tmp_path / "run.ipynb"
    path.write_text(json.dumps({"cells": [{"source": ""}, {"outputs": [
        {"text": ["x"]}, {"data": {"text/html": [other]}}, {"data": {"text/html": [table]}}]}]}))
    with pytest.raises(BadInput, match="no column for --y; .*; likely: rewards/f$"):
        readers.load(str(path))
    assert readers.load(str(path), y="rewards/f").R.tolist() == [0.1, 0.2, 0.3]
    path.write_text("{\n")
    with pytest.raises(BadInput, match="run.ipynb has no column for --y; it has: no numbers yet"):
        readers.load(str(path))
    printed = {"text": ["step 7: ", "{'reward': 0.5}"]}
    path.write_text(json.dumps({"cells": [{"outputs": [printed]}]}))
    assert readers.load(str(path), y="reward").R.tolist() == [0.5]


STRINGS = ("  4%|4 | {step}/250 [05:00<1:55:00]"
           "{{'loss': '0.01', 'reward': '{rate}', 'num_tokens': '{step}'}}\n")
EVENTS = "1.7e9,{step},{rate}\n"
EXTREMES = '"{step}","{rate}","0.01","0.99"\n'


@pytest.mark.parametrize("name,head,line,y", [
    ("unsloth.log", "Unsloth: Will patch your computer\n", STRINGS, "reward"),
    ("tensorboard.csv", "Wall time,Step,Value\n", EVENTS, None),
    ("wandb.csv", '"Step","a - eval/reward","a - eval/reward__MIN","a - eval/reward__MAX"\n',
     EXTREMES, None)])
def test_what_other_trainers_print_or_export_is_read(name, head, line, y, tmp_path):
    """TRL's dicts of strings, TensorBoard's and Weights & Biases' exports: rows as they were
    printed, step 0 included."""
    C, R = np.arange(0, 200, 20), np.linspace(0.2, 0.65, 10)
    path = tmp_path / name
    path.write_text(head + "".join(line.format(step=c, rate=r) for c, r in zip(C, R)))
    found = readers.load(str(path), y=y)
    np.testing.assert_allclose(found.C, C)
    np.testing.assert_allclose(found.R, R, rtol=1e-6)
    if y:                                   # not taken unasked: it may be a training reward
        with pytest.raises(BadInput, match=f"for --y; it has: .*; likely: .*{re.escape(y)}"):
            readers.load(str(path))


def test_text_without_numbers_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "run.log").write_text("loading\ndone\n")
    with pytest.raises(BadInput, match="run.log has no line `step:1 - a:1`, `{"):
        readers.load(str(tmp_path / "run.log"))


def test_what_a_run_of_weights_and_biases_printed_is_found_in_its_folder(tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files/output.log").write_text(
        "".join(f"step:{i} - val-core/a/acc/mean@4:0.{i}\n" for i in (1, 2, 3)))
    assert readers.load(str(tmp_path)).R.tolist() == [0.1, 0.2, 0.3]


def test_a_run_of_weights_and_biases_is_read_where_it_was_and_one_that_still_runs(tmp_path):
    """Its file is in pieces; the last may be half-written, at any byte. The fixture's evaluations
    come out one after another, none twice, none changed."""
    whole = (FIXTURES / "wandb_run/run-made.wandb").read_bytes()
    rows = readers.read_wandb_file(whole)
    assert len(whole) > 32768 and len(rows) == 13
    steps = [row["_step"] for row in rows]
    assert steps == sorted(steps) and rows[0]["trainer/global_step"] == 0
    ends = np.random.default_rng().integers(0, len(whole) - 100, 20)      # 38 bytes: how it ended
    for end in [0, 6, 7, 13, 32767, 32768, 32769, *ends]:
        part = readers.read_wandb_file(whole[:end])
        assert part == rows[:len(part)] and len(part) < 13
    assert readers.read_wandb_file(whole[:34_000])


def test_a_run_is_read_from_weights_and_biases_themselves(monkeypatch, tmp_path, capsys):
    """Against a stand-in of `wandb.Api().run(PATH).scan_history()`, whose rows have no column that
    was not logged in them. An unknown run, no key, no package: a sentence."""
    C, R = made(n=9)
    history = [{"_step": 2 * i, "_runtime": 1.5, "loss": None} | (
        {"eval/pass_rate": r} if i % 2 == 0 else {}) for i, r in enumerate(np.repeat(R, 2))]

    class Api:
        def run(self, path):
            if path != "me/project/abc":
                raise stand_in.Error(f"Could not find run <{path}>")
            return SimpleNamespace(scan_history=lambda: iter(history))
    stand_in = SimpleNamespace(Api=Api, Error=type("Error", (Exception,), {}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "wandb", stand_in)
    (curve,) = readers.read_curves(["wandb:me/project/abc"])
    assert (curve.x, curve.y, curve.label) == ("_step", "eval/pass_rate", "abc")
    assert curve.C.tolist() == [4 * i for i in range(9)] and curve.R == pytest.approx(R)
    assert main(["wandb:me/project/abc", "--bootstrap", "20"]) == 0
    assert (tmp_path / "abc_curve.png").is_file()
    assert main(["wandb:me/project/xyz"]) == 2
    monkeypatch.setitem(sys.modules, "wandb", None)           # as where it is not installed
    assert main(["wandb:me/project/abc"]) == 2
    told = capsys.readouterr().err
    assert "fit.py: wandb:me/project/xyz: Could not find run <me/project/xyz>\n" in told
    assert "fit.py: import of wandb halted" in told and told.endswith(": pip install wandb\n")


def test_reading_a_log_is_linear_in_its_lines():
    """Counted, not timed: how often numbers are compared. A list of what was kept, searched for
    each evaluation, took a minute for 20,000."""
    compared = [0]

    class Number(float):
        __hash__ = float.__hash__

        def __eq__(self, other):
            compared[0] += 1
            return super().__eq__(other)
    counts = []
    for n in (300, 3000):
        compared[0] = 0
        rows = [{"step": float(i), "x": Number(i), "y": Number((i * 7 % n) / n)} for i in range(n)]
        assert readers.evaluations(rows, "x", "y", "log")[0].size == n
        counts.append(compared[0] / n)
    assert counts[1] < 2 * counts[0] + 2


def test_a_row_keeps_its_own_compute_whatever_another_row_of_its_step_has(tmp_path):
    """Two seeds in one table, 10% apart: each evaluation had the compute of the last one."""
    (C, R), table = made(n=9), tmp_path / "seeds.csv"
    table.write_text("step,compute/flops,pass_rate\n" + "".join(
        f"{i},{c * part},{r}\n" for part in (1, 1.1) for i, (c, r) in enumerate(zip(C, R))))
    found = readers.load(str(table))
    assert {*found.C} == {*C, *C * 1.1}


def test_steps_of_the_trainer_come_before_the_calls_of_its_logger(tmp_path):
    """Weights & Biases under transformers: _step counts log calls, six in 50 steps."""
    (_, R), table = made(n=9), tmp_path / "wandb.csv"
    table.write_text("_step,train/global_step,eval/reward\n" + "".join(
        f"{6 * i},{50 * i},{r}\n" for i, r in enumerate(R)))
    found = readers.load(str(table))
    assert found.x == "train/global_step" and found.C[-1] == 400


def test_the_whole_reward_comes_before_that_of_one_function(tmp_path):
    """In TensorBoard and .wandb TRL's functions stand first; one may be for the format alone."""
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps({"step": i, "eval/rewards/form/mean": 1.0,
                                       "eval/reward": r}) + "\n" for i, r in enumerate(made()[1])))
    assert readers.load(str(log)).y == "eval/reward"


@pytest.mark.parametrize("raw, name", [
    ("\ufeffstep,pass_rate,\ufffd\n0,0.2,1\n1,0.3,1\n2,0.4,1\n".encode(), "\ufffd"),
    ("step,pass_rate,é,".encode() + b"\xfc\n0,0.2,1,1\n1,0.3,1,1\n2,0.4,1,1\n", "é,ü"),
    ("step,pass_rate,é\n0,0.2,1\n1,0.3,1\n2,0.4,1\n".encode("utf-16")[:-1], "é"),
])
def test_one_bad_character_spoils_no_other(raw, name, tmp_path):
    """One that somebody's program could not write, bytes of two encodings, and a file that is cut
    within a character: the mark before the text, and all other names, are read as ever."""
    (tmp_path / "a.csv").write_bytes(raw)
    text = readers.read_text(tmp_path / "a.csv")
    assert text.startswith(f"step,pass_rate,{name}\n") and "2,0.4" in text
    assert readers.load(str(tmp_path / "a.csv")).R.tolist()[:2] == [0.2, 0.3]


def test_paths_that_hold_an_equals_sign_can_be_pooled(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("s1", "s2"):
        write_run(tmp_path / "lr=1e-4" / name, *made(n=9, seed=len(name)))
    for spec in ("ours=lr=1e-4/s1,lr=1e-4/s2", "lr=1e-4/s1,lr=1e-4/s2"):
        assert readers.load(spec).C.size == 18


def test_folders_of_one_name_keep_their_curves_also_with_two_tasks(tmp_path):
    other = {"eval/b/mean@4": 0.5}
    runs = [str(write_run(tmp_path / part / "seed0", *made(n=9, seed=seed), **other))
            for seed, part in enumerate("ab")]
    found = readers.read_curves(runs, None, ["eval/toy/mean@4", "eval/b/mean@4"])
    assert len({curve.label for curve in found}) == 4 and found[0].label.startswith(runs[0])
    with pytest.raises(BadInput, match="a run is named twice"):
        readers.read_curves([runs[0], runs[0]])


def test_the_name_of_a_run_may_be_a_number_or_hold_a_slash(tmp_path):
    (C, R), table = made(n=9), tmp_path / "many.csv"
    table.write_text("run,compute/flops,pass_rate\n" + "".join(
        f"{run},{c},{r}\n" for run in ("007", "org/model") for c, r in zip(C, R)))
    assert readers.load(f"{table}:007").label == "007"
    assert readers.load(f"{table}:org/model").picture == tmp_path / "org_model_curve.png"
    pooled = readers.load(f"both={table}:007,{table}:org/model")    # no run's own picture
    assert pooled.picture == Path("both_curve.png")


def test_a_printed_dict_may_hold_any_of_numpy_s_numbers(tmp_path):
    log = tmp_path / "run.log"
    log.write_text("".join(f"step {i}: {{'eval/reward': np.float64({r}), 'n': np.int64(3)}}\n"
                           for i, r in enumerate(made(n=9)[1])))
    assert readers.load(str(log)).R.size == 9


def test_plain_lines_with_a_step_and_a_reward_are_read(tmp_path):
    """prime-rl's console and MiniMind's (their shapes); of a line without a step or a reward, and
    of the clock in front, nothing is taken."""
    for name, line in (("prime", "02:33:26 SUCCESS Step {0} | Time: 73.77s | Reward: {1} | Lag: 2"),
                       ("mind", "Epoch:[1/1]({0}/500), Reward: {1}, Fmt: 1.00, lr: 1e-05"),
                       ("dots", "[Step {0}/50] loss=10.2222 reward={1} avg_resp_len=236.8")):
        log = tmp_path / f"{name}.log"
        log.write_text("\n".join(["starting, reward model loaded", *(
            line.format(step, 0.1 + step / 100) for step in range(1, 9)), "Step 9 | Time: 1s"]))
        curve = readers.load(str(log), y="[Rr]eward")
        assert curve.C.tolist() == [*range(1, 9)] and curve.x == "step"
        assert curve.R == pytest.approx(0.1 + curve.C / 100)
    log.write_text("".join(f"Step {i} | Time: 7{i}.77s | num_tokens: {i}.5M | Reward: {i}0%\n"
                           for i in range(1, 5)))
    curve = readers.load(str(log), y="Reward")
    assert curve.x == "step" and curve.R.tolist() == [.1, .2, .3, .4]
    assert readers.read_rows(log)[0][0] == {"step": 1, "Reward": .1}       # no part of a number
    for line in ("Epoch:[{0}/2](7/500), Reward: 0.1", "Step 1,00{0} | Reward: 0.1"):
        log.write_text("".join(line.format(i) + "\n" for i in (1, 2)))    # no second step 7, no 1
        with pytest.raises(BadInput, match="has no line"):
            readers.load(str(log), y="Reward")


def test_a_table_of_any_name_a_folder_of_lightning_and_a_printed_success_rate_are_read(tmp_path):
    """A table is known by its header and a number in its second row; prose and a log are none."""
    steps, rates = [0, 10, 20, 30], [.1, .25, .375, .5]
    table = "step,val_acc\n" + "".join(f"{s},{r}\n" for s, r in zip(steps, rates))
    folder = tmp_path / "lightning_logs" / "version_0"
    folder.mkdir(parents=True)
    (folder / "metrics.csv").write_text(table)
    (tmp_path / "table.txt").write_text(table.replace(",", "\t"))
    (tmp_path / "printed.log").write_text("".join(
        f"Iteration {s}: success rate = {100 * r}%\n" for s, r in zip(steps, rates)))
    for name in ("table.txt", "lightning_logs", "printed.log"):
        curve = readers.load(str(tmp_path / name))
        assert curve.C.tolist() == steps and curve.R == pytest.approx(rates), name
    for text in ("dear reader, this\nis 1, or 2, words\n", "start, now\n12 done, ok\n",
                 "a: 1, b\nc, 2\n"):
        (tmp_path / "prose.txt").write_text(text)
        with pytest.raises(BadInput, match="has no line"):
            readers.load(str(tmp_path / "prose.txt"))


def test_a_json_file_of_columns_is_read_and_columns_of_other_lengths_are_not_paired(tmp_path):
    """The history that a loop of one's own dumps; an evaluation each tenth step is no column."""
    path = tmp_path / "history.json"
    path.write_text(json.dumps({"epoch": [0, 500, 1000, 1500], "acc": [.1, .2, .3, .4]}, indent=1))
    curve = readers.load(str(path), y="acc")
    assert curve.x == "epoch" and curve.C.tolist() == [0, 500, 1000, 1500]
    assert curve.R.tolist() == [.1, .2, .3, .4]
    for other in ({"epoch": [0, 500], "acc": [.1]}, {"epoch": [], "acc": []}, {}):
        path.write_text(json.dumps(other))
        with pytest.raises(BadInput, match="it has: no numbers yet"):
            readers.load(str(path), y="acc")
    path.write_text(json.dumps({"log_history": [{"step": i, "acc": i / 10} for i in (1, 2, 3)]}))
    assert readers.load(str(path), y="acc").R.tolist() == [.1, .2, .3]
    path = tmp_path / "list.ipynb"
    path.write_text("[3]")
    with pytest.raises(BadInput, match="list.ipynb holds values that are not JSON objects"):
        readers.load(str(path))


def test_a_plain_line_with_an_accuracy_is_a_row_as_one_with_a_reward_is(tmp_path):
    log = tmp_path / "ppo.log"
    log.write_text("".join(f"[step {i}] avg_loss=0.0047 acc=0.{i}000\n" for i in range(1, 5)))
    assert readers.load(str(log)).notes == ("--y is acc, by its name",)
    log.write_text(log.read_text().replace("avg_loss", "score"))
    with pytest.raises(BadInput, match="it has: acc, score, step; likely: score, acc"):
        readers.load(str(log))
    assert readers.load(str(log), y="acc").R.tolist() == [.1, .2, .3, .4]
    log.write_text("args {'lr': 1e-05}\n" + "".join(
        f"Step {i} | val_acc: 0.{i}\n" for i in range(1, 5)))
    assert readers.load(str(log), y="val_acc").R.tolist() == [.1, .2, .3, .4]
    log.write_text("".join(f"Step {i}: evaluating, accuracy so far\n{{'loss': .5, 'eval_acc': .{i},"
                           f" 'step': {i}}}\n" for i in range(1, 5)))
    assert readers.load(str(log), y="eval_acc").R.tolist() == [.1, .2, .3, .4]


def test_numbers_of_plain_lines_are_read_whole_with_their_signs_or_not_at_all(tmp_path):
    """A lost "+0.10" leaves the negative rewards alone; 1,234 read as 1 was taken for compute."""
    log = tmp_path / "plain.log"
    log.write_text("args {'lr': 1e-05}\n" + "".join(
        f"Step {i} | num_tokens: {1234 * i:,} | Reward: {(i - 4) / 10:+.2f}\n"
        for i in range(1, 9)))
    curve = readers.load(str(log), y="Reward", reward_range=(-1, 1))
    assert curve.x == "step" and curve.R == pytest.approx((1 + (curve.C - 4) / 10) / 2)
    log.write_text("".join(f"Step {i} | Reward: {'nan' if i % 2 else .1}\n" for i in range(8)))
    assert "4 of 8 evaluations" in readers.load(str(log), y="Reward").notes[0]


@pytest.mark.parametrize(("y", "epochs", "kept"), [
    ("rewards/run_tests_reward", (0.0, 0.0, 0.01, 0.01, 0.02), 3),
    ("pass_rate", (0.0, 0.5, 1.0, 1.5), 4), ("eval_reward", (0.0, 0.01, 0.02), 3)])
def test_a_first_epoch_is_left_out_only_where_rounding_made_it_zero(tmp_path, y, epochs, kept):
    log = tmp_path / "epochs.jsonl"
    log.write_text("".join(json.dumps({"epoch": epoch, y: .1 + i / 100}) + "\n"
                           for i, epoch in enumerate(epochs)))
    assert readers.load(str(log), x="epoch", y=y).C.size == kept


def test_an_epoch_that_is_rounded_to_zero_is_no_step_zero(tmp_path):
    """TRL prints epoch .004 as 0.0: three trained steps would be taken for R0."""
    log = tmp_path / "trl.log"
    log.write_text("\n".join(str({"rewards/accuracy_reward": 0.1 + i / 50, "epoch": i // 3 / 100})
                             for i in range(12)))
    curve = readers.load(str(log), y="rewards/accuracy_reward")
    assert curve.x == "epoch" and curve.C.min() == 0.01 and curve.C.size == 9
    log.write_text("\n".join(str({"eval_reward": 0.1 + i / 50, "epoch": i / 100})
                             for i in range(12)))
    assert readers.load(str(log)).C.min() == 0            # an evaluation before training
    log = tmp_path / "whole.csv"                          # whole epochs are not rounded
    log.write_text("epoch,reward\n" + "".join(f"{i},.{i + 1}\n" for i in range(6)))
    curve = readers.load(str(log), y="reward")
    assert curve.C.tolist() == [*range(6)] and not curve.notes


def test_rewards_of_another_range_are_told_whole_and_in_their_own_units(tmp_path):
    """One offender at a time sent people in circles."""
    log = tmp_path / "run.jsonl"
    log.write_text("".join(json.dumps({"step": i, "reward": x}) + "\n"
                           for i, x in enumerate((1.2, 1.3, -.4, 2.8, 3.9))))
    with pytest.raises(BadInput, match="^reward goes from -0.4 to 3.9, not from -1 to 2: "):
        readers.load(str(log), y="reward", reward_range=(-1, 2))
    assert readers.load(str(log), y="reward", reward_range=(-1, 4)).R.max() == pytest.approx(.98)


def test_of_a_folder_it_is_said_which_log_was_read(tmp_path):
    """An old run's checkpoint may lie beside a newer one's."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "training_log.json").write_text(json.dumps(
        [{"iteration": i, "eval/win_rate": i / 10} for i in range(5)]))
    curve = readers.load(str(tmp_path / "a"), y="eval/win_rate")
    assert curve.notes == (f"read from {tmp_path / 'a' / 'training_log.json'}",)
    assert curve.x == "iteration"
    ours = tmp_path / "b" / "run"
    ours.mkdir(parents=True)
    (ours / "evals.jsonl").write_text('{"step": 0, "eval/x/mean@1": 0.5}\n')
    assert readers.load(str(tmp_path / "b")).notes == (f"read from {ours / 'evals.jsonl'}",)
    assert readers.load(str(ours)).notes == ()


def test_other_files_beside_a_log_do_not_take_its_place(tmp_path):
    """Settings of a logger, a tracker's folders."""
    for log, others in (("run.log", ("logging_config.json", "dialog.json", "log.txt")),
                        ("x.csv", ("run-1/a.wandb", "run-2/b.wandb"))):
        folder = tmp_path / log.partition(".")[0]
        for name in (log, *others):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("{}")
        assert readers.log_in(folder) == folder / log
