"""What every test relies on, whatever started the suite."""

import signal

# A shell starts background jobs with some signals ignored (nohup with more), and children inherit that; the tests send them.
for _number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)
