"""The settings of a run: compose conf/ and the command line, type the keys, check them against each other."""
