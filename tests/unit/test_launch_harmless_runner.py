"""The harmless runner can fail: each kind of trace that observing could leave is told."""

import dataclasses

from tests.support.harmless import Seen, differences

SEEN = Seen(0, "a\nb\n", "", [], {"train.py": "1"}, [{"orig_argv": ["python", "train.py"], "random": "x", "path": []}])


def test_equal_runs_have_no_differences():
    assert differences(SEEN, dataclasses.replace(SEEN)) == []


def test_every_difference_is_named():
    for change in (
        {"status": 1},
        {"stdout": "a\n"},
        {"stderr": "warning\n"},
        {"files": {"train.py": "1", "trace": "folder"}},
        {"reports": []},
        {"reports": [{**SEEN.reports[0], "random": "y"}]},
        {"reports": [{**SEEN.reports[0], "new": 1}]},
    ):
        assert len(differences(SEEN, dataclasses.replace(SEEN, **change))) == 1, change


def test_the_order_of_lines_counts_only_where_there_is_one():
    mixed = dataclasses.replace(SEEN, stdout="b\na\n")
    assert differences(SEEN, mixed)
    assert differences(SEEN, mixed, ordered=False) == []
