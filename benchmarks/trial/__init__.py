"""One program of the suite under plain XLA and under Fuselane: timed, compared, told about."""
