"""What a run writes and goes on from: settings.py, runs/NAME and logs (run_folder.py, step_log.py),
all state (checkpoint.py, resume.py). Nothing here changes what is trained: ignore it at first."""
