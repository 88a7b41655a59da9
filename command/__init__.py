"""The command line of scalerl.py, above the method: how a run begins, ends (main.py, options.py),
how its settings become a `scalerl.Run` and whether this machine can do it (make_run.py,
preflight.py), a page about a run and what its log says against it (report.py, symptoms.py)."""
