"""The report of one run: its records as one data structure. Pure: no I/O and no clock."""
