"""What is too long for every change and runs when asked for: whole catalogues, of which the suite runs the telling part."""

import os

import pytest

CAMPAIGN = os.environ.get("OPGUARD_ALL_PROGRAMS") == "1"
campaign = pytest.mark.skipif(not CAMPAIGN, reason="one of a catalogue of which the suite runs the telling part: OPGUARD_ALL_PROGRAMS=1")
