"""The command line of scalerl.py: how a run begins and ends (main.py, options.py, make_run.py,
preflight.py), a page about a run and what its log says against it (report.py, symptoms.py)."""
