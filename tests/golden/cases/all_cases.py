"""All golden cases."""

from __future__ import annotations

from tests.golden.cases.by_nobody import BY_NOBODY, MOVING
from tests.golden.cases.mismatches import MISMATCHES
from tests.golden.cases.missing import NEVER_ISSUED
from tests.golden.cases.other_groups import OTHER_GROUPS
from tests.golden.cases.pipelines import DEVICES, PIPELINES

FAULTS = [*NEVER_ISSUED, *MISMATCHES, *PIPELINES, *DEVICES]
"""Jobs that hang, and whose fault it is."""
DECOYS = [*MOVING, *BY_NOBODY, *OTHER_GROUPS]
"""Nobody may be named, and nothing done in haste."""
