"""command: the command line of scalerl.py, above the method. Nothing imports it but tests, benches.
    main.py, options.py        how a run begins, and how it ends; the options and their help
    make_run.py, preflight.py  from the settings to a `scalerl.Run`; can this machine do it?
    report.py, symptoms.py     a page about a run; what its log says against it"""
