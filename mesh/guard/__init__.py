"""The guard: folds a request's log, decides, appends, and finishes what is due. Any number may run."""
