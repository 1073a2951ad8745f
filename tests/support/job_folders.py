"""Job folders made by hand."""

import json
from dataclasses import replace

from opguard_harness.jobs.folder import JobFolder, jobs_dir
from opguard_harness.jobs.owner import Owner
from opguard_harness.jobs.standing import now

JOB = "compare-0123456789ab"
DEAD = replace(Owner.ours(), started="1")


def make(job=JOB, starter=DEAD, **changes):
    (jobs_dir() / job).mkdir(parents=True)
    spec = {"format": 1, "job": job, "tool": "compare", "request": "r", "code": "c", "settings": "s", "created": now(), "case": ""}
    (jobs_dir() / job / "spec.json").write_text(json.dumps({**spec, "starter": starter.as_dict(), **changes}))
    return JobFolder.of(job)
