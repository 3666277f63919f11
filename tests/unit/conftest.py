"""What all unit tests share: how hypothesis searches, and that programs take Ctrl-C."""

import signal

from hypothesis import settings

# No assertions about time: the machine may be busy.
settings.register_profile("default", deadline=None)
settings.load_profile("default")

# A shell starts its background jobs with SIGINT ignored, and the programs that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
