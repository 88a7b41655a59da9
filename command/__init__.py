"""the command line of scalerl.py."""
