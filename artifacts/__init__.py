"""What a run leaves behind: its folder, its checkpoints, and what is made of its logs afterwards.

    run_folder.py, step_log.py     runs/NAME: settings, versions, logs, trackers, the progress line
    checkpoint.py                  all that a killed run needs to go on, by any number of processes
    resume.py                      what a sampler must keep for that
    report.py                      one page about one run: python scalerl.py --report runs/NAME
    readers.py                     evaluations from our logs and those of other trainers, for fit.py
    fit_report.py, figures.py      what the command of fit.py prints and draws

Nothing here knows how a model is trained: skip all of it on a first reading.
"""
