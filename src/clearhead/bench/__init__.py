"""How fast attention is here: against the machine's own limit, and against who else is installed.

    cases    what is computed, by name               limits   what the machine can do at most
    peers    the same in other libraries             checks   whether a result is right
    worker   one process a library                   turns    they are timed in turn
    report   what was found                          table    the same as lines of text

`clearhead bench` is the short form; benchmarks/attention.py is the same code with more cases.
"""
