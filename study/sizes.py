"""Do the curves of three sizes foretell the fourth's? (PLAN.md, fourth part; file 17)

Each size's curve is fitted by Eq. 1. Foretold of the largest one, which has N[-1] parameters:

    line          A and log C_mid are straight lines in log N through the three smaller ones (least
                  squares), log B is their mean
    same          A, B and C_mid of the next smaller one
    same samples  the same, but C_mid times N[-1] / N[-2]: a sample costs so much more compute

R0 is the largest one's own: it is measured before training begins."""

import numpy as np

from fit import fit_curve, sigmoid

MILLIONS = {"hidden_64": 0.126, "hidden_96": 0.28, "scalerl": 0.78, "hidden_320": 3.1}
WAYS = ("line", "same", "same samples")


def foretold(fits, N):
    """{way: (A, B, C_mid)} of the largest size from the fits of the smaller ones.

    fits: of the smaller sizes, ascending (each with A, B, C_mid); N: parameters of all sizes."""
    log_N = np.log(N)
    A, B, C_mid = (np.array([getattr(fit, name) for fit in fits]) for name in ("A", "B", "C_mid"))

    def line(values):
        return np.polyval(np.polyfit(log_N[:-1], values, 1), log_N[-1])
    return {"line": (min(line(A), 1.0), np.exp(np.log(B).mean()), np.exp(line(np.log(C_mid)))),
            "same": (A[-1], B[-1], C_mid[-1]),
            "same samples": (A[-1], B[-1], C_mid[-1] * N[-1] / N[-2])}


def errors(curves, N):
    """{way: {"A", "log B", "log C_mid", "end": foretold minus measured}} of one toy.

    curves: (C, R) of each size, ascending. "end": the mean of the last three evaluations."""
    *fits, largest = (fit_curve(C, R, bootstrap=0) for C, R in curves)
    C, R = curves[-1]
    found = {}
    for way, (A, B, C_mid) in foretold(fits, N).items():
        end = sigmoid(C[-3:], A, B, C_mid, largest.R0).mean()
        found[way] = {"A": A - largest.A, "log B": np.log(B / largest.B),
                      "log C_mid": np.log(C_mid / largest.C_mid), "end": end - R[-3:].mean()}
    return found


def table(toys, paired, told):
    """toys: [curves] of `errors`, one for each toy; paired, told: of study/figures.py."""
    lines = ["| of the largest | by the line | same | same samples | line against same | "
             "samples against same | samples against line |", "|---|--:|--:|--:|--:|--:|--:|"]
    found = [errors(curves, [*MILLIONS.values()]) for curves in toys]
    for what in ("A", "log B", "log C_mid", "end"):
        misses = np.abs([[each[way][what] for way in WAYS] for each in found])      # (toys, 3)
        line, same, samples = misses.T
        lines.append(f"| {what} | " + " | ".join(f"{x:.3f}" for x in misses.mean(0)) + " | "
                     + " | ".join(told(paired(d)) for d in (
                         line - same, samples - same, samples - line)) + " |")
    return "\n".join(lines)


def plot(toys, figures):
    """Each size's runs over log compute, and the largest one's curve as it was foretold by the line
    and by "same samples", means over the toys."""
    fig, ((ax,),) = figures.empty(7.5, 4, 1, 1)
    colors = ("#8fb8de", "#4f8fc0", figures.BLUE, figures.ORANGE)
    for i, (million, color) in enumerate(zip(MILLIONS.values(), colors, strict=True)):
        runs = [curves[i] for curves in toys]
        for C, R in runs:
            ax.plot(C[1:], R[1:], color=color, linewidth=0.6, alpha=0.6)
        C, R = np.mean(runs, 0)
        ax.plot(C[1:], R[1:], "o-", color=color, markersize=3, label=f"{million:g}M parameters")
    C = np.geomspace(C[1], C[-1], 100)
    for way, dash in ("line", "--"), ("same samples", ":"):
        seen = [(foretold([fit_curve(*curve, bootstrap=0) for curve in curves[:-1]],
                          [*MILLIONS.values()])[way], curves[-1][1][0]) for curves in toys]
        ax.plot(C, np.mean([sigmoid(C, *theta, R0) for theta, R0 in seen], 0), dash, color="black",
                label=f"3.1M foretold: {way}")
    ax.set(xscale="log", xlabel="compute (FLOPs), log scale",
           ylabel="pass rate on held-out problems")
    ax.legend(frameon=False, fontsize=8.5)
    return fig
