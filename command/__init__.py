"""The command line of scalerl.py: how a run begins and ends, a page about it (report.py) and what
its log says against it (symptoms.py). On a first reading only make_run.py is worth a look."""
