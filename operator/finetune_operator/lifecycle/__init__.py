"""Decides what is done about a job, and what its status says. Pure: no I/O, no clock.

:func:`.decide.decide` is the only entry: it turns an :class:`.observation.Observation` into a
:class:`.decision.Decision` with one action and one status.
"""
