"""accelerate's own test_sync, as it lies in the package, with data that are the same each time.

It compares sums of 32 terms with those of twice 16, to five digits, of data that no seed fixes: where these add up to
next to nothing it fails, once in 900 times with torch alone.
"""

from __future__ import annotations

import runpy

from accelerate.test_utils.training import RegressionDataset

RegressionDataset.__init__.__defaults__ = (*RegressionDataset.__init__.__defaults__[:-1], 7)
runpy.run_module("accelerate.test_utils.scripts.test_sync", run_name="__main__")
