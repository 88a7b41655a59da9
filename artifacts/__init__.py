"""artifacts: what a run writes, and how it goes on from it.

    settings.py                    settings as a TOML file, and what is refused of them
    run_folder.py, step_log.py     runs/NAME: settings, versions, logs, the progress line
    checkpoint.py, resume.py       files of weights and optimizer; the state of everything else

No decision of the paper is in here.
"""
