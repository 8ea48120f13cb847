"""The report page, and the same as JSON and CSV."""

from __future__ import annotations

from monai_sc.reports.page.folder import AuditSource, FolderSource
from monai_sc.reports.page.run import RESULTS, RunSource
from monai_sc.reports.page.sources import open_source
from monai_sc.reports.page.write import REPORT_FILES, Source, write_page

__all__ = [
    "REPORT_FILES",
    "RESULTS",
    "AuditSource",
    "FolderSource",
    "RunSource",
    "Source",
    "open_source",
    "write_page",
]
