"""Comparison of recipes: one rule for ceilings, and none where a ceiling is not known."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
from made_runs import made

import fit
from fit import fit_curve, sigmoid
from fitting import compare


def compared(**runs):
    """{label: (C, R)} -> what `compare_lines` says of their fits."""
    curves = [SimpleNamespace(label=label, C=C, R=R) for label, (C, R) in runs.items()]
    refits = {curve.label: partial(fit_curve, bootstrap=40, seed=i)
              for i, curve in enumerate(curves)}
    fits = {curve.label: refits[curve.label](curve.C, curve.R) for curve in curves}
    return "\n".join(compare.compare_lines(curves, fits, refits))


def test_ceilings_exactly_at_the_border_are_the_same_in_every_line():
    """.590 and .610, the paper's own case: .61 - .59 is above .02 in floating point, and two rules
    would say "differ" and compare B at the shared ceiling in one breath."""
    assert fit.SAME_A < 0.61 - 0.59 < compare.NEAR < 0.6101 - 0.59
    C = np.linspace(0, 16_000, 81)
    told = compared(a=(C, sigmoid(C, 0.61, 1.9, 2500, 0.35)),
                    b=(C, sigmoid(C, 0.59, 1.9, 2500, 0.35)))
    assert (": same by the paper's" in told) == ("steepness at the shared ceiling" in told)


def test_a_ceiling_that_is_not_known_is_not_compared():
    """Cut before the bend, two runs of one recipe get ceilings .1 apart; "differ" would be luck.
    And a rival law that fits as well, with another ceiling, has a say too."""
    told = compared(whole=made(seed=1), early=made(end=4000, n=41, sd=0.01, seed=2))
    assert ": undetermined by the paper's" in told and "steepness" not in told
    assert "A(early) is not determined: its interval is" in told
    assert "A(whole) is not determined" not in told
    f = fit_curve(*made(), bootstrap=40)
    assert compare.ceiling_doubt(f) == ""
    near = dict(stretched=dict(A=f.A - 0.03, delta_aic=3.0), constant=f.rivals["constant"])
    assert "the stretched law fits as well" in compare.ceiling_doubt(replace(f, rivals=near))
    near["stretched"]["delta_aic"] = 5.0                             # it does not fit as well
    assert compare.ceiling_doubt(replace(f, rivals=near)) == ""


def test_a_clear_difference_is_told_though_a_ceiling_is_known_only_roughly():
    """.61 against about .91, [.83, 1]: one interval wider than .1 made all undetermined. It is the
    interval of the difference that says so, by both laws; the other way round, too."""
    low, rough = made(seed=1), made(end=5000, n=20, sd=0.02, seed=2, A=0.95)
    for runs in (dict(low=low, rough=rough), dict(rough=rough, low=low)):
        told = compared(**runs)
        assert "A(rough) is not determined: its interval is" in told
        assert ": differ by the paper's" in told and "B is not compared" in told
    one, other = (fit_curve(*run, bootstrap=0) for run in (low, rough))
    assert np.isnan(compare.apart("A", one, other, laws=2)).all()      # nothing clear
