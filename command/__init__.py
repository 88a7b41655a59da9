"""The command line of scalerl.py: how a run begins and ends, a page about it (report.py) and what
its log says against it (symptoms.py). To read the method, skip it; of it make_run.py says most."""
