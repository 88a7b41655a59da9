"""command: the command line of scalerl.py, above the method. Nothing imports it but tests, benches.

    main.py       how a run begins, and how it ends; options.py: the options and their help
    make_run.py   from the settings to a `scalerl.Run` with all of its parts
    preflight.py  can this machine do it?
    report.py     --report: a page about a run; symptoms.py: what its log says against it
"""
