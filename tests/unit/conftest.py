"""What all unit tests share: how hypothesis searches."""

from hypothesis import settings

# No assertions about time: the machine may be busy.
settings.register_profile("default", deadline=None)
settings.load_profile("default")
