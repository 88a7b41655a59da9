"""What a run writes, and how it goes on from it: settings (settings.py), runs/NAME and its logs
(run_folder.py, step_log.py), weights, optimizer and all other state (checkpoint.py, resume.py)."""
