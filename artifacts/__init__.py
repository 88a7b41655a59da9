"""What a run writes, and how it goes on from it: settings as TOML and what is refused of them
(settings.py), runs/NAME, its logs and the progress line (run_folder.py, step_log.py), files of
weights and optimizer, the state of everything else (checkpoint.py, resume.py)."""
