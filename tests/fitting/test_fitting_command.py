"""What the output of `python fit.py` claims: what is printed is what was fitted."""
import json
import re
import sys

import numpy as np
import pytest

import fit
from fitting.command import main
from fitting import command as fit_report
from conftest import ROOT
from fit import fit_curve
from made_runs import made, write_run

def test_two_reasons_to_doubt_are_told_and_all_with_why(tmp_path, capsys):
    """A verdict that twelve warnings push off the screen is read by nobody."""
    C, R = made(end=4000, n=31)
    run = write_run(tmp_path / "b", C[1:], R[1:] + 0.02 * np.sin(C[1:] / 300))
    for option, count in ([], 2), (["--why"], 3):
        assert main([str(run), "--out", "none", "--bootstrap", "60", *option]) == 0
        told = re.findall(r"^  (?:but|because) (.*)", capsys.readouterr().out, re.M)
        assert len(told) == count and ("the residuals have a trend" in told[-1]) == (count == 3)


def test_a_ceiling_or_a_steepness_at_the_end_of_its_range_is_marked(tmp_path, capsys):
    """No published fit stands at an end of its grid: a ceiling of 1 is where the range ends."""
    C = np.arange(31) * 1e4
    write_run(tmp_path / "line", C, 0.1 + 1e-6 * C)
    write_run(tmp_path / "leap", C, np.where(C < 1e5, 0.1, 0.7))
    for name, column in ("line", "1.000 (bound) ["), ("leap", "20.00 (bound) ["):
        assert main([str(tmp_path / name), "--out", "none"]) == 0
        said = capsys.readouterr().out
        assert column in said and said.count("(bound)") == 1, name


def test_warnings_of_a_rival_are_printed_with_its_ceiling(tmp_path, capsys):
    """The line is there with every fit, whoever wins; `--why` shows it."""
    run = write_run(tmp_path / "r", *made(n=25))
    assert main([str(run), "--until", "0.5", "--bootstrap", "20", "--out", "none", "--why"]) == 0
    told = capsys.readouterr().out
    for label, f in (("r", fit_curve(*made(n=25), bootstrap=0)),
                     ("r, up to 8e+03", fit_curve(*made(n=25), c_max=8000, bootstrap=0))):
        rival = f.rivals["stretched"]
        assert (f"rivals of {label}: stretched, ceiling {rival['A']:.3f}, AIC "
                f"{rival['delta_aic']:+.1f}; a constant") in told


def test_a_rival_that_fits_better_is_told_without_why(tmp_path, capsys):
    """The demo's ceiling had an interval without the better law's in it, and only --why said so."""
    C = np.linspace(0, 1000, 25)
    sharp = 0.3 + 0.5 * -np.expm1(-(C / 400) ** 3)          # the stretched law itself
    for R, told in ((sharp, True), (made(n=25)[1], False)):
        run = write_run(tmp_path / f"run-{told}", C if told else made(n=25)[0], R)
        assert main([str(run), "--bootstrap", "20", "--out", "none"]) == 0
        assert (f"rivals of run-{told}: stretched, ceiling 0." in capsys.readouterr().out) == told


@pytest.mark.parametrize("words,sentence", [
    (["nowhere"], "No such file or directory: 'nowhere'"),
    (["a="], "NAME=PATH"),
    (["nan.csv"], "no evaluation with both"),
    (["semicolons.csv"], "only 1 different amounts"),
    (["percent.csv", "--y", "reward"], "goes from 20 to 30, not from 0 to 1: "),
    (["run", "--until", "2"], "only 0 different amounts of compute can be fitted"),
    (["run", "--until", "-1"], "only 0 different amounts of compute can be fitted"),
    (["run", "--until", "1e9"], "nothing to predict"),
    (["run", "--x-scale", "-1"], "--x-scale takes a number from 1e-300 to 1e+300, got -1"),
    (["empty"], "holds no log"),
    (["run", "--y", "reward"], "--y reward; it has: compute/flops"),
    (["run", "--y", "eval/*"], "fits several columns"),
    (["run", "--until", "1.0"], "nothing to predict"),
    (["run", "--out", "x.bmp"], "Format 'bmp' is not supported (supported formats: "),
    (["run", "hard", "--y", "eval/*/mean@4", "--by-problem"], "takes one run of one task, not 2"),
    (["broken/evals.jsonl"], "line 2 is not JSON"),
    (["list.jsonl"], "not JSON objects"),
    *(([f"value{i}.json"], "not JSON objects") for i in range(3)),
    (["deep.json"], "maximum recursion depth exceeded"),
    (["run", "--like", "run", "--law", "power"], "are of the sigmoid, not of --law power"),
    (["run", "--plan", ".02", "--law", "power"], "are of the sigmoid, not of --law power"),
    (["run", "--like", "run"], "--like: an earlier run is the run itself, and knows its end"),
    (["a=run,other/run", "--like", "run"], "an earlier run is the run itself, and knows its end"),
    (["run", "--like", "a=run,other/run"], "an earlier run is the run itself, and knows its end"),
    (["run", "--like", "falls"], "--like: earlier run 1 shows no rise, nor its B: leave it out"),
    (["run", "--like", "run", "zero"], "--like: earlier run 2 shows no rise"),
    (["run", "--plan", "0"], "--plan takes a number from 0.0001 to 1, got 0"),
    (["--apart", "0"], "--apart takes a number from 0.0001 to 1, got 0"),
    (["run", "--x-scale", "0"], "--x-scale takes a number from 1e-300 to 1e+300, got 0"),
    (["run", "--predict", "1", "nan"], "--predict takes a number from 0 to 1e+300, got nan"),
    (["run", "--target", "nan"], "--target takes a number from 0 to 1, got nan"),
    (["run", "--target", "70"], "--target takes a number from 0 to 1, got 70"),
    (["run", "--answers", "-4"], "--answers takes a number from 1 to 1e+15, got -4"),
    (["run", "--bootstrap", "-5"], "--bootstrap takes a number from 0 to 1e+06, got -5"),
    (["void.jsonl"], "no numbers yet"),
    (["other.json"], "it has: a"),
    (["binary.csv"], "no numbers yet"),
    (["run", "hard"], "hard/evals.jsonl has no column for --y eval/toy/me"),
    (["a=run,hard"], "hard/evals.jsonl has no column for --y eval/toy/mean@4; it has: "),
])
def test_bad_input_ends_with_one_sentence_and_exit_code_2(words, sentence, tmp_path, capsys,
                                                           monkeypatch):
    """People read the last line of what they see; it must name the thing to change."""
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "run", *made())
    hard = write_run(tmp_path / "hard", *made()) / "evals.jsonl"
    hard.write_text(hard.read_text().replace("/toy/", "/hard/"))
    (tmp_path / "plain.csv").write_text("gpu_hours,pass_rate\n0,.2\n1,.3\n2,.4\n3,.5\n")
    write_run(tmp_path / "broken", *made())
    lines = (tmp_path / "broken/evals.jsonl").read_text().split("\n")
    (tmp_path / "broken/evals.jsonl").write_text("\n".join([lines[0], lines[1][:20], *lines[2:]]))
    (tmp_path / "empty").mkdir()
    (tmp_path / "nan.csv").write_text("gpu_hours,pass_rate\n0,nan\n1,nan\n")
    (tmp_path / "semicolons.csv").write_text("gpu_hours;pass_rate\n0;0.2\n1;0.3\n")
    (tmp_path / "percent.csv").write_text("gpu_hours,reward\n0,20\n1,30\n")
    (tmp_path / "list.jsonl").write_text("[1, 2]\n[3, 4]\n")
    for i, text in enumerate(("3", "null", '{"log_history": null}')):
        (tmp_path / f"value{i}.json").write_text(text)
    (tmp_path / "deep.json").write_text("[" * 100_000 + "]" * 100_000)
    write_run(tmp_path / "other/run", *made(seed=5, sd=0.01))
    write_run(tmp_path / "falls", *made(n=21, A=0.1, R0=0.8))
    write_run(tmp_path / "zero", np.arange(9.0), np.zeros(9))
    (tmp_path / "void.jsonl").write_text("")
    (tmp_path / "other.json").write_text('{"a": 1}')
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x81")
    assert main(["--bootstrap", "20", *words]) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.startswith("fit.py: ") and said.count("\n") == 1


@pytest.mark.days(4, turn=3)
def test_until_predicts_from_the_first_part_alone(tmp_path, capsys):
    """If one held-out point leaked into the early fit, its prediction would be a fit."""
    C, R = made(seed=4)
    told = []
    for name, rewards in (("a", R), ("b", np.where(C > 8000, 0.9, R))):
        run = write_run(tmp_path / name, C, rewards)
        assert main([str(run), "--until", "0.5", "--out", "none"]) == 0
        told.append(capsys.readouterr().out)
        where = (", in the interval", ", outside the interval")[name == "b"]
        assert where in told[-1]
    early, predicted = (
        [re.search(form, text)[1] for text in told] for form in (
            r"[ab], (up to 8e\+03 +40 .*)", r"evaluations: (0\.\d+ \[.*?\]); measured"))
    assert early[0].split() == early[1].split() and predicted[0] == predicted[1]
    f, measured = fit_curve(C, R, c_max=8000, bootstrap=0), R[-5:].mean()
    value, naive = f.curve(C[-5:]).mean(), R[C <= 8000][-3:].mean()
    assert f"{value:.3f} [" in told[0] and abs(value - measured) < 0.02
    assert f"measured {measured:.3f}; error {value - measured:+.3f}" in told[0]
    assert f"forward: {naive:.3f}; error {naive - measured:+.3f}" in told[0]


def test_predict_and_target_are_told_with_intervals(tmp_path, capsys):
    """What more compute buys, and what a reward costs, or that no compute buys it."""
    run = write_run(tmp_path / "r", *made())
    few = ["--bootstrap", "100", "--out", "none"]
    assert main([str(run), "--predict", "1e5", "--target", "0.58", *few]) == 0
    said = capsys.readouterr().out
    f = fit_curve(*made(), bootstrap=0)
    assert f"at compute 1e+05 (6.2 times the data): {f.curve(1e5):.3f} [" in said
    assert f"to reach 0.58 takes compute {f.compute_for(0.58):.3g} [" in said
    main([str(run), "--target", "0.9", *few])
    assert "no forecast of 0.9: the curve's ceiling is 0." in capsys.readouterr().out


@pytest.mark.days(4, turn=2)
def test_with_until_what_is_told_of_the_whole_run_says_so_and_the_forecast_has_its_error(
        tmp_path, capsys):
    """`--predict` was taken for the first part's, and the error told was another number's. (The
    reward falls before the cut, so the forecast is the middle one.)"""
    C = np.arange(31) * 100.0
    R = np.interp(C, [0, 500, 1000, 1500, 3000], [0.2, 0.6, 0.7, 0.5, 0.45])
    run = write_run(tmp_path / "r", C, R)
    assert main([str(run), "--until", "0.5", "--predict", "1e5", "--out", "none"]) == 0
    said = capsys.readouterr().out
    assert "\nof the whole run: at compute 1e+05 " in said
    value = float(re.search(r"value: expect (\S+) \(middle of three\)", said)[1])
    error = float(re.search(rf"the middle of three, {value:.3f}: error (\S+)", said)[1])
    assert error == pytest.approx(value - R[-5:].mean(), abs=2e-3)


def test_a_power_law_predicts_no_negative_pass_rate(tmp_path, capsys):
    run = write_run(tmp_path / "r", *made(n=31))
    assert main([str(run), "--law", "power", "--predict", "1", "--out", "none"]) == 0
    told = re.search("^at compute 1 .*", capsys.readouterr().out, re.M)[0]
    assert told.endswith(": 0.000 [0.000, 0.000]")


@pytest.mark.days(4, turn=0)
def test_a_target_that_was_measured_is_not_called_out_of_reach(tmp_path, capsys):
    """A run that rose to .75 and collapsed: "never reached: the ceiling is .39" was said of .7. And
    where nothing rises there is no ceiling to speak of."""
    C, R = made(n=41, A=0.8, C_mid=4000.0)
    run = write_run(tmp_path / "r", C, np.where(C > 8000, 0.05, R))
    flat = write_run(tmp_path / "flat", C, np.full(41, 0.4))
    for path, target, words in ((run, 0.5, r"a constant .*; the best evaluation has 0\.[5-7]"),
                                (run, 0.9, "a constant fits as well"),
                                (flat, 0.7, "a constant fits as well")):
        assert main([str(path), "--target", str(target), "--out", "none"]) == 0
        assert re.search(f"^no forecast of {target}: {words}", capsys.readouterr().out, re.M)


@pytest.mark.days(4, turn=3)
def test_a_run_without_a_rise_keeps_its_report_and_prints_no_nan(tmp_path, capsys):
    """`--plan` of a constant run was a refusal of all else; `[nan, nan]` is no interval."""
    flat = write_run(tmp_path / "flat", np.arange(21.0), np.full(21, 0.4))
    words = [str(flat), "--plan", "0.02", "--predict", "40", "--until", "0.5", "--out", "none"]
    for more in ([], ["--bootstrap", "0", "--target", "0.4"]):
        assert main([*words, *more]) == 0
        said = capsys.readouterr().out
        assert "no plan: the curve of this run does not rise" in said and "nan" not in said
        assert "at compute 40 (2 times the data): 0.400 no interval\n" in said
        assert "evaluations: 0.400 no interval; measured 0.400; error +0.000\n" in said


@pytest.mark.days(4, turn=2)
def test_of_a_run_that_rose_before_its_first_evaluation_no_steepness_is_sure(tmp_path, capsys):
    """`--target` gave an interval of no truth, and two such runs were compared by B."""
    C, R = np.arange(0, 2001.0, 100), np.full(21, 0.6) + np.tile([0.01, -0.01, 0.0], 7)
    R[0] = 0.2
    runs = [str(write_run(tmp_path / name, C, R + more)) for name, more in (("a", 0), ("b", 0.002))]
    assert main([runs[0], "--target", "0.5", "--out", "none", "--bootstrap", "40"]) == 0
    assert re.search(r"to reach 0.5 takes compute \S+ no interval\n", capsys.readouterr().out)
    assert main([*runs, "--bootstrap", "40"]) == 0
    said = capsys.readouterr().out
    assert "same by the paper's 0.02" in said
    assert re.search(r"B\(b\) = \S+ no interval; \S+ no interval against a\n", said)


def test_a_point_outside_of_its_interval_is_said_to_be(tmp_path, capsys):
    """The interval is of two laws, the point of one: 1.000 [0.784, 0.999] looked like an error."""
    path = tmp_path / "pow5.csv"
    path.write_text("step,pass_rate\n" + "".join(f"{i},{(i / 20) ** 5:.4f}\n" for i in range(21)))
    assert main([str(path), "--out", "none"]) == 0
    verdict = capsys.readouterr().out.splitlines()[1]
    said = re.search(r"(?:: |says )(\S+) \[(\S+), (\S+)\]", verdict)
    value, low, high = map(float, said.groups())
    assert ("(of two laws; this one is outside)" in verdict) == (not low <= value <= high)


def test_two_tasks_of_one_run_are_two_curves(tmp_path, capsys):
    """As in the paper's math + code run: one training, a ceiling for each task."""
    run = tmp_path / "mix"
    run.mkdir()
    C, math = made(A=0.7, sd=0.002)
    _, code = made(A=0.5, sd=0.002)
    (run / "evals.jsonl").write_text("".join(
        json.dumps({"step": i, "compute/flops": c, "eval/math/mean@4": m, "eval/code/mean@4": k})
        + "\n" for i, (c, m, k) in enumerate(zip(C, math, code))))
    columns = ["--y", "eval/math/mean@4", "--y", "eval/code/mean@4"]
    assert main([str(run), *columns, "--out", "none"]) == 0
    said = capsys.readouterr().out
    for column, A in (("eval/math/mean@4", 0.7), ("eval/code/mean@4", 0.5)):
        fitted = float(re.search(rf"^{column} +80 +(\S+)", said, re.M)[1])
        assert abs(fitted - A) < 0.02


@pytest.mark.days(4, turn=1)
def test_recipes_that_differ_in_steepness_share_a_ceiling(tmp_path, capsys):
    """The paper's main finding: most decisions move B, not A.  Compared at their own A's, noise in
    A hides it."""
    a = write_run(tmp_path / "ours", *made(B=2.01, seed=1))
    b = write_run(tmp_path / "rival", *made(B=1.62, seed=2))
    assert main([str(a), str(b)]) == 0
    said = capsys.readouterr().out
    assert re.search(r"A\(rival\) - A\(ours\) = .*: same by the paper's 0.02", said)
    steep = dict(re.findall(r"^  B\((\w+)\) = (\S+)", said, re.M))
    assert float(steep["ours"]) == pytest.approx(2.01, abs=0.1)
    assert float(steep["rival"]) == pytest.approx(1.62, abs=0.1)
    low, high = re.search(r"B\(rival\) .*; \S+ \[(\S+), (\S+)\] against ours", said).groups()
    assert float(low) < float(high) < 0


def test_no_two_lines_of_a_comparison_contradict_each_other(tmp_path, capsys):
    """"differ by the paper's .02" above "steepness at the shared ceiling", or the other way round;
    and ceilings that are not known get no verdict."""
    a = write_run(tmp_path / "a", *made())
    early = write_run(tmp_path / "e", *made(end=4000, sd=0.01))
    for A in (0.59, 0.591, 0.589):
        b = write_run(tmp_path / f"b{A}", *made(A=A, seed=1))
        main([str(a), str(b), "--bootstrap", "50", "--out", "none"])
        said = capsys.readouterr().out
        assert ("same by the paper's" in said) == ("steepness at the shared" in said)
        assert ("differ by the paper's" in said) == ("B is not compared" in said)
    main([str(a), str(early), "--bootstrap", "50", "--out", "none"])
    said = capsys.readouterr().out
    assert ": undetermined by the paper's 0.02" in said
    assert "B is not compared: the ceilings are not all the same" in said


def test_runs_that_are_compared_have_bootstraps_of_their_own(tmp_path, capsys):
    """With one seed both runs' replicates get the same noise: twice the same log would "differ"
    from itself by exactly 0, and any small difference would look sure."""
    a, b = (write_run(tmp_path / name, *made()) for name in "ab")
    main([str(a), str(b), "--bootstrap", "50", "--out", "none"])
    said = capsys.readouterr().out
    for form in (r"A\(b\) - A\(a\) = \+0.000 \[(\S+), (\S+)\]", r"B\(b\) .* \[(\S+), (\S+)\] ag"):
        low, high = map(float, re.search(form, said).groups())
        assert low < 0 < high


def test_different_ceilings_are_called_different(tmp_path, capsys):
    """ScaleRL .610 against GRPO's .490: refitting both at the mean would invent a B for each."""
    a = write_run(tmp_path / "a", *made())
    b = write_run(tmp_path / "b", *made(A=0.49, B=1.17, seed=5))
    main([str(a), str(b)])
    said = capsys.readouterr().out
    assert "differ by the paper's 0.02" in said and "B is not compared: the ceil" in said


def test_seeds_are_pooled(tmp_path, capsys):
    runs = [str(write_run(tmp_path / f"s{i}", *made(seed=i))) for i in range(3)]
    main(["ours=" + ",".join(runs), "--out", "none"])
    n, A = re.search(r"^ours +(\d+) +(\S+)", capsys.readouterr().out, re.M).groups()
    assert n == "240" and float(A) == pytest.approx(0.61, abs=0.005)


def test_help_teaches(capsys):
    """--help is the manual that people read: law, columns, warnings, examples, exit codes."""
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    said = capsys.readouterr().out
    assert end.value.code == 0
    for word in ("--until", "exit codes", "NAME=A,B,C", "--x step", "read the verdict"):
        assert word.lower() in said.lower()
    assert max(map(len, said.split("\n"))) <= 100


@pytest.mark.days(4, turn=3)
def test_the_example_of_the_documents_is_what_the_command_prints(tmp_path, capsys, monkeypatch):
    """The block shows toy 0, seed 0 under the name that `make demo` gives to a run, and the README
    two of its lines."""
    sys.path.append(str(ROOT / "bench"))      # last: bench/fit.py is not fit.py
    import held_out
    monkeypatch.chdir(tmp_path)
    (curve,) = fit_report.read_curves([f"{ROOT}/results/demo/evals.csv:toy0-seed0"])
    write_run(tmp_path / "demo", curve.C, curve.R)
    block = re.search(r"^```\n(demo: .*?)^```", (ROOT / "docs/fit.md").read_text(), re.M | re.S)[1]
    assert main(["demo", "--until", "0.5"]) == 0
    printed = capsys.readouterr().out.replace("picture: demo/", "picture: runs/demo/")
    *told, last = block.splitlines(keepends=True)
    assert printed == "".join(told)
    assert last == held_out.beside("demo", ROOT / "results/demo/errors.csv").replace(
        f"{ROOT}/", "") + "\n"
    readme = (ROOT / "README.md").read_text()
    shown = re.search(r"^```\n(predicted .*?)^```", readme, re.M | re.S)[1]
    assert shown in printed
