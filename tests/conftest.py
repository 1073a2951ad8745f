"""What every test relies on, whatever shell started the suite."""

import signal

# A shell starts background jobs with interrupts ignored, and children inherit that; tests that interrupt children need the default.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
