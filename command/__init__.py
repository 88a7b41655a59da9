"""command: the command line of scalerl.py, above the method.

    main.py       how a run begins, and how it ends; exit codes
    options.py    the options and their help
    make_run.py   from the settings to a `scalerl.Run` with all of its parts
    check.py      --check: is this model ready for this task?
    report.py     --report: a page about a run; symptoms.py says what its log shows

The method is in the five files; this folder only calls them. Nothing imports it but tests and
benches. To see which objects a run is made of, read make_run.py; the rest can wait.
"""
