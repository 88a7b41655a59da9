"""forecast.py: what the end of a run will be, in one line."""
import numpy as np

from fit import FEW, BadInput, fit_curve


def forecast_line(C, R, end):
    """The forecast for the end of a run as one line, from the evaluations so far: compute C (n,)
    and pass rates R (n,), step 0 included; `end`: the compute at the run's end.

    -> "end .84 [.71, .96] · naive .70": the curve there, its 90% interval, and what carrying the
    last three evaluations forward gives. "" before the sixth evaluation, at the run's end, and if
    there is no fit.
    """
    C, R = np.asarray(C, float), np.asarray(R, float)
    if C.size < FEW or not C.max(initial=0) < end < np.inf:
        return ""
    try:
        value, low, high = fit_curve(C, R, bootstrap=100).predict(end)
    except BadInput:
        return ""
    naive = R[np.argsort(C, kind="stable")][-3:].mean()
    text = [f"{each:.2f}".lstrip("0") for each in np.clip([value, low, high, naive], 0, 1)]
    where = "" if np.isnan(low) else f" [{text[1]}, {text[2]}]"
    return f"end {text[0]}{where} · naive {text[3]}"
